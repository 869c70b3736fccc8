"""Windows of images: the kernel, the code without it and plain slices agree, and nothing outside is touched."""

import ctypes
import mmap
import multiprocessing
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storebench.formats import windows as windows_module
from storebench.formats.base import Batch, Fetched, Indices, Reader
from storebench.formats.memory.format import MemoryNativeReader, MemoryPythonReader
from storebench.formats.registry import get_format
from storebench.formats.windows import Windows
from storebench.system.kernel import load_kernel
from storebench.testing.stores import build_small_store, sliced

needs_kernel = pytest.mark.skipif(load_kernel() is None, reason="the kernel is not built")


@st.composite
def cases(draw: st.DrawFn) -> tuple[Batch, Windows]:
    """Draw images of any shape, and windows into them."""
    count, height, width = draw(st.integers(0, 4)), draw(st.integers(1, 6)), draw(st.integers(1, 40))
    rows, columns = height + draw(st.integers(0, 3)), width + draw(st.integers(0, 3))
    channels, seed = draw(st.sampled_from([1, 2, 3, 4])), draw(st.integers(0, 9))
    rng = np.random.default_rng(seed)
    images = rng.integers(0, 256, (count, rows, columns, channels), dtype=np.uint8)
    places = rng.integers(0, (rows - height + 1, columns - width + 1, 2), (count, 3))
    return images, Windows(places=places, height=height, width=width)


def batch_for(images: Batch, windows: Windows, fill: int = 7) -> Batch:
    return np.full((len(images), windows.height, windows.width, images.shape[3]), fill, np.uint8)


@given(cases())
def test_three_ways_cut_the_same_pixels(case: tuple[Batch, Windows]) -> None:
    images, windows = case
    expected = sliced(images, windows) if len(images) else batch_for(images, windows)
    guarded = np.full((len(images) + 2, *expected.shape[1:]), 9, np.uint8)
    windows.cut(images, guarded[1:-1])
    np.testing.assert_array_equal(guarded[1:-1], expected)
    assert (guarded[[0, -1]] == 9).all(), "it wrote beyond the batch"
    slow = batch_for(images, windows)
    windows.cut_without_kernel(images, slow)
    np.testing.assert_array_equal(slow, expected)
    each = batch_for(images, windows)
    windows.copy_each([image.reshape(-1) for image in images], images.shape[1:], each)
    np.testing.assert_array_equal(each, expected)


@pytest.mark.parametrize("compiled", [pytest.param(True, marks=needs_kernel), False])
def test_without_a_kernel_the_same_is_cut_and_the_same_refused(
    compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not compiled:
        monkeypatch.setattr(windows_module, "load_kernel", lambda: None)
    images = np.random.default_rng(0).integers(0, 256, (3, 8, 9, 3), dtype=np.uint8)
    images.flags.writeable = False  # as a mapped file is
    windows = Windows(places=np.array([(1, 2, 1), (0, 0, 0), (4, 1, 1)]), height=4, width=7)
    out = batch_for(images, windows)
    windows.copy(images.reshape(-1), np.arange(3) * images[0].size, (8, 9, 3), out)
    np.testing.assert_array_equal(out, sliced(images, windows))
    for offsets in ([0, 216, 433], [-1, 0, 0]):
        with pytest.raises(ValueError, match="not inside"):
            windows.copy(images.reshape(-1), np.array(offsets), (8, 9, 3), out)
    with pytest.raises(ValueError, match="not inside"):
        Windows(places=np.array([(0, 3, 0)] * 3), height=4, width=7).cut(images, out)


def _cut_at_the_edge(width: int) -> None:
    """Cut mirrored windows out of images that end where this process's memory does; a further byte would kill it."""
    pages = mmap.mmap(-1, 3 * mmap.PAGESIZE)
    memory = np.frombuffer(pages, np.uint8)
    size = 2 * width * 3
    hole = memory.ctypes.data + mmap.PAGESIZE
    ctypes.CDLL(None).mprotect(ctypes.c_void_p(hole), ctypes.c_size_t(mmap.PAGESIZE), 0)
    before, after = memory[mmap.PAGESIZE - size : mmap.PAGESIZE], memory[2 * mmap.PAGESIZE :][:size]
    windows = Windows(places=np.array([(0, 0, 1)]), height=2, width=width)
    for image in (before, after):
        out = np.zeros((1, 2, width, 3), np.uint8)
        windows.copy(image, np.array([0]), (2, width, 3), out)
        windows.copy(out.reshape(-1), np.array([0]), (2, width, 3), image.reshape(1, 2, width, 3))


def test_no_byte_outside_of_an_image_is_touched() -> None:
    """Tried in another process, for widths around a vector's."""
    for width in (1, 4, 5, 6, 7, 11, 12, 16, 17, 227):
        process = multiprocessing.get_context("fork").Process(target=_cut_at_the_edge, args=(width,))
        process.start()
        process.join()
        assert process.exitcode == 0, width


@pytest.mark.parametrize(
    "backend", ["lmdb:get", "lmdb:direct", "memory:native", "memory:shared", "hdf5:direct"]
)
def test_large_images_are_served_as_windows(backend: str, tmp_path: Path) -> None:
    name, _, reader = backend.partition(":")
    small = build_small_store(get_format(name), "raw", tmp_path, count=9, shape=(120, 100, 3))
    order = np.array([8, 0, 3, 3])
    places = np.array([(0, 0, 1), (20, 10, 0), (7, 3, 1), (13, 9, 0)])
    windows = Windows(places=places, height=100, width=90)
    out = np.zeros((4, 100, 90, 3), np.uint8)
    with small.open(reader) as opened:
        assert opened.serves_windows
        assert opened.fetch_windows(order, windows, out) == (small.pixels[order].nbytes, 0)
        with pytest.raises(IndexError):
            opened.fetch_windows(np.array([8, 9, 3, 3]), windows, out)
    np.testing.assert_array_equal(out, sliced(small.pixels[order], windows))


class Brightening(MemoryNativeReader):
    """Serve other images than its parent."""

    def _fetch_into(self, indices: Indices, out: Batch) -> Fetched:
        fetched = super()._fetch_into(indices, out)
        out += 1
        return fetched


@pytest.mark.parametrize(
    ("kind", "served"),
    [(MemoryNativeReader, True), (MemoryPythonReader, False), (Brightening, False)],
)
def test_a_reader_of_other_images_does_not_inherit_windows(
    kind: type[Reader], served: bool, tmp_path: Path
) -> None:
    small = build_small_store(get_format("memory"), "raw", tmp_path, count=3)
    with kind(small.path, small.manifest, kind.options_type()) as opened:
        assert opened.serves_windows is served
