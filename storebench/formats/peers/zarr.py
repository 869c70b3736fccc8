"""Zarr v3: one chunk per image in shards, written by zarr-python, read by it or by TensorStore."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from storebench.arrays import Indices, Pixels
from storebench.formats.base import Batch, Fetched, FormatInfo, ReaderInfo, Traits
from storebench.formats.common import damaged
from storebench.formats.peers.rows import IMAGE, LABEL, PeerFormat, Row, RowsReader, required
from storebench.formats.peers.writers import PackedWriter
from storebench.places.objects import S3Address, obstore_of

FOLDER, LENGTH = "data.zarr", "length"
SHARD_BYTES = 64 << 20


class ZarrWriter(PackedWriter):
    """Keep the payloads in a file until their greatest length is known: Zarr pads them, and compresses the padding."""

    file_name = "unfinished.bin"

    def _finish(self) -> None:
        import zarr

        super()._finish()
        lengths = np.diff(self.offsets)
        count, longest = len(lengths), int(lengths.max())
        shape = self.shape[1:] if self.shape else (longest,)
        rows = min(count, max(1, SHARD_BYTES // longest))
        group = zarr.create_group(self.folder / FOLDER, zarr_format=3)
        group.create_array(LABEL, data=np.asarray(self.labels, np.int64))
        group.create_array(LENGTH, data=lengths)
        images = group.create_array(
            IMAGE, shape=(count, *shape), dtype="uint8", chunks=(1, *shape), shards=(rows, *shape)
        )
        payloads = self.folder / self.file_name
        with payloads.open("rb") as file:
            for start in range(0, count, rows):
                block = np.zeros((min(rows, count - start), longest), np.uint8)
                for row, length in zip(block, lengths[start : start + rows], strict=True):
                    file.readinto(row[:length].data)
                images[start : start + rows] = block.reshape(-1, *shape)
        payloads.unlink()


class ZarrReader(RowsReader):
    """One orthogonal selection per batch, through zarr-python."""

    library = "zarr"

    def _open(self) -> Any:
        import zarr

        folder: Any = self.store / FOLDER
        for name in (LABEL, LENGTH, IMAGE):
            _require_chunks(folder / name)
        if self.url:
            folder = zarr.storage.ObjectStore(obstore_of(self.there(FOLDER)), read_only=True)
        self._lengths = zarr.open_array(folder, path=LENGTH, mode="r")[:].tolist()
        self._require_all(self._lengths, range(self.manifest.count))
        self._images = self._open_images(folder)
        self.hold("_images")
        longest = max(self._lengths)
        shape = self.image_shape if self.payload_codec == "raw" else (longest,)
        if tuple(self._images.shape) != (self.manifest.count, *shape):
            raise damaged(f"images {tuple(self._images.shape)} of another shape", self.store)
        return zarr.open_array(folder, path=LABEL, mode="r")[:]

    def _open_images(self, folder: Any) -> Any:
        """Open the array of images in a folder, or in zarr's store of one."""
        import zarr

        return zarr.open_array(folder, path=IMAGE, mode="r")

    def _read(self, numbers: list[int], out: Pixels) -> None:
        out[:] = self._images.oindex[numbers]

    def _fetch_into(self, indices: Indices, out: Batch) -> Fetched:
        numbers = self._checked(indices)
        with self._damage("cannot read samples"):
            self._read(numbers, out)
        return Fetched(out.nbytes)

    def _rows(self, numbers: list[int]) -> Sequence[Row]:
        rows = np.empty((len(numbers), *self._images.shape[1:]), np.uint8)
        self._read(numbers, rows)
        return [row[: self._lengths[number]].data for row, number in zip(rows, numbers, strict=True)]


def _require_chunks(path: Path) -> None:
    """Raise `CorruptStoreError` if a file of an array is missing: Zarr reads zeros there."""
    import zarr

    required(path / "zarr.json")
    array = zarr.open_array(path, mode="r")
    edge = (array.shards or array.chunks)[0]
    for number in range(-(-array.shape[0] // edge)):
        chunk = path / "c" / str(number) / "/".join("0" * (array.ndim - 1))
        if not required(chunk).stat().st_size:
            raise damaged("the file is empty", chunk)


class TensorStoreReader(ZarrReader):
    """One read per batch, through TensorStore, straight into the batch."""

    library = "TensorStore"

    def _open_images(self, folder: Any) -> Any:  # noqa: ARG002 - zarr's
        import tensorstore

        files: dict[str, Any] = {"driver": "file", "path": str((self.store / FOLDER / IMAGE).absolute())}
        if self.url:
            at = S3Address.of(self.there(f"{FOLDER}/{IMAGE}"))
            files = {"driver": "s3", "bucket": at.bucket, "path": f"{at.key}/", "endpoint": at.endpoint}
            files |= {"aws_region": at.region, "s3_request_retries": {"max_retries": 3}}
            if at.anonymous:
                files["aws_credentials"] = {"type": "anonymous"}
        return tensorstore.open({"driver": "zarr3", "kvstore": files}, read=True).result()

    def _read(self, numbers: list[int], out: Pixels) -> None:
        import tensorstore

        tensorstore.array(out).write(self._images[numbers]).result()


class ZarrFormat(PeerFormat):
    info = FormatInfo(
        name="zarr",
        summary="Zarr v3: image [N,H,W,C], or payloads [N,longest]; one chunk per image, shards of 64 MiB",
        default_codec="raw",
        default_reader="zarr",
    )
    writes = ZarrWriter
    reads = ReaderInfo(
        reader=ZarrReader,
        summary="zarr-python's oindex, one call per batch",
        traits=Traits(served=True),
        note="about a millisecond per sample in Python, whatever its size",
    )

    def readers(self) -> Mapping[str, ReaderInfo]:
        tensorstore = ReaderInfo(
            reader=TensorStoreReader,
            summary="TensorStore, one read per batch, without a cache",
            traits=Traits(forks=False, served=True),
            note="its threads read and decompress the samples of a batch at the same time",
        )
        return {**super().readers(), "tensorstore": tensorstore}
