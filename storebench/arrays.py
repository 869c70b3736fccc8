"""Types of the arrays and shapes that several rooms name, and how random an order is."""

import numpy as np
import numpy.typing as npt

# Pixels of one image or of several, uint8 [..., H, W, C], C order.
Pixels = npt.NDArray[np.uint8]

# Bytes of any content, uint8 [n].
Bytes = npt.NDArray[np.uint8]

# Sample indices, int64 [n], each in range(count), in the order in which samples are asked for.
Indices = npt.NDArray[np.int64]

# Integers of any meaning, int64.
Integers = npt.NDArray[np.int64]

# Figures of any unit, float64.
Floats = npt.NDArray[np.float64]

# (H, W, C) of a decoded image.
ImageShape = tuple[int, int, int]

# Width and height of an image file, in pixels.
ImageSize = tuple[int, int]


def randomness(order: Indices) -> tuple[float, float]:
    """Return the mean displacement of an order over that of a uniform shuffle, and the share of neighbours kept."""
    count = len(order)
    uniform = (count * count - 1) / (3 * count)
    displacement = float(np.abs(order - np.arange(count)).mean()) / uniform if count > 1 else 1.0
    neighbours = float((np.diff(order) == 1).mean()) if count > 1 else 0.0
    return displacement, neighbours
