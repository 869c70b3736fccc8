"""The cost of storing and reading a sample, in bytes and seconds, measured on a few samples before any work begins."""

import random
import time
from dataclasses import dataclass

import numpy as np

from storebench.codecs import Codec, any_size, decoding_of, get_codec
from storebench.datasets.base import Dataset
from storebench.datasets.files import Originals
from storebench.settings.backend import Backend

PROBED = 32  # most samples that are measured
LIMIT_S = 0.15  # seconds after which no further sample is measured


@dataclass(frozen=True, kw_only=True)
class SampleCosts:
    """The cost of one sample, the mean over the measured ones."""

    payload_bytes: float  # bytes that a store keeps of it
    decode_s: float  # seconds to make pixels of the payload, in one thread


def sample_costs(
    dataset: Dataset, backend: Backend, side: int | None = None, *, limit_s: float = LIMIT_S
) -> SampleCosts:
    """Encode and decode a few random samples as `backend` would; if it keeps image files, sizes are of all."""
    codec = get_codec(str(decoding_of(backend.codec, backend.codec_options)))
    source, shape = dataset, dataset.info.image_shape
    if any_size(backend.codec):
        source = Originals(dataset)
        edge = side or min(source.info.image_shape[:2])
        shape = (edge, edge, 3)
    out, count = np.empty(shape, np.uint8), len(source)
    codec.decode_into(_payload(source, codec, 0), out)  # loads what the library loads once
    sizes, decoding_s, begun = [], 0.0, time.perf_counter()
    for index in random.Random(count).sample(range(count), min(count, PROBED)):
        payload = _payload(source, codec, index)
        started = time.perf_counter()
        codec.decode_into(payload, out)
        sizes.append(len(payload))
        decoding_s += time.perf_counter() - started
        if time.perf_counter() - begun > limit_s:
            break
    probed_bytes = payload_bytes = sum(sizes) / len(sizes)
    if any_size(backend.codec) and (all_sizes := source.file_sizes()) is not None:
        payload_bytes = float(all_sizes.mean())
    decode_s = decoding_s / len(sizes) * payload_bytes / probed_bytes  # larger files take longer
    return SampleCosts(payload_bytes=payload_bytes, decode_s=decode_s)


def _payload(source: Dataset, codec: Codec, index: int) -> bytes:
    if isinstance(source, Originals):
        return source.original(index)[0]
    return codec.encode(source.sample(index)[0])
