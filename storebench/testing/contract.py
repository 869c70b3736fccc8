"""The contract of a storage format as tests: inherit `FormatContract` and name the format.

::

    from storebench.testing.contract import FormatContract

    class TestZarr(FormatContract):
        format_name = "zarr"   # as registered in the entry-point group storebench.formats

Every test runs with every reader that the format has, and with a codec of each kind: none, lossless, lossy, images of any size.
"""

import contextlib
import multiprocessing
import shutil
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from storebench.codecs import CODECS, get_codec
from storebench.errors import CorruptStoreError, IntegrityError, UsageError
from storebench.formats.base import Format, Reader
from storebench.formats.registry import get_format
from storebench.record.manifest import StoreSpec
from storebench.testing.stores import (
    COUNT,
    SHAPE,
    SmallStore,
    build_small_store,
    dataset_info,
    fingerprint,
    left_open,
    local_readers,
    mapped_files,
    open_files,
    read_and_be_killed,
    read_digest,
    read_pixels,
    sample_images,
)
from storebench.testing.windows import ORDER, WindowsContract

KINDS_OF_CODECS = ("raw", "png", "jpeg", "original")
"""To a container, the payloads of any other codec are like those of one of these."""

ONE: list[Any] = [0, 7, COUNT - 1, -1, -COUNT, np.int64(3)]

SEVERAL: list[Any] = [
    [3, 1, 2],
    [-1, 0, -1],
    range(5),
    np.array([60, -2], np.int8),
    slice(2, 9),
    slice(None, None, -20),
    [],
]

OUTSIDE: list[Any] = [COUNT, -COUNT - 1, 10**30, [0, COUNT], [-COUNT - 1]]

NO_INDEX: list[Any] = [1.0, "1", None, [1.0], [True, False], [[1, 2]]]


