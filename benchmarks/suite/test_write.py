"""Converting the thumbnails into every format, and decoding photographs by every codec."""

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from benchmarks.suite.drawn import DrawnDataset, draw, skip_without_library
from benchmarks.suite.measurement import Measurement
from storebench.codecs import CODECS, get_codec
from storebench.datasets import DatasetSpec
from storebench.formats.registry import PEERS, format_names, parse_backend
from storebench.stores.convert import BuildOptions, Replace, convert

CONVERTED = 2048
DECODED = 8


@pytest.fixture(scope="session")
def to_convert() -> DrawnDataset:
    return draw("cifar10", CONVERTED)


@pytest.mark.parametrize("name", [name for name in format_names() if name not in PEERS])
def test_convert(
    measured: Callable[[Measurement], None], to_convert: DrawnDataset, scratch: Path, name: str
) -> None:
    dataset = to_convert.first(CONVERTED // 4) if name == "files" else to_convert
    spec = DatasetSpec(name="cifar10", limit=len(dataset), synthetic=True)
    # Verification reads in threads: whether a second core is free would be in the figure.
    options = BuildOptions(processes=1, replace=Replace.YES, verify=False)
    with skip_without_library():
        backend = parse_backend(name)
        store = convert(dataset, spec, backend, scratch, options=options)

    def target() -> int:
        return convert(dataset, spec, backend, scratch, options=options).manifest.count

    measured(
        Measurement(
            target=target,
            prepare=lambda: shutil.rmtree(store.path, ignore_errors=True),
            samples=len(dataset),
            store=scratch,
            counters={"bytes_on_disk": store.manifest.bytes_on_disk},
            payload_bytes=store.manifest.payload_bytes,
        )
    )


@pytest.mark.parametrize("name", CODECS)
def test_decode(measured: Callable[[Measurement], None], photographs: DrawnDataset, name: str) -> None:
    if library := CODECS[name].library:
        pytest.importorskip(library)
    codec, pixels = get_codec(name), photographs.pixels()[:DECODED]
    payloads = [codec.encode(image) for image in pixels]
    out = np.empty_like(pixels)
    passes = 20 if name == "raw" else 1

    def target() -> int:
        for _ in range(passes):
            for payload, image in zip(payloads, out, strict=True):
                codec.decode_into(payload, image)
        return passes * len(payloads)

    measured(
        Measurement(
            target=target,
            samples=passes * len(payloads),
            payload_bytes=passes * sum(map(len, payloads)),
        )
    )
