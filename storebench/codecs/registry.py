"""The codecs, and the parser of their names with decoders."""

import functools
from dataclasses import dataclass

from storebench.codecs.base import Codec, RawCodec
from storebench.codecs.compressed import JpegCodec, PngCodec
from storebench.codecs.decoders import DECODERS, DEFAULT_DECODER, decoder_list
from storebench.codecs.original import OriginalCodec
from storebench.errors import UnknownNameError, UsageError
from storebench.settings.backend import Pairs

CODECS: dict[str, Codec] = {
    codec.name: codec for codec in (RawCodec(), PngCodec(), JpegCodec(), OriginalCodec())
}

SCALE = "scale"
DECODER = "decoder"
DCT, FULL = "dct", "full"

_COMPRESSED = {PngCodec.name: PngCodec, JpegCodec.name: JpegCodec}


@dataclass(frozen=True, kw_only=True)
class Decoding:
    """A codec and how its payloads are decoded."""

    codec: str  # the codec's name, which determines the stored bytes
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
    if codec not in CODECS:
        raise UnknownNameError.of("codec", codec, CODECS)
    given = dict(options)
    if unknown := sorted(given.keys() - {DECODER, SCALE}):
        raise UnknownNameError.of(f"option of {codec}", unknown[0], (DECODER, SCALE))
    decoder, scale = given.get(DECODER, DEFAULT_DECODER), given.get(SCALE, FULL)
    if decoder not in DECODERS:
        raise UnknownNameError.of("decoder", decoder, DECODERS)
    if decoder != DEFAULT_DECODER and codec == RawCodec.name:
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
    return Decoding(codec=codec, decoder=decoder, scaled=scale == DCT)


@functools.cache
def get_codec(name: str) -> Codec:
    if name in CODECS:
        return CODECS[name]
    body, _, scale = name.partition(f"?{SCALE}=")
    codec, _, decoder = body.partition(":")
    given = [(DECODER, decoder)] if decoder else []
    decoding = decoding_of(codec, (*given, *([(SCALE, scale)] if scale else [])))
    if codec == RawCodec.name:
        return CODECS[codec]
    library = DECODERS[decoding.decoder]()
    if codec == OriginalCodec.name:
        return OriginalCodec(library, scaled=decoding.scaled)
    return _COMPRESSED[codec](library)


def decoders_of(codec: str) -> str:
    """Return the names of the decoders of a codec, a missing one with the line that installs it; "" if it has none to choose."""
    if codec not in CODECS or codec == RawCodec.name:
        return ""
    return decoder_list(_COMPRESSED[codec].kind if codec in _COMPRESSED else None)


def any_size(name: str) -> bool:
    """Return whether a codec's payloads are images of any size, which are cut and resized when they are read."""
    return name.partition(":")[0].partition("?")[0] == OriginalCodec.name
