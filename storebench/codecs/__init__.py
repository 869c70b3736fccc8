"""Codecs turn one image into bytes and back."""

from storebench.codecs.base import Codec, Payload, RawCodec
from storebench.codecs.compressed import JpegCodec, PngCodec
from storebench.codecs.original import OriginalCodec
from storebench.codecs.registry import CODECS, Decoding, any_size, decoding_of, get_codec

__all__ = [
    "CODECS",
    "Codec",
    "Decoding",
    "JpegCodec",
    "OriginalCodec",
    "Payload",
    "PngCodec",
    "RawCodec",
    "any_size",
    "decoding_of",
    "get_codec",
]
