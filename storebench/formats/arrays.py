"""Index arrays and pixel batches: their types, and the checks that readers make of them."""

import numpy as np
import numpy.typing as npt

from storebench.arrays import Indices

Batch = npt.NDArray[np.uint8]
"""Pixels of several images, uint8 [n, H, W, C], C order, owned by the caller."""

UINT8 = np.dtype(np.uint8)


def out_of_range(count: int) -> IndexError:
    """Return the error for an index that no sample has."""
    return IndexError(f"a sample index is outside 0..{count - 1}")


def check_range(indices: Indices, count: int) -> None:
    """Raise `IndexError` if one of `indices` is not in ``range(count)``."""
    if len(indices) and (indices.min() < 0 or indices.max() >= count):
        raise out_of_range(count)


def unfit_batch(out: Batch, count: int, image_shape: tuple[int, ...]) -> ValueError:
    """Return the error for a batch that cannot take `count` images of `image_shape`."""
    order = "" if out.flags.carray else " that is read-only or not C-contiguous"
    return ValueError(
        f"a batch of {out.dtype}{out.shape}{order} where C-contiguous uint8{(count, *image_shape)} "
        "or more images were expected"
    )
