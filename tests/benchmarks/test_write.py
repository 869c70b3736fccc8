"""Converting the thumbnails into every format, and decoding photographs by every codec."""

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from drawn import DrawnDataset, draw, skip_without_library

from storebench.codecs import CODECS
from storebench.convert import How, Replace, convert
from storebench.datasets import DatasetSpec
from storebench.formats.registry import format_names, parse_backend
from storebench.testing.benchmarks import Measurement, interpreter

CONVERTED = 512
DECODED = 8


@pytest.fixture(scope="session")
def to_convert() -> DrawnDataset:
    return draw("cifar10", CONVERTED)


@pytest.mark.parametrize("name", format_names())
def test_convert(
    measured: Callable[[Measurement], None], to_convert: DrawnDataset, scratch: Path, name: str
) -> None:
    spec = DatasetSpec(name="cifar10", limit=CONVERTED, synthetic=True)
    how = How(processes=1, replace=Replace.YES)
    with skip_without_library():
        backend = parse_backend(name)
        store = convert(to_convert, spec, backend, scratch, how=how)

    def target() -> int:
        return convert(to_convert, spec, backend, scratch, how=how).manifest.count

    measured(
        Measurement(
            cell_id=f"convert/{backend.store_name}",
            target=target,
            prepare=lambda: shutil.rmtree(store.path, ignore_errors=True),
            samples=CONVERTED,
            calibration="interpreter",
            calibrate=interpreter(),
            store=scratch,
            counters={"bytes_on_disk": store.manifest.bytes_on_disk},
            payload_bytes=store.manifest.payload_bytes,
            samples_of=store.manifest.samples_digest,
        )
    )


@pytest.mark.parametrize("name", CODECS)
def test_decode(measured: Callable[[Measurement], None], photographs: DrawnDataset, name: str) -> None:
    codec, pixels = CODECS[name], photographs.pixels()[:DECODED]
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
            cell_id=f"decode/{name}",
            target=target,
            samples=passes * len(payloads),
            calibration="interpreter",
            calibrate=interpreter(),
            payload_bytes=passes * sum(map(len, payloads)),
            samples_of=photographs.info.fingerprint,
        )
    )
