"""Limits of one record: each is kept by a sound record, and broken just beyond it."""

import dataclasses
from typing import Any

import pytest

from storebench.report.validation.limits import check_limits
from storebench.results import Counters, Record, ResidencyPoint
from tests.support.planted import ENVIRONMENT, make_record, portion_of

STORE_BYTES = 800_000_000
LIMIT: dict[str, Any] = {"cache": "limited", "memory_bytes": STORE_BYTES // 2}


def whole(backend: str, **changes: Any) -> Record:
    """Return a record of a network that crops nothing, so that readers touch all bytes of an image."""
    return make_record(backend, **({"model": "lenet"} | changes))


def broken(record: Record) -> list[str]:
    """Return the figures that break a limit."""
    return [finding.figure for finding in check_limits(record)]


def with_portion(record: Record, **changes: Any) -> Record:
    return dataclasses.replace(record, portion=portion_of(record, **changes))


@pytest.mark.parametrize("backend", ["lmdb", "png", "memory:native", "null"])
@pytest.mark.parametrize("state", [{"cache": "cold"}, {"cache": "warm"}, {"cache": "any"}, LIMIT])
def test_a_sound_record_keeps_every_limit(backend: str, state: dict[str, Any]) -> None:
    assert broken(whole(backend, **state)) == []


@pytest.mark.parametrize(
    ("steps", "read", "kept"),
    [(2, 16 << 20, True), (2, (16 << 20) + 1, False), (100, 31_000_000, True), (100, 32_000_000, False)],
)
def test_a_warm_epoch_reads_little_from_a_device(steps: int, read: int, kept: bool) -> None:
    record = whole("lmdb", cache="warm", steps=steps, counters=Counters(device_read_bytes=read))
    assert broken(record) == ([] if kept else ["device_read_bytes"])


@pytest.mark.parametrize(("resident", "kept"), [(0.509, True), (0.511, False)])
def test_a_limited_page_cache_holds_its_limit_and_two_percent(resident: float, kept: bool) -> None:
    record = whole("lmdb", bytes_on_disk=STORE_BYTES, **LIMIT)
    assert record.cache is not None
    point = ResidencyPoint(elapsed_s=1.0, asked_frac=0.7, resident_frac=resident)
    held: list[dict[str, Any]] = [{"curve": (point,)}, {"resident_max_frac": resident}]
    for facts in held:
        cache = dataclasses.replace(record.cache, **facts)
        assert broken(dataclasses.replace(record, cache=cache)) == ([] if kept else ["resident_max_frac"])


@pytest.mark.parametrize(
    ("share", "cores", "cpu", "kept"),
    [(1.01, 1, 9.0, True), (0.99, 1, 9.0, False), (0.51, 2, 9.0, True), (0.51, 2, 1.0, False)],
)
def test_fetching_is_no_faster_than_the_cores_can_copy(
    share: float, cores: int, cpu: float, kept: bool
) -> None:
    record = whole("lmdb", cache="warm", threads=cores)
    ceiling = share * record.payload_bytes / record.fetch_s / 1.25
    record = dataclasses.replace(
        record,
        ceilings=dataclasses.replace(record.ceilings, memory_bytes_per_s=ceiling),
        counters=dataclasses.replace(record.counters, cpu_user_s=cpu * record.fetch_s, cpu_system_s=0.0),
        environment=dataclasses.replace(ENVIRONMENT, match={"cores": cores}),
    )
    assert ("payload_bytes_per_s" in broken(record)) is not kept


@pytest.mark.parametrize(
    ("cpu_s", "cores", "kept"), [(1.09, 1, True), (1.11, 1, False), (2.18, 2, True), (2.22, 2, False)]
)
def test_a_rate_needs_no_more_cores_than_there_are(cpu_s: float, cores: int, kept: bool) -> None:
    record = whole("lmdb", cache="warm")
    spent = cpu_s * record.samples / record.samples_per_s + 0.1
    record = dataclasses.replace(
        record,
        counters=dataclasses.replace(record.counters, cpu_user_s=spent, cpu_system_s=0.0),
        environment=dataclasses.replace(ENVIRONMENT, match={"cores": cores}),
    )
    assert broken(record) == ([] if kept else ["samples_per_s"])


@pytest.mark.parametrize(("cores", "workers"), [(1, 0), (2, 0), (2, 8), (8, 2)])
@pytest.mark.parametrize(("share", "kept"), [(0.99, True), (1.01, False)])
def test_batches_that_were_ready_are_no_faster_than_memory(
    cores: int, workers: int, share: float, kept: bool
) -> None:
    record = whole("lmdb", cache="warm", threads=1, workers=workers)
    together = 1.25 * min(cores, max(1, workers))
    record = dataclasses.replace(
        record,
        fetch_s=0.0,
        decode_s=0.0,
        ceilings=dataclasses.replace(
            record.ceilings, memory_bytes_per_s=record.payload_bytes_per_s / share / together
        ),
        environment=dataclasses.replace(ENVIRONMENT, match={"cores": cores}),
    )
    assert broken(record) == ([] if kept else ["payload_bytes_per_s"])


def test_only_a_limited_cell_has_a_steady_portion() -> None:
    assert broken(with_portion(whole("lmdb", cache="warm"))) == ["portion"]


def test_a_finding_gives_sizes_in_units_that_people_read() -> None:
    record = whole("lmdb", bytes_on_disk=STORE_BYTES, **LIMIT)
    cache = dataclasses.replace(record.cache, resident_max_frac=0.6)
    (finding,) = check_limits(dataclasses.replace(record, cache=cache))
    assert finding.message == "458 MiB of the store were resident, above the limit of 381 MiB"
