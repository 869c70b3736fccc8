"""WebDataset: tar files of samples, one member per field, read as a stream through its own pipeline."""

import gc
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from storebench.codecs import any_size
from storebench.datasets.images import suffix_of
from storebench.datasets.sources import members, open_source
from storebench.formats.base import FormatInfo, ReaderInfo, Traits
from storebench.formats.common import damaged, load_integers, load_labels
from storebench.formats.peers.rows import ERRORS, LABELS_FILE, PeerFormat, required
from storebench.formats.peers.stream import SHARD_BYTES, SHARDS_FILE, Numbered, ShardsWriter, StreamReader, T
from storebench.formats.reader import Seed
from storebench.formats.remote import Piece, RemoteReader, ranges_of

EXTENSIONS = {"raw": "bin", "png": "png", "jpeg": "jpg"}


class WebDatasetWriter(ShardsWriter):
    """Write ``{key}.jpg`` and ``{key}.cls`` through the library's ShardWriter."""

    def _start(self) -> None:
        from webdataset import ShardWriter

        super()._start()
        self._file: IO[bytes] | None = None
        self._writer = ShardWriter(
            str(self.folder / "%06d.tar"),
            maxcount=self.most,
            maxsize=SHARD_BYTES,
            opener=self._open,
            verbose=0,
            mtime=0.0,  # a time with a fraction, the library's default, costs a header of 1.5 KB per member
        )

    def _put(self, payload: bytes, label: int) -> None:
        codec = self.spec.codec
        name = suffix_of(payload[:12]).lstrip(".") if any_size(codec) else EXTENSIONS[codec]
        self._writer.write({"__key__": f"{len(self.labels):08d}", name: payload, "cls": str(label)})
        self.sizes[self._writer.shard - 1 :] = [self._writer.count]

    def _release(self) -> None:
        try:
            self._writer.close()
        finally:
            self._close_file()

    def _open(self, name: str) -> IO[bytes]:
        self._close_file()
        self._file = Path(name).open("xb")  # noqa: SIM115 - open until the next one
        return self._file

    def _close_file(self) -> None:
        """Close the last shard: the library finishes it, and leaves a file that it has not opened itself open."""
        if self._file is not None:
            self._file.close()


class WebDatasetReader(StreamReader):
    """The stages of the library's pipeline: shuffled shards, members, samples, then its shuffle buffer."""

    library = "WebDataset"
    library_errors = (tarfile.TarError, *ERRORS)

    @staticmethod
    def shard_name(number: int) -> str:
        return f"{number:06d}.tar"

    @staticmethod
    def shuffled_shards(shards: list[T], seed: Seed) -> list[T]:
        from webdataset import shuffle

        return list(shuffle(len(shards), seed=_number(seed))(iter(shards)))

    @staticmethod
    def shuffled(samples: Iterator[T], buffer: int, seed: Seed) -> Iterator[T]:
        from webdataset import shuffle

        shuffled: Iterator[T] = shuffle(buffer, seed=_number(seed))(samples)
        return shuffled

    def _serve(self, seed: Seed | None) -> Iterator[Numbered]:
        from webdataset.tariterators import group_by_keys, tar_file_expander

        order = list(self.shards) if seed is None else self.shuffled_shards(list(self.shards), seed)
        shards = ({"url": str(path), "stream": file} for path, file in self._files(order))
        samples = self._numbered(group_by_keys(tar_file_expander(shards)))
        failure = ""
        try:
            yield from samples if seed is None else self.shuffled(samples, self.options.buffer, seed)
        except self.library_errors as error:
            failure = str(error.args[0]) if error.args else type(error).__name__
        if failure:
            gc.collect()  # the library leaves the shard open in frames that refer to each other
            raise damaged(f"WebDataset cannot read samples ({failure})", self.store)

    def _numbered(self, samples: Iterator[dict[str, Any]]) -> Iterator[Numbered]:
        """Yield the numbers and images of samples as they come from the shards."""
        for sample in samples:
            image = next(name for name in sample if name != "cls" and not name.startswith("__"))
            yield int(sample["__key__"]), sample[image]


def _number(seed: Seed) -> int:
    """Return one number for the library's generator."""
    return int("".join(f"{part:020d}" for part in seed) or 0)


class WebDatasetRangesReader(RemoteReader):
    """A range of a shard per sample; where the members are is read from the shards on this disk."""

    def _open_index(self) -> None:
        self.labels = load_labels(self.store / LABELS_FILE, self.manifest.count)
        self._pieces: list[Piece] = []
        for number in range(len(load_integers(self.store / SHARDS_FILE))):
            path = required(self.store / WebDatasetReader.shard_name(number))
            with open_source(path) as stream:
                images = (part for part in members(stream, str(path)) if not part.name.endswith(".cls"))
                self._pieces += [Piece(path.name, image.offset, image.size) for image in images]
        if len(self._pieces) != self.manifest.count:
            raise damaged(
                f"{len(self._pieces)} samples where {self.manifest.count} were expected", self.store
            )

    def _piece(self, number: int) -> Piece:
        return self._pieces[number]


class WebDatasetFormat(PeerFormat):
    info = FormatInfo(
        name="webdataset",
        summary="tar shards of at most 100 MB, an eighth of the samples or less, with members KEY.jpg and KEY.cls",
        default_codec="jpeg",
        default_reader="stream",
    )
    writes = WebDatasetWriter
    reads = ReaderInfo(
        reader=WebDatasetReader,
        summary="its tar reader behind shuffled shards and before its shuffle buffer: its own order",
        traits=Traits(native_order=True, served=True),
        note="samples stay near those of their shard; scattered reads go through the shards from the beginning",
    )

    def readers(self) -> Mapping[str, ReaderInfo]:
        return {**super().readers(), "ranges": ranges_of(WebDatasetRangesReader)}
