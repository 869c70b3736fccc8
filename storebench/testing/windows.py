"""Windows of images, as tests: a part of the contract of a storage format."""

from collections.abc import Sequence

import numpy as np
import pytest

from storebench.formats.base import Batch, Reader
from storebench.formats.windows import Windows
from storebench.testing.stores import COUNT, SHAPE, SmallStore, read_pixels

HEIGHT, WIDTH = 23, 19

ORDER = [5, COUNT - 1, 0, 5, 17, 5]


def some_windows(count: int, seed: int = 0) -> Windows:
    """Return windows of `HEIGHT` rows and `WIDTH` columns into images of `SHAPE`, half of them mirrored."""
    rng = np.random.default_rng(seed)
    places = rng.integers(0, (SHAPE[0] - HEIGHT + 1, SHAPE[1] - WIDTH + 1, 2), (count, 3))
    return Windows(places=places, height=HEIGHT, width=WIDTH)


def sliced(images: Sequence[Batch] | Batch, windows: Windows) -> Batch:
    """Return the windows of images, uint8 [n, h, w, C], by plain slices."""
    cut = []
    for image, (top, left, mirrored) in zip(images, windows.places.tolist(), strict=True):
        window = image[top : top + windows.height, left : left + windows.width]
        cut.append(window[:, ::-1] if mirrored else window)
    return np.stack(cut)


class WindowsContract:
    """What a reader promises that copies windows of images, and what one says that does not; see `FormatContract`."""

    def test_windows_are_those_of_the_whole_images(self, small: SmallStore, opened: Reader) -> None:
        """In the order of the indices; and payload is counted as for whole images."""
        out = np.full((len(ORDER) + 2, HEIGHT, WIDTH, SHAPE[2]), 7, np.uint8)
        windows = some_windows(len(ORDER))
        if not opened.serves_windows:
            with pytest.raises(ValueError, match="whole images"):
                opened.fetch_windows(np.array(ORDER), windows, out)
            return
        assert opened.fetch_windows(np.array(ORDER), windows, out) == (small.pixels[ORDER].nbytes, 0)
        np.testing.assert_array_equal(out[:-2], sliced(small.pixels[ORDER], windows))
        assert (out[-2:] == 7).all()

    def test_a_call_for_windows_is_one_batch_of_the_plan(self, small: SmallStore, opened: Reader) -> None:
        """In any mixture with calls for whole images."""
        if not opened.serves_windows:
            pytest.skip("this reader serves no windows")
        batches = [np.arange(at, min(at + 16, COUNT)) for at in range(0, COUNT, 16)]
        opened.plan(batches)
        for number, batch in enumerate(batches):
            if number % 3 == 1:
                np.testing.assert_array_equal(read_pixels(opened, batch.tolist()), small.pixels[batch])
                continue
            windows = some_windows(len(batch), seed=number)
            out = np.empty((len(batch), HEIGHT, WIDTH, SHAPE[2]), np.uint8)
            opened.fetch_windows(batch, windows, out)
            np.testing.assert_array_equal(out, sliced(small.pixels[batch], windows))

    def test_impossible_windows_are_refused(self, small: SmallStore, opened: Reader) -> None:
        """Outside of the images, of no sample, too few of them, or into a batch of another shape."""
        if not opened.serves_windows:
            pytest.skip("this reader serves no windows")
        indices, out = np.array([3, 4]), np.zeros((2, HEIGHT, WIDTH, SHAPE[2]), np.uint8)
        windows = some_windows(2)
        for place in ((-1, 0, 0), (0, -1, 1), (SHAPE[0] - HEIGHT + 1, 0, 0), (0, SHAPE[1] - WIDTH + 1, 1)):
            beyond = Windows(places=np.array([(0, 0, 0), place]), height=HEIGHT, width=WIDTH)
            with pytest.raises(ValueError, match="window"):
                opened.fetch_windows(indices, beyond, out)
        for wrong in (-1, COUNT, 10**12):
            with pytest.raises(IndexError):
                opened.fetch_windows(np.array([3, wrong]), windows, out)
        with pytest.raises(ValueError, match="1 windows for 2 samples"):
            opened.fetch_windows(indices, some_windows(1), out)
        for unfit in (out[1:], out[:, 1:], out[:, :, ::-1], np.zeros((2, *SHAPE), np.uint8)):
            with pytest.raises(ValueError, match="batch"):
                opened.fetch_windows(indices, windows, unfit)
        opened.fetch_windows(indices, windows, out)
        np.testing.assert_array_equal(out, sliced(small.pixels[indices], windows))

    def test_a_closed_reader_serves_no_windows(self, small: SmallStore, reader: str) -> None:
        """With the error that it has for whole images."""
        opened = small.open(reader)
        opened.close()
        out = np.zeros((1, HEIGHT, WIDTH, SHAPE[2]), np.uint8)
        with pytest.raises(RuntimeError, match="closed"):
            opened.fetch_windows(np.array([3]), some_windows(1), out)