class FormatContract(WindowsContract):
    """What a format promises to the harness, test by test."""

    format_name: ClassVar[str]

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Run a test with each codec and reader that it asks for."""
        if "codec" in metafunc.fixturenames:
            metafunc.parametrize("codec", KINDS_OF_CODECS, scope="class")
        if "reader" in metafunc.fixturenames:
            metafunc.parametrize("reader", local_readers(get_format(self.format_name)), scope="class")

    @pytest.fixture(scope="class")
    @classmethod
    def store_format(cls) -> Format:
        """Return the format under test."""
        return get_format(cls.format_name)

    @pytest.fixture(scope="class")
    @classmethod
    def small(cls, store_format: Format, codec: str, tmp_path_factory: pytest.TempPathFactory) -> SmallStore:
        """Return a store of 67 samples; tests do not change it."""
        return build_small_store(store_format, codec, tmp_path_factory.mktemp(f"{cls.format_name}-{codec}"))

    @pytest.fixture
    def opened(self, small: SmallStore, reader: str) -> Iterator[Reader]:
        """Open that store for a test."""
        with small.open(reader) as opened:
            yield opened

    @pytest.fixture
    def temporary(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        """Give the test an empty folder for temporary files of its own, in child processes too."""
        folder = tmp_path / "temporary"
        folder.mkdir()
        monkeypatch.setenv("TMPDIR", str(folder))
        monkeypatch.setattr(tempfile, "tempdir", str(folder))
        return folder

    @pytest.fixture
    def copied(self, small: SmallStore, tmp_path: Path) -> Path:
        """Return a copy of the store that a test may damage."""
        return Path(shutil.copytree(small.path, tmp_path / "copy"))

    def test_it_is_called_what_it_is_registered_as(self, store_format: Format) -> None:
        """Backends, stores and results find it by that name."""
        assert store_format.info.name == self.format_name
        assert store_format.info.default_reader in store_format.readers()
        assert store_format.info.default_codec in CODECS

    def test_every_sample_comes_back(self, small: SmallStore, opened: Reader) -> None:
        """Each with its own pixels, in any order of requests."""
        order = np.random.default_rng(3).permutation(COUNT)
        np.testing.assert_array_equal(read_pixels(opened, order.tolist()), small.pixels[order])

    def test_payloads_are_what_was_written(self, small: SmallStore, opened: Reader) -> None:
        """Byte for byte; a reader that decodes on opening returns the raw pixels instead."""
        assert opened.payload_codec in (small.manifest.codec, "raw")
        payloads = small.payloads
        if opened.payload_codec != small.manifest.codec:
            payloads = [image.tobytes() for image in small.pixels]
        fetched = opened.fetch(np.array(ORDER))
        assert fetched == [payloads[index] for index in ORDER]
        assert all(type(payload) is bytes for payload in fetched)

    def test_labels_are_in_memory(self, small: SmallStore, opened: Reader) -> None:
        """All of them, as int64, from opening on."""
        assert opened.labels.dtype == np.int64
        np.testing.assert_array_equal(opened.labels, small.labels)

    def test_grey_images_come_back(
        self, store_format: Format, codec: str, reader: str, tmp_path: Path
    ) -> None:
        """With one channel, and small enough that a container may pack them differently."""
        grey = build_small_store(store_format, codec, tmp_path, count=12, shape=(28, 28, 1))
        with grey.open(reader) as opened:
            np.testing.assert_array_equal(read_pixels(opened, range(12)), grey.pixels)

    def test_one_sample_is_a_store(
        self, store_format: Format, codec: str, reader: str, tmp_path: Path
    ) -> None:
        """The smallest one."""
        single = build_small_store(store_format, codec, tmp_path, count=1)
        with single.open(reader) as opened:
            np.testing.assert_array_equal(read_pixels(opened, [0]), single.pixels)

    def test_indices_may_repeat(self, small: SmallStore, opened: Reader) -> None:
        """In one batch, in any order."""
        np.testing.assert_array_equal(read_pixels(opened, ORDER), small.pixels[ORDER])

    def test_no_indices_give_no_samples(self, opened: Reader) -> None:
        """An empty batch is no special case for a caller."""
        nothing = np.empty(0, dtype=np.int64)
        assert opened.fetch(nothing) == []
        if opened.payload_codec == "raw":
            assert opened.fetch_into(nothing, np.empty((0, *SHAPE), dtype=np.uint8)) == (0, 0)

    @pytest.mark.parametrize("wrong", [-1, -COUNT, COUNT, 10**12])
    def test_an_index_that_no_sample_has_is_refused(
        self, small: SmallStore, opened: Reader, wrong: int
    ) -> None:
        """It is refused, never answered with another sample, and the reader continues to work."""
        indices = np.array([3, wrong, 4])
        with pytest.raises(IndexError):
            opened.fetch(indices)
        if opened.payload_codec == "raw":
            with pytest.raises(IndexError):
                opened.fetch_into(indices, np.empty((3, *SHAPE), dtype=np.uint8))
        np.testing.assert_array_equal(read_pixels(opened, [3]), small.pixels[[3]])

    def test_only_the_rows_asked_for_are_written(self, small: SmallStore, opened: Reader) -> None:
        """A batch may be larger than what is fetched, and the bytes are counted."""
        if opened.payload_codec != "raw":
            pytest.skip("encoded payloads are not fetched into a batch")
        out = np.full((8, *SHAPE), 7, dtype=np.uint8)
        payload_bytes, decode_ns = opened.fetch_into(np.array(ORDER), out)
        assert payload_bytes == small.pixels[ORDER].nbytes
        assert decode_ns >= 0
        np.testing.assert_array_equal(out[:6], small.pixels[ORDER])
        assert (out[6:] == 7).all()

    def test_a_batch_that_does_not_fit_is_refused(self, opened: Reader) -> None:
        """Too few rows, another shape, another type, another order, or read-only; and nothing is written to it."""
        rows = len(ORDER)
        whole = np.zeros((rows, *SHAPE), np.uint8)
        read_only = whole.copy()
        read_only.flags.writeable = False
        height, width, channels = SHAPE
        unfit: list[Any] = [
            whole[1:],
            np.zeros((rows, width, height, channels), np.uint8),
            np.zeros((rows, height * width * channels), np.uint8),
            np.zeros((rows, *SHAPE), np.float32),
            np.zeros((2 * rows, *SHAPE), np.uint8)[::2],
            read_only,
        ]
        for out in unfit:
            with pytest.raises(ValueError, match="batch"):
                opened.fetch_into(np.array(ORDER), out)
            assert not out.any()

    def test_encoded_payloads_are_not_pixels(self, opened: Reader) -> None:
        """They are fetched and decoded, never copied into a batch unchanged."""
        if opened.payload_codec == "raw":
            pytest.skip("the payloads are pixels")
        with pytest.raises(ValueError, match="batch"):
            opened.fetch_into(np.array(ORDER), np.zeros((len(ORDER), *SHAPE), np.uint8))

    def test_what_was_fetched_is_private(self, small: SmallStore, copied: Path, reader: str) -> None:
        """Later fetches, overwritten files and a closed reader do not change it."""
        opened = small.open(reader, copied)
        first = read_pixels(opened, [1, 2])
        payloads = opened.fetch(np.array([1, 2]))
        expected = [bytes(bytearray(payload)) for payload in payloads]
        read_pixels(opened, [3, 4])
        for path in small.format.data_files(copied):
            path.write_bytes(bytes(path.stat().st_size))
        opened.close()
        shutil.rmtree(copied)
        np.testing.assert_array_equal(first, small.pixels[[1, 2]])
        assert payloads == expected

    def test_held_pixels_need_no_disk(self, small: SmallStore, copied: Path, reader: str) -> None:
        """A reader that says it holds all pixels reads on when the store is gone."""
        if not small.format.traits(reader).holds_pixels:
            pytest.skip("this reader does not say that it holds the pixels")
        with small.open(reader, copied) as opened:
            shutil.rmtree(copied)
            np.testing.assert_array_equal(read_pixels(opened, range(COUNT)), small.pixels)

    def test_a_plan_changes_no_answer(self, small: SmallStore, opened: Reader) -> None:
        """Whether it is followed, left, or replaced by another."""
        batches = [np.array([1, 2, 3]), np.array([60, 0, 9]), np.array([4, 4])]
        opened.plan(batches)
        for indices in (batches[0], batches[1], np.array([30, 31]), batches[2]):
            np.testing.assert_array_equal(read_pixels(opened, indices.tolist()), small.pixels[indices])
        opened.plan([])
        np.testing.assert_array_equal(read_pixels(opened, [8]), small.pixels[[8]])

    def test_threads_may_take_turns_with_a_reader(self, small: SmallStore, opened: Reader) -> None:
        """Never two at once, but not always the one that opened it, also in the middle of a plan."""
        batches = [np.arange(at, min(at + 16, COUNT)) for at in range(0, COUNT, 16)]
        opened.plan(batches)
        for number, batch in enumerate(batches):
            if number % 2:
                with ThreadPoolExecutor(1) as other:
                    pixels = other.submit(read_pixels, opened, batch.tolist()).result()
            else:
                pixels = read_pixels(opened, batch.tolist())
            np.testing.assert_array_equal(pixels, small.pixels[batch])

    def test_an_unknown_option_is_refused(self, small: SmallStore, reader: str) -> None:
        """A misspelt option must not measure the default."""
        with pytest.raises(UsageError, match="no-such-option"):
            small.format.reader(small.path, small.manifest, reader, {"no-such-option": "1"})

    def test_a_store_may_be_open_twice_in_one_process(
        self, small: SmallStore, opened: Reader, reader: str
    ) -> None:
        """Closing one reader leaves the other alone."""
        with small.open(reader) as second:
            np.testing.assert_array_equal(read_pixels(second, [7]), small.pixels[[7]])
        np.testing.assert_array_equal(read_pixels(opened, [8]), small.pixels[[8]])

    def test_the_store_is_not_touched(self, small: SmallStore, reader: str) -> None:
        """Reading writes nothing, so a read-only disk is enough."""
        before = fingerprint(small.path)
        with small.open(reader) as opened:
            read_pixels(opened, range(COUNT))
            assert fingerprint(small.path) == before
        assert fingerprint(small.path) == before

    def test_nothing_is_left_after_closing(self, small: SmallStore, reader: str, temporary: Path) -> None:
        """No descriptor, no mapping, no temporary file; and closing twice is harmless."""
        with small.open(reader):
            pass  # libraries that are loaded now stay
        files, maps = open_files(), mapped_files()
        opened = small.open(reader)
        read_pixels(opened, ORDER)
        opened.close()
        opened.close()
        assert not left_open(files)
        assert mapped_files() == maps
        assert list(temporary.iterdir()) == []

    def test_a_closed_reader_says_so(self, small: SmallStore, reader: str) -> None:
        """With the same error for any request; closing it again is harmless."""
        opened = small.open(reader)
        states = [opened.closed]
        opened.close()
        opened.close()
        states.append(opened.closed)
        assert states == [False, True]
        indices, nothing = np.array(ORDER), np.empty(0, np.int64)
        calls: list[Callable[[], object]] = [
            lambda: opened.fetch(indices),
            lambda: opened.fetch(nothing),
            lambda: opened.fetch_into(indices, np.empty((len(ORDER), *SHAPE), np.uint8)),
            lambda: opened.read_into(indices, np.empty((len(ORDER), *SHAPE), np.uint8)),
            lambda: opened.plan([indices]),
            lambda: opened[0],
            lambda: opened[ORDER],
        ]
        for call in calls:
            with pytest.raises(RuntimeError, match="closed"):
                call()

    @pytest.mark.parametrize("method", ["fork", "spawn"])
    def test_several_processes_read_at_once(
        self, store_format: Format, reader: str, method: str, temporary: Path, tmp_path: Path
    ) -> None:
        """Each opens its own reader, as loader workers do, while this process has one open."""
        if method == "fork" and not store_format.traits(reader).forks:
            pytest.skip("this reader says that its library does not survive a fork")
        small = build_small_store(store_format, store_format.info.default_codec, tmp_path)
        jobs = [(self.format_name, reader, small.path, seed) for seed in range(3)]
        context = multiprocessing.get_context(method)
        with small.open(reader) as opened, context.Pool(2) as pool:
            digests = pool.starmap(read_digest, jobs, chunksize=1)
            pool.close()
            pool.join()
            np.testing.assert_array_equal(read_pixels(opened, [2]), small.pixels[[2]])
        assert set(digests) == {read_digest(self.format_name, reader, small.path, 0)}
        assert list(temporary.iterdir()) == []

    def test_a_killed_reader_leaves_a_store_that_opens(
        self, store_format: Format, reader: str, temporary: Path, tmp_path: Path
    ) -> None:
        """The next process removes its leftovers."""
        small = build_small_store(store_format, store_format.info.default_codec, tmp_path)
        mine, theirs = multiprocessing.Pipe()
        context = multiprocessing.get_context("fork" if store_format.traits(reader).forks else "spawn")
        child = context.Process(  # type: ignore[attr-defined]
            target=read_and_be_killed, args=(self.format_name, reader, small.path, theirs)
        )
        child.start()
        assert mine.recv() == "read"
        child.join()
        assert child.exitcode == -9
        with small.open(reader) as opened:
            np.testing.assert_array_equal(read_pixels(opened, range(COUNT)), small.pixels)
        assert list(temporary.iterdir()) == []

    def test_the_data_files_are_all_that_is_read(
        self, small: SmallStore, reader: str, tmp_path: Path
    ) -> None:
        """The files that are evicted and counted are those that a cold epoch reads: a store with only these works."""
        bare = tmp_path / "bare"
        for path in small.format.data_files(small.path):
            target = bare / path.relative_to(small.path)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)
        with small.open(reader, bare) as opened:
            np.testing.assert_array_equal(read_pixels(opened, range(COUNT)), small.pixels)

    @pytest.mark.parametrize("damage", ["missing", "truncated", "empty"])
    def test_a_damaged_store_never_serves_wrong_samples(
        self, small: SmallStore, reader: str, damage: str, tmp_path: Path, temporary: Path
    ) -> None:
        """Whichever of its files is damaged: one clear error, or every sample is right."""
        refusals = 0
        files = small.format.data_files(small.path)
        for number, path in enumerate([*files[:3], *files[-3:]]):
            copy = Path(shutil.copytree(small.path, tmp_path / f"copy{number}"))
            _damage(copy / path.relative_to(small.path), damage)
            before = open_files()
            try:
                with small.open(reader, copy) as opened:
                    pixels = read_pixels(opened, range(COUNT))
                    labels = opened.labels
            except IntegrityError:  # of the store, or of a payload that does not decode
                refusals += 1
            else:
                np.testing.assert_array_equal(pixels, small.pixels)
                np.testing.assert_array_equal(labels, small.labels)
            assert not left_open(before)
        assert refusals, "no damage was noticed"
        assert list(temporary.iterdir()) == []

    def test_a_store_that_is_gone_is_refused(self, small: SmallStore, reader: str, tmp_path: Path) -> None:
        """In one line that names it."""
        empty = tmp_path / "empty"
        empty.mkdir()
        for folder in (empty, tmp_path / "nowhere"):
            with pytest.raises(CorruptStoreError, match=folder.name):
                small.open(reader, folder)

    def test_a_payload_may_be_overwritten_after_appending(
        self, store_format: Format, codec: str, tmp_path: Path
    ) -> None:
        """The encoder reuses its buffers: a payload is only valid during the call."""
        images = sample_images(4, SHAPE)
        spec = StoreSpec(dataset=dataset_info(4, SHAPE), format=self.format_name, codec=codec)
        reference = build_small_store(store_format, codec, _made(tmp_path / "reference"), count=4)
        with store_format.writer(_made(tmp_path / "store"), spec) as writer:
            for image, label in zip(images, reference.labels.tolist(), strict=True):
                payload = bytearray(get_codec(codec).encode(image))
                writer.append(memoryview(payload), label)
                payload[:] = bytes(len(payload))
        with reference.open(store=tmp_path / "store") as opened:
            np.testing.assert_array_equal(read_pixels(opened, range(4)), reference.pixels)

    def test_an_aborted_writer_holds_on_to_nothing(
        self, store_format: Format, codec: str, tmp_path: Path
    ) -> None:
        """Its folder can be removed and written again in the same process."""
        folder = tmp_path / "store"
        spec = StoreSpec(dataset=dataset_info(COUNT, SHAPE), format=self.format_name, codec=codec)
        before = open_files()
        payload = get_codec(codec).encode(sample_images(1, SHAPE)[0])
        with contextlib.suppress(KeyboardInterrupt), store_format.writer(_made(folder), spec) as writer:
            writer.append(payload, 0)
            raise KeyboardInterrupt
        assert not left_open(before)
        shutil.rmtree(folder)
        whole = build_small_store(store_format, codec, _made(folder))
        with whole.open() as opened:
            np.testing.assert_array_equal(read_pixels(opened, range(COUNT)), whole.pixels)

    def test_a_whole_store_has_a_sound_structure(self, small: SmallStore) -> None:
        """`check_structure` accepts a store that the writer wrote."""
        small.format.check_structure(small.path)

    def test_every_sample_is_located_in_its_store(self, small: SmallStore) -> None:
        """`locate` names a file or folder that exists, at least the store's own folder."""
        for index in (0, COUNT // 2, COUNT - 1):
            path = small.format.locate(small.path, small.manifest, index)
            assert path.exists()
            assert path == small.path or small.path in path.parents

    def test_indexes_are_kept_outside_the_store(self, small: SmallStore, reader: str) -> None:
        """`index_files` exist once a reader was open, and do not belong to the store."""
        with small.open(reader) as opened:
            files = type(opened).index_files(small.path)
            assert all(path.is_file() for path in files)
            assert not set(files) & set(small.format.data_files(small.path))

    def test_a_reader_that_reads_ahead_says_how_far(self, small: SmallStore, opened: Reader) -> None:
        """`ahead_bytes` counts the bytes read beyond the batch in progress; without a plan nothing is read ahead."""
        ahead_bytes = type(opened).ahead_bytes(opened.options, small.manifest)
        assert ahead_bytes >= 0
        assert ahead_bytes == 0 or opened.looks_ahead()

    def test_every_option_accepts_its_default(self, small: SmallStore, reader: str) -> None:
        """Written out, the defaults have the same meaning as a backend without options."""
        rows = small.format.readers()[reader].reader.options_type.rows()
        options = {name: row.text(row.default) for name, row in rows.items()}
        with small.format.reader(small.path, small.manifest, reader, options) as opened:
            assert opened.options == type(opened).options_type()
            np.testing.assert_array_equal(read_pixels(opened, [3]), small.pixels[[3]])
        assert all(row.meaning and row.allowed for row in rows.values())

    def test_the_auditor_reads_every_sample(self, small: SmallStore) -> None:
        """Verification goes through it."""
        with small.format.auditor(small.path, small.manifest) as auditor:
            np.testing.assert_array_equal(read_pixels(auditor, range(COUNT)), small.pixels)
            np.testing.assert_array_equal(auditor.labels, small.labels)

    def test_a_reader_gives_a_decoded_sample_by_its_index(self, small: SmallStore, opened: Reader) -> None:
        """Pixels and label; negative indices count from the end, as in a list."""
        for index in ONE:
            pixels, label = opened[index]
            assert pixels.dtype == np.uint8
            np.testing.assert_array_equal(pixels, small.pixels[index])
            assert type(label) is int
            assert label == small.labels[index]

    def test_a_reader_gives_several_samples_by_a_list(self, small: SmallStore, opened: Reader) -> None:
        """In the order of the list, in one array that belongs to the caller."""
        for indices in SEVERAL:
            pixels, labels = opened[indices]
            assert (pixels.dtype, labels.dtype) == (np.uint8, np.int64)
            np.testing.assert_array_equal(pixels, small.pixels[indices])
            np.testing.assert_array_equal(labels, small.labels[indices])
            pixels[...] = labels[...] = 0
        np.testing.assert_array_equal(opened[:][0], small.pixels)
        np.testing.assert_array_equal(opened.labels, small.labels)

    def test_a_reader_is_as_long_as_its_store(self, small: SmallStore, opened: Reader) -> None:
        """And a loop over it ends."""
        assert len(opened) == COUNT
        assert [label for _, label in opened] == small.labels.tolist()

    def test_a_reader_ends_where_a_list_does(self, opened: Reader) -> None:
        """Whether one sample is asked for or several."""
        for index in OUTSIDE:
            with pytest.raises(IndexError, match="out of range"):
                opened[index]

    def test_a_reader_refuses_what_is_no_index(self, opened: Reader) -> None:
        """With the error that a list would raise, and without reading anything."""
        for index in NO_INDEX:
            with pytest.raises(TypeError):
                opened[index]


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def _damage(path: Path, how: str) -> None:
    if how == "missing":
        path.unlink()
    else:
        payload = path.read_bytes()
        path.write_bytes(payload[: len(payload) // 2] if how == "truncated" else b"")
