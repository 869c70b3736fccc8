"""Limits of one record: each is kept by a sound record, and broken just beyond it."""

import dataclasses
from typing import Any

import pytest

from storebench.report.validation.limits import best_rates, check_limits
from storebench.results import BelowCache, Counters, PortionKind, Record, ResidencyPoint
from tests.support.planted import ENVIRONMENT, make_record, portion_of, with_job
from tests.support.planted_trainers import trainers_record

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


@pytest.mark.parametrize(("share", "kept"), [(0.91, True), (0.89, False)])
def test_cold_bytes_come_from_a_device_but_for_a_tenth(share: float, kept: bool) -> None:
    assert broken(whole("lmdb", amplification=share)) == ([] if kept else ["device_read_bytes"])
    assert broken(whole("memory:native", amplification=share)) == []


@pytest.mark.parametrize(("games", "kept"), [(0.31, True), (0.29, False), (None, False)])
def test_what_games_read_first_need_not_be_read_again(games: float | None, kept: bool) -> None:
    record = trainers_record(0.9, model="lenet", cache="cold", amplification=0.6)
    read = None if games is None else round(games * record.payload_bytes)
    assert record.job is not None
    assert record.job.trainers is not None
    trainers = dataclasses.replace(record.job.trainers, tournament_device_read_bytes=read)
    found = dataclasses.replace(record, job=dataclasses.replace(record.job, trainers=trainers))
    assert ("device_read_bytes" in broken(found)) is not kept


@pytest.mark.parametrize(("epoch", "nodes"), [(0, 1), (1, 1), (2, 1), (1, 2)])
def test_a_limited_epoch_reads_what_its_limit_cannot_hold(epoch: int, nodes: int) -> None:
    resident = 0.5 if epoch else 0.0
    record = whole("lmdb", epoch=epoch, bytes_on_disk=STORE_BYTES, **LIMIT)
    held = min(record.payload_bytes, nodes * STORE_BYTES // 2) if epoch else 0
    for share, kept in ((0.91, True), (0.89, False)):
        read = round(share * (record.payload_bytes - held))
        found = dataclasses.replace(
            record,
            cache=dataclasses.replace(
                record.cache, resident_frac_before=resident, limit_bytes=STORE_BYTES // 2
            ),
            counters=Counters(device_read_bytes=read),
        )
        found = found if nodes == 1 else with_job(found, nodes=nodes)
        assert broken(found) == ([] if kept or held == record.payload_bytes else ["device_read_bytes"])


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


@pytest.mark.parametrize(
    ("changes", "figure"),
    [
        ({"kind": PortionKind.STEADY}, "portion.kind"),
        ({"steps": 101}, "portion.steps"),
        ({"samples": 0}, "portion.steps"),
        ({"samples_per_s": 1.0}, "portion.samples_per_s"),
        ({"seconds": 0.0}, "portion.samples_per_s"),
        ({"data_wait_s": 99.0}, "portion.seconds"),
    ],
)
def test_a_portion_is_part_of_its_epoch_and_its_figures_agree(changes: dict[str, Any], figure: str) -> None:
    assert broken(with_portion(whole("lmdb"), **changes)) == [figure]


@pytest.mark.parametrize(("best", "kept"), [(1.0, True), (0.79, False)])
def test_cold_bytes_arrive_no_faster_than_the_device_delivers(best: float, kept: bool) -> None:
    record = whole("lmdb")
    assert record.portion is not None
    rate = record.portion.payload_bytes / record.portion.seconds
    ceilings = dataclasses.replace(record.ceilings, device_best_bytes_per_s=best * rate)
    assert broken(dataclasses.replace(record, ceilings=ceilings)) == (
        [] if kept else ["portion.samples_per_s"]
    )
    bounded = with_portion(dataclasses.replace(record, ceilings=ceilings), upper_bound=True)
    assert broken(bounded) == []


def test_the_best_rate_that_any_cell_found_on_the_device_counts() -> None:
    record = dataclasses.replace(whole("lmdb"), environment=ENVIRONMENT)
    assert record.portion is not None
    rate = record.portion.payload_bytes / record.portion.seconds
    slow, fast = (
        dataclasses.replace(record.ceilings, device_best_bytes_per_s=best * rate) for best in (0.5, 1.0)
    )
    disturbed = dataclasses.replace(record, ceilings=slow)
    other = dataclasses.replace(whole("png"), ceilings=fast, environment=ENVIRONMENT)
    elsewhere = dataclasses.replace(other, environment=dataclasses.replace(ENVIRONMENT, key="another disk"))
    for beside, figures in ((other, []), (elsewhere, ["portion.samples_per_s"])):
        best, _ = best_rates([disturbed, beside])
        assert [finding.figure for finding in check_limits(disturbed, best)] == figures


@pytest.mark.parametrize(("below", "kept"), [("seen", True), ("not seen", False), ("unknown", False)])
def test_a_cache_below_this_kernel_may_exceed_the_devices_best_rate(below: str, kept: bool) -> None:
    record = whole("lmdb")
    assert record.portion is not None
    assert record.counters.device_read_bytes is not None
    rate = record.portion.payload_bytes / record.portion.seconds
    ceilings = dataclasses.replace(record.ceilings, device_best_bytes_per_s=0.5 * rate)
    cache = dataclasses.replace(record.cache, below=BelowCache(below))
    fast = dataclasses.replace(record, ceilings=ceilings, cache=cache)
    assert broken(fast) == ([] if kept else ["portion.samples_per_s"])
    uncounted = dataclasses.replace(record.counters, device_read_bytes=None)
    assert "portion.samples_per_s" in broken(dataclasses.replace(fast, counters=uncounted))


def test_a_finding_gives_sizes_in_units_that_people_read() -> None:
    record = whole("lmdb", bytes_on_disk=STORE_BYTES, **LIMIT)
    cache = dataclasses.replace(record.cache, resident_max_frac=0.6)
    (finding,) = check_limits(dataclasses.replace(record, cache=cache))
    assert finding.message == "458 MiB of the store were resident, above the limit of 381 MiB"
    (finding,) = check_limits(whole("lmdb", amplification=0.5))
    assert finding.message.startswith("300 MiB came from the device, but 600 MiB were requested")
