"""Write the dataset files that the world has, byte by byte, and damage them."""

import io
import struct
import tarfile
from pathlib import Path

import numpy as np
from hypothesis import strategies as st
from PIL import Image as PilImage

from storebench.datasets.base import Dataset
from storebench.digests import sample_digest


def idx(array: np.ndarray) -> bytes:
    """Return an IDX file of unsigned bytes."""
    return bytes((0, 0, 8, array.ndim)) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def pixels(count: int, *shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, *shape), dtype=np.uint8)


def labels(count: int) -> np.ndarray:
    return (np.arange(count) * 7 % 10).astype(np.uint8)


def write_mnist(folder: Path, train: int = 7, test: int = 3) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for prefix, count in (("train", train), ("t10k", test)):
        (folder / f"{prefix}-images-idx3-ubyte").write_bytes(idx(pixels(count, 28, 28, seed=count)))
        (folder / f"{prefix}-labels-idx1-ubyte").write_bytes(idx(labels(count)))


def cifar_binary(planar: np.ndarray, classes: np.ndarray) -> bytes:
    return np.concatenate([classes[:, None], planar.reshape(len(planar), -1)], axis=1).tobytes()


def _string(value: bytes) -> bytes:
    return b"T" + struct.pack("<i", len(value)) + value


def _int(value: int) -> bytes:
    return b"J" + struct.pack("<i", value)


def cifar_pickle(planar: np.ndarray, classes: np.ndarray) -> bytes:
    """Return what Python 2's cPickle wrote at protocol 2: byte strings and a numpy array."""
    dtype = (
        b"cnumpy\ndtype\n(" + _string(b"u1") + b"K\x00K\x01tR"
        b"(K\x03" + _string(b"|") + b"NNN" + _int(-1) + _int(-1) + b"K\x00tb"
    )
    array = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(K\x00t" + _string(b"b") + b"tR"
    shape = b"(" + _int(len(planar)) + _int(3072) + b"t"
    array += b"(K\x01" + shape + dtype + b"\x89" + _string(planar.tobytes()) + b"tb"
    items = _string(b"data") + array
    items += _string(b"labels") + b"](" + b"".join(_int(int(label)) for label in classes) + b"e"
    items += _string(b"batch_label") + _string(b"training batch 1 of 5")
    return b"\x80\x02}(" + items + b"u."


def tar(files: dict[str, bytes], layout: int = tarfile.USTAR_FORMAT) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=layout) as archive:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def image_file(
    mode: str = "RGB", size: tuple[int, int] = (40, 30), kind: str = "JPEG", seed: int = 0, **options: object
) -> bytes:
    buffer = io.BytesIO()
    picture = PilImage.fromarray(pixels(size[1], size[0], 3, seed=seed)).resize(size).convert(mode)
    picture.save(buffer, kind, **options)
    return buffer.getvalue()


def write_class_folders(root: Path, classes: dict[str, int]) -> None:
    for number, (name, count) in enumerate(classes.items()):
        (root / name).mkdir(parents=True)
        for index in range(count):
            (root / name / f"{name}_{index}.JPEG").write_bytes(image_file(seed=100 * number + index))


def digests(dataset: Dataset) -> list[bytes]:
    return [sample_digest(*dataset.sample(index)) for index in range(len(dataset))]


def damaged(valid: bytes) -> st.SearchStrategy[bytes]:
    """Return a strategy of `valid` cut short, with bytes overwritten, or with bytes added."""
    places = st.integers(0, len(valid) - 1)

    def overwrite(changes: list[tuple[int, int]]) -> bytes:
        changed = bytearray(valid)
        for place, value in changes:
            changed[place] = value
        return bytes(changed)

    return st.one_of(
        places.map(lambda place: valid[:place]),
        st.lists(st.tuples(places, st.integers(0, 255)), min_size=1, max_size=4).map(overwrite),
        # Headers are short: most random changes would only hit the pixels.
        st.lists(st.tuples(st.integers(0, min(600, len(valid) - 1)), st.integers(0, 255)), max_size=4).map(
            overwrite
        ),
        st.binary(min_size=1, max_size=40).map(lambda tail: valid + tail),
        st.binary(max_size=200),
    )
