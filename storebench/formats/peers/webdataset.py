"""WebDataset: tar files of samples, one member per field, read as a stream through its own pipeline."""

import gc
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from storebench.codecs import any_size
from storebench.datasets.images import suffix_of
from storebench.formats.base import FormatInfo, ReaderInfo, Traits
from storebench.formats.common import damaged
from storebench.formats.peers.rows import ERRORS, PeerFormat
from storebench.formats.peers.stream import SHARD_BYTES, Numbered, ShardsWriter, StreamReader, T
from storebench.formats.reader import Seed

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
    """The library's pipeline: shuffled shards, then its shuffle buffer."""

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
        from webdataset import WebDataset

        names = list(map(str, self.shards))
        dataset = WebDataset(
            names, shardshuffle=False if seed is None else len(names), seed=_number(seed or ())
        )
        dataset = dataset.compose(self._numbered)
        if seed is not None:
            dataset = dataset.shuffle(self.options.buffer, seed=_number(seed))
        failure = ""
        try:
            yield from dataset
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
        summary="WebDataset(shardshuffle).shuffle(buffer): its own order",
        traits=Traits(native_order=True),
        note="samples stay near those of their shard; scattered reads go through the shards from the beginning",
    )
