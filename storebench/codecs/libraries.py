"""Codecs of libraries other than Pillow: Zstandard and LZ4 by pyarrow, QOI and JPEG XL by imagecodecs."""

import struct
from abc import abstractmethod
from typing import Any

import numpy as np

from storebench.codecs.base import Codec, Payload
from storebench.codecs.compressed import with_quality
from storebench.codecs.decoders import undecodable
from storebench.datasets.base import Image
from storebench.errors import CorruptDataError


class ZstdCodec(Codec):
    """The raw pixels as one Zstandard frame, at pyarrow's default level (1)."""

    name = "zstd"
    library = "pyarrow"
    lossless = True
    suffix = ".zst"

    def encode(self, image: Image) -> bytes:
        return _pack(image, "zstd")

    def decode_into(self, payload: Payload, out: Image) -> None:
        with undecodable(self.name, payload):
            _unpack(payload, "zstd", out)


class Lz4Codec(Codec):
    """The raw pixels as one LZ4 block behind their number (4 bytes), as ``lz4.block.compress`` writes it."""

    name = "lz4"
    library = "pyarrow"
    lossless = True
    suffix = ".lz4"

    def encode(self, image: Image) -> bytes:
        return struct.pack("<I", image.size) + _pack(image, "lz4_raw")

    def decode_into(self, payload: Payload, out: Image) -> None:
        # The block itself has no size: pyarrow would leave the rest of a longer output as it was in memory.
        with undecodable(self.name, payload):
            (size,) = struct.unpack_from("<I", payload)
            if size != out.size:
                raise CorruptDataError(f"it holds {size:,} bytes, and the image has {out.size:,}")
            _unpack(memoryview(payload)[4:], "lz4_raw", out)


def _pack(image: Image, codec: str) -> bytes:
    import pyarrow as pa

    return bytes(pa.compress(np.ascontiguousarray(image), codec=codec, asbytes=True))


def _unpack(payload: Payload, codec: str, out: Image) -> None:
    import pyarrow as pa

    # pyarrow's own pool gives the pages of an image back to the kernel, and takes new ones for the next.
    pixels = pa.decompress(
        payload, decompressed_size=out.size, codec=codec, memory_pool=pa.system_memory_pool()
    )
    out[...] = np.frombuffer(pixels, np.uint8).reshape(out.shape)


class _ImageCodec(Codec):
    """Base of the codecs of imagecodecs, which decodes straight into the batch."""

    library = "imagecodecs"

    def decode_into(self, payload: Payload, out: Image) -> None:
        with undecodable(self.name, payload):
            try:
                self._decode(payload, out)
            except RuntimeError as error:  # of imagecodecs
                raise CorruptDataError(str(error)) from error

    @abstractmethod
    def _decode(self, payload: Payload, out: Image) -> None:
        """Decode into an array; a shape that differs from that of the payload raises `ValueError`."""


class QoiCodec(_ImageCodec):
    """QOI, which has no grey: these images are stored as RGB."""

    name = "qoi"
    lossless = True
    suffix = ".qoi"

    def encode(self, image: Image) -> bytes:
        import imagecodecs

        colour = image if image.shape[2] == 3 else image.repeat(3, axis=2)
        return bytes(imagecodecs.qoi_encode(np.ascontiguousarray(colour)))

    def _decode(self, payload: Payload, out: Image) -> None:
        import imagecodecs

        if out.shape[2] == 3:
            imagecodecs.qoi_decode(payload, out=out)
        else:
            colour = np.empty((*out.shape[:2], 3), np.uint8)
            out[...] = imagecodecs.qoi_decode(payload, out=colour)[:, :, :1]


class JxlCodec(_ImageCodec):
    """JPEG XL, lossless or lossy at a quality; effort 3 decodes twice as fast as 7, the default, for 2% more bytes."""

    name = "jxl"
    suffix = ".jxl"

    def __init__(self, quality: int | None = None) -> None:
        self.name = with_quality(self.name, quality)
        self.lossless = quality is None
        self._options: dict[str, Any] = {"lossless": True} if quality is None else {"level": quality}

    def encode(self, image: Image) -> bytes:
        import imagecodecs

        pixels = np.ascontiguousarray(image if image.shape[2] == 3 else image[:, :, 0])
        return bytes(imagecodecs.jpegxl_encode(pixels, effort=3, numthreads=1, **self._options))

    def _decode(self, payload: Payload, out: Image) -> None:
        import imagecodecs

        pixels = out if out.shape[2] == 3 else out[:, :, 0]
        imagecodecs.jpegxl_decode(payload, numthreads=1, out=pixels)
