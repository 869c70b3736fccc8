"""Reading through every reader, batch of 64, shuffled: thumbnails warm, raw photographs cold where that can be."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from benchmarks.suite.drawn import BATCH, SAMPLES
from benchmarks.suite.measurement import Measurement
from storebench.codecs import Codec, get_codec
from storebench.errors import MissingDependencyError
from storebench.formats.base import Indices, Reader
from storebench.formats.registry import PEERS, format_names, get_format
from storebench.loading.order import epoch_order, split_batches
from storebench.probes.page_cache import ask_to_evict, cache_facts, evict, warm
from storebench.probes.page_count import resident
from storebench.record.schema import CacheFacts, CacheVerdict
from storebench.settings.words import CacheState
from storebench.stores.find import Store


def readers(codec: str | None = None) -> list[str]:
    """Return every reader of every format with a codec (null: the format's default), as FORMAT+CODEC:READER."""
    found = []
    for name in (name for name in format_names() if name not in PEERS):  # these have benchmarks/peers.py
        try:
            form = get_format(name)
        except MissingDependencyError:
            continue
        found += [
            f"{name}+{codec or form.info.default_codec}:{reader}"
            for reader, info in form.readers().items()
            if not info.traits.remote
        ]
    return found


class Reading:
    """A store's reader, opened anew before a round where the cache has to be cold."""

    def __init__(self, store: Store, reader: str) -> None:
        self.store, self.name = store, reader
        self.format = get_format(store.manifest.format)
        self.files = self.format.data_files(store.path)
        self.shape = store.manifest.dataset.image_shape
        batches = split_batches(epoch_order(store.manifest.count, seed=0, epoch=0), BATCH)
        encoded = store.manifest.codec != "raw"
        # Enough work for some milliseconds; of encoded images a quarter of an epoch is enough.
        self.batches = batches[:4] if encoded else batches
        self.passes = 1 if encoded or store.manifest.count < SAMPLES else 8
        self.out = np.empty((BATCH, *self.shape), np.uint8)
        self.reader = self.open()

    def open(self) -> Reader:
        return self.format.reader(self.store.path, self.store.manifest, self.name)

    def read(self) -> int:
        """Read the batches; return the samples served."""
        codec = get_codec(self.reader.payload_codec)
        self.served = self.payload_bytes = 0
        for _ in range(self.passes):
            self.reader.plan(self.batches)
            for batch in self.batches:
                self.read_batch(codec, batch)
        return self.served

    def read_batch(self, codec: Codec, batch: Indices) -> None:
        if codec.name == "raw":
            self.payload_bytes += self.reader.fetch_into(batch, self.out).payload_bytes
        else:
            payloads = self.reader.fetch(batch)
            self.payload_bytes += sum(map(len, payloads))
            for payload, out in zip(payloads, self.out, strict=False):
                codec.decode_into(payload, out)
        self.served += len(batch)

    def make_warm(self) -> CacheFacts:
        before = resident(self.files)
        if (before.frac or 0) < 1:
            warm(self.files)
            before = resident(self.files)
        return cache_facts(CacheState.WARM, before, paths=self.files, how="read")

    def make_cold(self) -> CacheFacts:
        """Make it cold, in a second or third attempt where another process was in the way."""
        facts = self.try_cold()
        for _ in range(2):
            if facts.verdict is CacheVerdict.VERIFIED:
                break
            facts = self.try_cold()
        return facts

    def try_cold(self) -> CacheFacts:
        """Evict while nobody maps a page, open, and evict what opening read; a few pages may stay mapped."""
        self.reader.close()
        how = evict(self.files)
        self.reader = self.open()
        for path in self.files:
            with path.open("rb") as file:
                ask_to_evict(file.fileno())
        return cache_facts(CacheState.COLD, resident(self.files), paths=self.files, how=how)


@pytest.fixture
def reading(request: pytest.FixtureRequest, stores: Callable[[str], Store]) -> Iterator[Reading]:
    backend, _, reader = request.param.partition(":")
    found = Reading(stores(backend), reader)
    yield found
    found.reader.close()


@pytest.fixture
def cold_reading(request: pytest.FixtureRequest, large_stores: Callable[[str], Store]) -> Iterator[Reading]:
    backend, _, reader = request.param.partition(":")
    if get_format(backend.partition("+")[0]).traits(reader).holds_pixels:
        pytest.skip("it reads the store when it is opened, and nothing afterwards")
    found = Reading(large_stores(backend), reader)
    yield found
    found.reader.close()


def measurement(reading: Reading, prepare: Callable[[], CacheFacts]) -> Measurement:
    samples, payload_bytes = reading.read(), reading.payload_bytes
    return Measurement(
        target=reading.read,
        samples=samples,
        prepare=prepare,
        store=reading.store.path,
        counters={"bytes_on_disk": reading.store.manifest.bytes_on_disk},
        payload_bytes=payload_bytes,
    )


@pytest.mark.parametrize("reading", readers(), indirect=True)
def test_read_warm(measured: Callable[[Measurement], None], reading: Reading) -> None:
    measured(measurement(reading, reading.make_warm))


@pytest.mark.parametrize("cold_reading", readers("raw"), indirect=True)
def test_read_cold(measured: Callable[[Measurement], None], cold_reading: Reading, benchmark: Any) -> None:
    facts = cold_reading.make_cold()
    if facts.verdict is not CacheVerdict.VERIFIED and benchmark.disabled:
        pytest.skip(f"this machine has no cold cache here: {facts.reason}")
    assert facts.verdict is CacheVerdict.VERIFIED, f"the cache was not made cold: {facts.reason}"
    measured(measurement(cold_reading, cold_reading.make_cold))
