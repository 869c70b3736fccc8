"""Small stores with known samples, and probes of a process for the contract's tests."""

import hashlib
import os
import signal
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from storebench._version import __version__
from storebench.codecs import get_codec
from storebench.datasets.base import DatasetInfo, Image, Origin, Provenance
from storebench.formats.base import Batch, Format, Indices, Reader
from storebench.formats.registry import get_format
from storebench.formats.windows import Windows
from storebench.record.manifest import Manifest, StoreSpec
from storebench.settings.words import Split

COUNT = 67
SHAPE = (40, 32, 3)
WINDOW = (23, 19)
CLASS_NAMES = ("cat", "dog & puppy", "dog/puppy", "..")


@dataclass(frozen=True, kw_only=True)
class SmallStore:
    """A store of random samples, and their right pixels and labels.

    Attributes
    ----------
    payloads
        The samples that were given to the writer.
    pixels
        Decoded payloads, uint8 [N, H, W, C].
    labels
        int64 [N].
    """

    format: Format
    path: Path
    manifest: Manifest
    payloads: list[bytes]
    pixels: Batch
    labels: Indices

    def open(self, reader: str | None = None, store: Path | None = None) -> Reader:
        """Open the store, or a copy of it at `store`."""
        return self.format.reader(store or self.path, self.manifest, reader)


def local_readers(store_format: Format) -> list[str]:
    """Return the names of the readers that read from this machine's disk."""
    return [name for name, info in store_format.readers().items() if not info.traits.remote]


def sample_images(count: int, shape: tuple[int, int, int], seed: int = 0) -> list[Image]:
    """Return noisy gradients, each different: uint8 [H, W, C], compressible as photographs are."""
    rng = np.random.default_rng(seed)
    ramp = np.add.outer(np.arange(shape[0]) * 2, np.arange(shape[1]) * 3)[:, :, None]
    return [((ramp + start + rng.integers(0, 9, shape)) % 256).astype(np.uint8) for start in range(count)]


def dataset_info(count: int, shape: tuple[int, int, int]) -> DatasetInfo:
    """Return the geometry of such images; the class names are not all good as folder names."""
    return DatasetInfo(
        name="contract",
        split=Split.TRAIN,
        count=count,
        image_shape=shape,
        class_names=CLASS_NAMES,
        provenance=Provenance(origin=Origin.SYNTHETIC, source="noisy gradients"),
        fingerprint=f"contract-{count}-{shape}",
    )


def build_small_store(
    store_format: Format,
    codec: str,
    folder: Path,
    *,
    count: int = COUNT,
    shape: tuple[int, int, int] = SHAPE,
) -> SmallStore:
    """Write a store with a manifest into the empty `folder`."""
    info = dataset_info(count, shape)
    images = sample_images(count, shape)
    labels = np.random.default_rng(1).integers(0, len(CLASS_NAMES), count)
    payloads = [get_codec(codec).encode(image) for image in images]
    spec = StoreSpec(dataset=info, format=store_format.info.name, codec=codec)
    with store_format.writer(folder, spec) as writer:
        for payload, label in zip(payloads, labels.tolist(), strict=True):
            writer.append(payload, label)
    stats = [path.stat() for path in store_format.data_files(folder)]
    manifest = Manifest(
        dataset=info,
        format=spec.format,
        codec=codec,
        count=count,
        payload_bytes=sum(map(len, payloads)),
        file_bytes=sum(stat.st_size for stat in stats),
        bytes_on_disk=sum(stat.st_blocks * 512 for stat in stats),
        samples_digest="0" * 32,
        lossless=get_codec(codec).lossless,
        build_s=0.0,
        created_utc="2026-01-01T00:00:00+00:00",
        storebench_version=__version__,
    )
    manifest.write(folder)
    pixels = decode(codec, payloads, shape)
    return SmallStore(
        format=store_format, path=folder, manifest=manifest, payloads=payloads, pixels=pixels, labels=labels
    )


def decode(codec: str, payloads: Sequence[bytes], shape: tuple[int, int, int]) -> Batch:
    """Return the payloads' pixels, uint8 [n, H, W, C]."""
    pixels = np.zeros((len(payloads), *shape), dtype=np.uint8)
    for payload, out in zip(payloads, pixels, strict=True):
        get_codec(codec).decode_into(payload, out)
    return pixels


def read_pixels(reader: Reader, indices: Sequence[int]) -> Batch:
    """Return the pixels of `indices` as a loader would read them: uint8 [n, H, W, C]."""
    wanted = np.asarray(indices, dtype=np.int64)
    shape = reader.manifest.dataset.image_shape
    if reader.payload_codec != "raw":
        return decode(reader.payload_codec, reader.fetch(wanted), shape)
    out = np.zeros((len(wanted), *shape), dtype=np.uint8)
    reader.fetch_into(wanted, out)
    return out


def some_windows(count: int, seed: int = 0) -> Windows:
    """Return windows of the size `WINDOW` into images of `SHAPE`, half of them mirrored."""
    height, width = WINDOW
    rng = np.random.default_rng(seed)
    places = rng.integers(0, (SHAPE[0] - height + 1, SHAPE[1] - width + 1, 2), (count, 3))
    return Windows(places=places, height=height, width=width)


def sliced(images: Batch, windows: Windows) -> Batch:
    """Return the windows of images, uint8 [n, h, w, C], by plain slices."""
    cut = []
    for image, (top, left, mirrored) in zip(images, windows.places.tolist(), strict=True):
        window = image[top : top + windows.height, left : left + windows.width]
        cut.append(window[:, ::-1] if mirrored else window)
    return np.stack(cut)


def read_digest(format_name: str, reader_name: str, store: Path, seed: int) -> str:
    """Open a store, read it all in a seeded order, and return the digest in the order of the samples.

    A function of a module, so that spawned processes can be given it.
    """
    manifest = Manifest.read(store)
    order = np.random.default_rng(seed).permutation(manifest.count)
    with get_format(format_name).reader(store, manifest, reader_name) as reader:
        pixels = read_pixels(reader, order.tolist())
    return hashlib.blake2b(pixels[np.argsort(order)].tobytes()).hexdigest()


def read_and_be_killed(format_name: str, reader_name: str, store: Path, connection: Any) -> None:
    """Open a store, read from it, report that, and die without cleaning up."""
    manifest = Manifest.read(store)
    reader = get_format(format_name).reader(store, manifest, reader_name)
    read_pixels(reader, [0, manifest.count - 1])
    connection.send("read")
    os.kill(os.getpid(), signal.SIGKILL)


def open_files() -> list[str]:
    """Return the files that this process's descriptors point to, without pipes, sockets and the like."""
    files = []
    for handle in Path("/proc/self/fd").iterdir():
        try:
            target = str(handle.readlink())
        except FileNotFoundError:
            continue  # the descriptor of this listing
        if target.startswith("/") and not target.startswith(("/proc", "/dev")):
            files.append(target)
    return sorted(files)


def left_open(before: Sequence[str], within_s: float = 5) -> list[str]:
    """Return the files that are open now and were not before, once a library's threads had time to close theirs."""
    deadline = time.monotonic() + within_s
    while (left := Counter(open_files()) - Counter(before)) and time.monotonic() < deadline:
        time.sleep(0.01)
    return list(left.elements())


def mapped_files() -> list[str]:
    """Return the files that this process has mapped."""
    lines = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    return sorted({line.split(maxsplit=5)[5] for line in lines if len(line.split(maxsplit=5)) == 6})


def fingerprint(folder: Path) -> dict[Path, tuple[int, bytes]]:
    """Return modification time and content of every file of a folder."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in files}
