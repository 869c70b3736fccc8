"""The contract of a codec, and the codec that changes nothing."""

from abc import ABC, abstractmethod
from typing import ClassVar

import numpy as np

from storebench.datasets.base import Image
from storebench.errors import CorruptDataError

Payload = bytes | bytearray | memoryview


class Codec(ABC):
    """Turn an image into bytes and back."""

    name: str  # the name in backends and results, with the quality where that is not the default
    lossless: bool  # whether decoding returns exactly the pixels that were encoded
    suffix: ClassVar[str]  # file extension for a single payload
    # The library that it loads when it is first used; if that is optional, the name of its extra as well.
    library: ClassVar[str] = ""

    @abstractmethod
    def encode(self, image: Image) -> bytes:
        """Return the payload of a uint8 [H, W, C] image, C = 1 or 3."""

    @abstractmethod
    def decode_into(self, payload: Payload, out: Image) -> None:
        """Write the pixels of `payload` into `out`, uint8 [H, W, C], C order."""


class RawCodec(Codec):
    """The pixels unchanged: H x W x C bytes in C order."""

    name = "raw"
    lossless = True
    suffix = ".raw"

    def encode(self, image: Image) -> bytes:
        return np.ascontiguousarray(image, dtype=np.uint8).tobytes()

    def decode_into(self, payload: Payload, out: Image) -> None:
        if len(payload) != out.size:
            raise CorruptDataError(
                f"a raw payload has {len(payload)} bytes, the image shape {out.shape} needs {out.size}"
            )
        out[...] = np.frombuffer(payload, dtype=np.uint8).reshape(out.shape)
