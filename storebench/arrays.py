"""Types of the arrays and shapes that several rooms name."""

import numpy as np
import numpy.typing as npt

Pixels = npt.NDArray[np.uint8]
"""Pixels of one image or of several, uint8 [..., H, W, C], C order."""

Bytes = npt.NDArray[np.uint8]
"""Bytes of any content, uint8 [n]."""

Indices = npt.NDArray[np.int64]
"""Sample indices, int64 [n], each in range(count), in the order in which samples are asked for."""

Integers = npt.NDArray[np.int64]
"""Integers of any meaning, int64."""

Floats = npt.NDArray[np.float64]
"""Figures of any unit, float64."""

ImageShape = tuple[int, int, int]
"""(H, W, C) of a decoded image."""

ImageSize = tuple[int, int]
"""Width and height of an image file, in pixels."""
