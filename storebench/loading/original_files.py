"""Make samples of image files as they are: decode, cut, resize and mirror each by (seed, epoch, index)."""

import time
from collections.abc import Sequence
from typing import NamedTuple

from storebench.codecs import OriginalCodec, get_codec
from storebench.codecs.original import Choose
from storebench.errors import CorruptDataError
from storebench.formats.base import Batch, Indices, Reader


class Spent(NamedTuple):
    """Wall time of a batch of image files, in nanoseconds: decoding; resizing and mirroring."""

    decode_ns: int
    prep_ns: int


def prepare_files(
    reader: Reader,
    payloads: Sequence[bytes],
    indices: Indices,
    out: Batch,
    views: Sequence[Choose | None],
) -> Spent:
    """Write the samples of image files into `out`, uint8 [n, H, W, C]."""
    decoder = get_codec(reader.payload_codec)
    assert isinstance(decoder, OriginalCodec)
    spent = [(0, 0)] * len(payloads)

    def prepare(row: int) -> None:
        started = time.perf_counter_ns()
        try:
            decoded = decoder.decode(payloads[row], out.shape[1:], views[row])
        except CorruptDataError as error:
            raise CorruptDataError(f"sample {indices[row]}: {error.what}", where=reader.store) from error
        decoded_at = time.perf_counter_ns()
        decoded.write(out[row])
        spent[row] = decoded_at - started, time.perf_counter_ns() - decoded_at

    began = time.perf_counter_ns()
    reader.spread(prepare, len(payloads))
    wall_ns = time.perf_counter_ns() - began
    decoding, resizing = (sum(part) for part in zip(*spent, strict=True)) if spent else (0, 0)
    decode_ns = wall_ns * decoding // max(1, decoding + resizing)
    return Spent(decode_ns, wall_ns - decode_ns)
