"""The contract of a storage format as tests: inherit `FormatContract` and name the format.

::

    from storebench.testing.contract import FormatContract

    class TestZarr(FormatContract):
        format_name = "zarr"   # as registered in the entry-point group storebench.formats

Every test runs with the readers that the format declares, and with a codec of each kind: none, one of images of one
size, and images of any size.
"""

import contextlib
import multiprocessing
import shutil
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from storebench.codecs import CODECS, get_codec
from storebench.errors import CorruptStoreError, IntegrityError, UsageError
from storebench.formats.base import Format, Reader
from storebench.formats.registry import get_format
from storebench.formats.windows import Windows
from storebench.record.manifest import StoreSpec
from storebench.testing.stores import (
    COUNT,
    SHAPE,
    WINDOW,
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
    sliced,
    some_windows,
)

# To a container, the payloads of any other codec are like those of one of these.
KINDS_OF_CODECS = ("raw", "jpeg", "original")

RAW = pytest.mark.parametrize("codec", ["raw"], scope="class")

ORDER = [5, COUNT - 1, 0, 5, 17, 5]


class FormatContract:
    """What a format promises to the harness, test by test."""

    format_name: ClassVar[str]

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Run a test with each codec and reader that it asks for, as far as the format declares them."""
        store_format = get_format(self.format_name)
        readers, names = local_readers(store_format), metafunc.fixturenames
        marked = [mark.args[0] for mark in metafunc.definition.iter_markers("parametrize")]
        if "codec" in names and "codec" not in marked:
            metafunc.parametrize("codec", KINDS_OF_CODECS, scope="class")
        if "method" in names:
            forking = [reader for reader in readers if store_format.traits(reader).forks]
            # A spawned process imports everything anew, so one reader of each format stands for those that may fork.
            spawned = [reader for reader in readers if reader not in forking or reader == readers[0]]
            cases = [*((reader, "fork") for reader in forking), *((reader, "spawn") for reader in spawned)]
            metafunc.parametrize(("reader", "method"), cases, scope="class")
        elif "reader" in names:
            metafunc.parametrize("reader", readers, scope="class")

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

    def test_it_is_called_what_it_is_registered_as(self, store_format: Format) -> None:
        """Backends, stores and results find it by that name."""
        assert store_format.info.name == self.format_name
        assert store_format.info.default_reader in store_format.readers()
        assert store_format.info.default_codec in CODECS

    def test_every_sample_comes_back(self, small: SmallStore, opened: Reader) -> None:
        """Each with its own pixels and label, in any order of requests, with repetitions."""
        for order in (np.random.default_rng(3).permutation(COUNT), np.array(ORDER)):
            np.testing.assert_array_equal(read_pixels(opened, order.tolist()), small.pixels[order])
        assert opened.labels.dtype == np.int64
        np.testing.assert_array_equal(opened.labels, small.labels)

    def test_payloads_are_what_was_written(self, small: SmallStore, opened: Reader) -> None:
        """Byte for byte; a reader that decodes on opening returns the raw pixels instead."""
        assert opened.payload_codec in (small.manifest.codec, "raw")
        payloads = small.payloads
        if opened.payload_codec != small.manifest.codec:
            payloads = [image.tobytes() for image in small.pixels]
        fetched = opened.fetch(np.array(ORDER))
        assert fetched == [payloads[index] for index in ORDER]
        assert all(type(payload) is bytes for payload in fetched)

    @pytest.mark.parametrize(("count", "shape"), [(12, (28, 28, 1)), (1, SHAPE)])
    def test_small_stores_come_back(
        self, store_format: Format, codec: str, count: int, shape: tuple[int, int, int], tmp_path: Path
    ) -> None:
        """One sample, and grey images so small that a container may pack them differently."""
        small = build_small_store(store_format, codec, tmp_path, count=count, shape=shape)
        for reader in local_readers(store_format):
            with small.open(reader) as opened:
                np.testing.assert_array_equal(read_pixels(opened, range(count)), small.pixels)

    def test_an_index_that_no_sample_has_is_refused(self, small: SmallStore, opened: Reader) -> None:
        """It is refused, never answered with another sample, and the reader continues to work."""
        for wrong in (-1, -COUNT, COUNT, 10**12):
            indices = np.array([3, wrong, 4])
            with pytest.raises(IndexError):
                opened.fetch(indices)
            if opened.payload_codec == "raw":
                with pytest.raises(IndexError):
                    opened.fetch_into(indices, np.empty((3, *SHAPE), dtype=np.uint8))
            np.testing.assert_array_equal(read_pixels(opened, [3]), small.pixels[[3]])
        assert opened.fetch(np.empty(0, np.int64)) == []

    def test_a_batch_takes_the_pixels_asked_for(self, small: SmallStore, opened: Reader) -> None:
        """It may have more rows; one that does not fit is refused, and any by a reader of encoded payloads."""
        indices, rows = np.array(ORDER), len(ORDER)
        whole = np.zeros((rows, *SHAPE), np.uint8)
        read_only = whole.copy()
        read_only.flags.writeable = False
        unfit: list[Any] = [
            whole[1:],
            np.zeros((rows, SHAPE[1], SHAPE[0], SHAPE[2]), np.uint8),
            np.zeros((rows, *SHAPE), np.float32),
            np.zeros((2 * rows, *SHAPE), np.uint8)[::2],
            read_only,
        ]
        for out in unfit if opened.payload_codec == "raw" else [whole]:
            with pytest.raises(ValueError, match="batch"):
                opened.fetch_into(indices, out)
            assert not out.any()
        if opened.payload_codec == "raw":
            batch = np.full((rows + 2, *SHAPE), 7, dtype=np.uint8)
            payload_bytes, decode_ns = opened.fetch_into(indices, batch)
            assert payload_bytes == small.pixels[ORDER].nbytes
            assert decode_ns >= 0
            np.testing.assert_array_equal(batch[:rows], small.pixels[ORDER])
            assert (batch[rows:] == 7).all()

    def test_what_was_fetched_is_private(self, small: SmallStore, reader: str, tmp_path: Path) -> None:
        """Later fetches, overwritten files and a closed reader do not change it; held pixels need no disk at all."""
        copied = Path(shutil.copytree(small.path, tmp_path / "copy"))
        opened = small.open(reader, copied)
        first = read_pixels(opened, [1, 2])
        payloads = opened.fetch(np.array([1, 2]))
        expected = [bytes(bytearray(payload)) for payload in payloads]
        read_pixels(opened, [3, 4])
        for path in small.format.data_files(copied):
            path.write_bytes(bytes(path.stat().st_size))
        if small.format.traits(reader).holds_pixels:
            np.testing.assert_array_equal(read_pixels(opened, range(COUNT)), small.pixels)
        opened.close()
        np.testing.assert_array_equal(first, small.pixels[[1, 2]])
        assert payloads == expected

    def test_a_plan_changes_no_answer(self, small: SmallStore, opened: Reader) -> None:
        """Whether it is followed, left, or replaced by another, and whichever thread asks."""
        batches = [np.array([1, 2, 3]), np.array([60, 0, 9]), np.array([4, 4])]
        opened.plan(batches)
        for indices in (batches[0], batches[1], np.array([30, 31]), batches[2]):
            with ThreadPoolExecutor(1) as other:
                pixels = other.submit(read_pixels, opened, indices.tolist()).result()
            np.testing.assert_array_equal(pixels, small.pixels[indices])
        opened.plan([])
        np.testing.assert_array_equal(read_pixels(opened, [8]), small.pixels[[8]])

    @RAW
    def test_options_are_accepted_by_their_names(self, small: SmallStore, reader: str) -> None:
        """Written out, the defaults mean what no options mean; a misspelt one is refused."""
        rows = small.format.readers()[reader].reader.options_type.rows()
        options = {name: row.text(row.default) for name, row in rows.items()}
        with small.format.reader(small.path, small.manifest, reader, options) as opened:
            assert opened.options == type(opened).options_type()
        assert all(row.meaning and row.allowed for row in rows.values())
        with pytest.raises(UsageError, match="no-such-option"):
            small.format.reader(small.path, small.manifest, reader, {"no-such-option": "1"})

    @RAW
    def test_a_store_may_be_open_twice_in_one_process(
        self, small: SmallStore, opened: Reader, reader: str
    ) -> None:
        """Closing one reader leaves the other alone."""
        with small.open(reader) as second:
            np.testing.assert_array_equal(read_pixels(second, [7]), small.pixels[[7]])
        np.testing.assert_array_equal(read_pixels(opened, [8]), small.pixels[[8]])

    def test_reading_leaves_nothing_behind(self, small: SmallStore, reader: str, temporary: Path) -> None:
        """No change of the store, no descriptor, no mapping, no temporary file; and closing twice is harmless."""
        with small.open(reader):
            pass  # libraries that are loaded now stay
        before, files, maps = fingerprint(small.path), open_files(), mapped_files()
        opened = small.open(reader)
        read_pixels(opened, range(COUNT))
        assert fingerprint(small.path) == before
        opened.close()
        opened.close()
        assert not left_open(files)
        assert mapped_files() == maps
        assert list(temporary.iterdir()) == []
        assert fingerprint(small.path) == before

    def test_several_processes_read_at_once(
        self, store_format: Format, reader: str, method: str, temporary: Path, tmp_path: Path
    ) -> None:
        """Each opens its own reader, as loader workers do, while this process has one open."""
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
        """The files that are evicted and counted are those that a cold epoch reads: a store with only these works.

        Files that a reader keeps besides are outside the store.
        """
        bare = tmp_path / "bare"
        files = small.format.data_files(small.path)
        for path in files:
            target = bare / path.relative_to(small.path)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)
        with small.open(reader, bare) as opened:
            np.testing.assert_array_equal(read_pixels(opened, range(COUNT)), small.pixels)
            kept = type(opened).index_files(bare)
            assert all(path.is_file() and bare not in path.parents for path in kept)
            ahead_bytes = type(opened).ahead_bytes(opened.options, small.manifest)
            assert ahead_bytes == 0 or (ahead_bytes > 0 and opened.looks_ahead())

    @pytest.mark.parametrize("damage", ["missing", "truncated", "empty"])
    def test_a_damaged_store_never_serves_wrong_samples(
        self, small: SmallStore, reader: str, damage: str, tmp_path: Path, temporary: Path
    ) -> None:
        """Whichever of its files is damaged: one clear error, or every sample is right."""
        refusals = 0
        files = small.format.data_files(small.path)
        for path in [*files[:2], *files[-2:]]:
            copy = Path(shutil.copytree(small.path, tmp_path / f"copy-{path.name}", dirs_exist_ok=True))
            damaged = copy / path.relative_to(small.path)
            if damage == "missing":
                damaged.unlink()
            else:
                content = damaged.read_bytes()
                damaged.write_bytes(content[: len(content) // 2] if damage == "truncated" else b"")
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

    @RAW
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

    def test_a_whole_store_is_found_sound(self, small: SmallStore) -> None:
        """By `check_structure`, by `locate` and by the auditor, through which it is verified."""
        small.format.check_structure(small.path)
        for index in (0, COUNT - 1):
            path = small.format.locate(small.path, small.manifest, index)
            assert path.exists()
            assert path == small.path or small.path in path.parents
        with small.format.auditor(small.path, small.manifest) as auditor:
            np.testing.assert_array_equal(read_pixels(auditor, range(COUNT)), small.pixels)
            np.testing.assert_array_equal(auditor.labels, small.labels)

    @RAW
    def test_windows_are_those_of_the_whole_images(self, small: SmallStore, opened: Reader) -> None:
        """In any mixture with calls for whole images, each one batch of the plan."""
        batches = [np.array(ORDER), np.arange(16), np.arange(16, 40), np.arange(40, COUNT)]
        opened.plan(batches)
        for number, batch in enumerate(batches):
            if number % 2 and opened.serves_windows:
                np.testing.assert_array_equal(read_pixels(opened, batch.tolist()), small.pixels[batch])
                continue
            windows = some_windows(len(batch), seed=number)
            out = np.full((len(batch) + 2, *WINDOW, SHAPE[2]), 7, np.uint8)
            if not opened.serves_windows:
                with pytest.raises(ValueError, match="whole images"):
                    opened.fetch_windows(batch, windows, out)
                continue
            assert opened.fetch_windows(batch, windows, out) == (small.pixels[batch].nbytes, 0)
            np.testing.assert_array_equal(out[:-2], sliced(small.pixels[batch], windows))
            assert (out[-2:] == 7).all()

    @RAW
    def test_impossible_windows_are_refused(self, opened: Reader) -> None:
        """Outside of the images, of no sample, too few of them, or into a batch of another shape."""
        indices, out = np.array([3, 4]), np.zeros((2, *WINDOW, SHAPE[2]), np.uint8)
        windows, (height, width) = some_windows(2), WINDOW
        for place in ((-1, 0, 0), (0, -1, 1), (SHAPE[0] - height + 1, 0, 0), (0, SHAPE[1] - width + 1, 1)):
            beyond = Windows(places=np.array([(0, 0, 0), place]), height=height, width=width)
            with pytest.raises(ValueError, match="window"):
                opened.fetch_windows(indices, beyond, out)
        with pytest.raises((IndexError, ValueError)):
            opened.fetch_windows(np.array([3, COUNT]), windows, out)
        with pytest.raises(ValueError, match="1 windows for 2 samples"):
            opened.fetch_windows(indices, some_windows(1), out)
        for unfit in (out[1:], out[:, :, ::-1], np.zeros((2, *SHAPE), np.uint8)):
            with pytest.raises(ValueError, match="batch"):
                opened.fetch_windows(indices, windows, unfit)


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder
