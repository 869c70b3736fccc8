"""The codecs, and the parser of their names with qualities and decoders."""

import functools
from dataclasses import dataclass

import numpy as np

from storebench.codecs.base import Codec, RawCodec
from storebench.codecs.compressed import JPEG_QUALITY, JpegCodec, PngCodec, WebpCodec, with_quality
from storebench.codecs.decoders import DECODERS, DEFAULT_DECODER, require
from storebench.codecs.libraries import JxlCodec, Lz4Codec, QoiCodec, ZstdCodec
from storebench.codecs.original import OriginalCodec
from storebench.errors import UnknownNameError, UsageError
from storebench.settings.backend import Pairs
from storebench.system.json_text import brief

_PLAIN = (RawCodec(), PngCodec(), JpegCodec(), WebpCodec(), JxlCodec(), QoiCodec(), ZstdCodec(), Lz4Codec())
CODECS: dict[str, Codec] = {
    codec.name: codec for codec in (*_PLAIN, OriginalCodec())
}  # at their default quality

SCALE, DECODER = "scale", "decoder"
DCT, FULL = "dct", "full"

_COMPRESSED = {codec.name: codec for codec in (PngCodec, JpegCodec, WebpCodec)}
_LOSSY = (JpegCodec.name, WebpCodec.name, JxlCodec.name)  # those with a quality


def codec_named(text: str) -> str:
    """Return the name of a codec with its quality in canonical spelling: "jpeg:90" is "jpeg"."""
    codec, _, quality = text.partition(":")
    if codec not in CODECS:
        raise UnknownNameError.of("codec", codec, CODECS)
    if not quality:
        return codec
    if codec not in _LOSSY:
        raise UsageError(f"{codec} has no quality", hint=f"Leave out {quality!r}.")
    if quality.lstrip("0") not in map(str, range(1, 101)):
        raise UsageError(
            f"the quality must be a whole number from 1 to 100, not {brief(quality)}", where=codec
        )
    default = codec == JpegCodec.name and int(quality) == JPEG_QUALITY
    return with_quality(codec, None if default else int(quality))


@dataclass(frozen=True, kw_only=True)
class Decoding:
    """A codec and how its payloads are decoded."""

    codec: str  # the codec's name with its quality, which determine the stored bytes
    decoder: str = DEFAULT_DECODER  # the library that decodes
    scaled: bool = False  # whether JPEGs are decoded at a reduced scale (``scale=dct``)

    @property
    def options(self) -> Pairs:
        """The differences from the default, as sorted pairs of a record's ``codec_options``."""
        pairs = [(DECODER, self.decoder)] if self.decoder != DEFAULT_DECODER else []
        return (*pairs, *([(SCALE, DCT)] if self.scaled else []))

    def __str__(self) -> str:
        body = self.codec if self.decoder == DEFAULT_DECODER else f"{self.codec}:{self.decoder}"
        return f"{body}?{SCALE}={DCT}" if self.scaled else body


def decoding_of(codec: str, options: Pairs) -> Decoding:
    """Return the decoder, with its scale, for the payloads of a codec."""
    name = codec_named(codec)
    codec = name.partition(":")[0]
    given = dict(options)
    decoder, scale = given.get(DECODER, DEFAULT_DECODER), given.get(SCALE, FULL)
    if decoder not in DECODERS:
        raise UnknownNameError.of("decoder", decoder, DECODERS)
    if decoder != DEFAULT_DECODER and not has_decoders(codec):
        raise UsageError(f"{codec} has no decoder to choose", hint=f"Leave out {decoder!r}.")
    kind = _COMPRESSED[codec].kind if codec in _COMPRESSED else None
    if kind is not None and kind not in DECODERS[decoder].kinds:
        able = [name for name, candidate in DECODERS.items() if kind in candidate.kinds]
        raise UsageError(f"{decoder} does not decode {kind}", where=codec, hint=f"Use {' or '.join(able)}.")
    if scale not in (DCT, FULL):
        raise UsageError(f"{SCALE} must be '{DCT}' or '{FULL}', not {scale!r}", where=codec)
    if scale == DCT and codec != OriginalCodec.name:
        raise UsageError(
            f"only images of any size are decoded at a reduced scale, not {codec}",
            hint=f"Leave out {SCALE}={DCT}, or use the codec 'original'.",
        )
    return Decoding(codec=name, decoder=decoder, scaled=scale == DCT)


def has_decoders(codec: str) -> bool:
    """Whether a codec has several decoders to choose from."""
    return codec in _COMPRESSED or codec == OriginalCodec.name


@functools.cache
def get_codec(name: str) -> Codec:
    """Return a codec that encodes at the quality and decodes by the decoder that a name may have ("webp:80:opencv")."""
    body, _, scale = name.partition(f"?{SCALE}=")
    codec, *parts = body.split(":")
    qualities = [part for part in parts if part.isdecimal()]
    given = [(DECODER, part) for part in parts if part not in qualities]
    if scale:
        given.append((SCALE, scale))
    decoding = decoding_of(":".join([codec, *qualities]), tuple(given))
    codec, _, quality = decoding.codec.partition(":")
    graded = {"quality": int(quality)} if quality else {}
    if not has_decoders(codec):
        plain = JxlCodec(**graded) if codec == JxlCodec.name else CODECS[codec]
        if plain.library:
            require(plain.library, f"the codec {codec!r}")
            small = np.zeros((16, 16, 3), np.uint8)
            plain.decode_into(plain.encode(small), small)  # loads the library, which is no read of the store
        return plain
    decoder = DECODERS[decoding.decoder]()
    if codec == OriginalCodec.name:
        return OriginalCodec(decoder, scaled=decoding.scaled)
    return _COMPRESSED[codec](decoder, **graded)


def any_size(name: str) -> bool:
    """Whether a codec's payloads are images of any size, which are cut and resized when they are read."""
    return name.partition(":")[0].partition("?")[0] == OriginalCodec.name
