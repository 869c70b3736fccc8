"""Rules for the facts about a data store: each planted contradiction is found under the name of its figure."""

import dataclasses
import math
from typing import Any

import numpy as np
import pytest

from storebench.report.validation.data_store import check_data_store, check_waits
from storebench.report.validation.findings import Finding
from storebench.results import DataStoreFacts, Record
from storebench.training.step_table import StepTable
from tests.support.planted import make_record, with_job, with_part

STEPS, BATCH = 10, 8
SAMPLES = STEPS * BATCH


def store_bytes(record: Record) -> tuple[int, int]:
    """Return the bytes of all samples of a record's store: as payloads, and as pixels."""
    assert record.store is not None
    return record.store.payload_bytes, record.store.count * math.prod(record.store.image_shape)


def data_store_record(*, epoch: int = 1, ranks: int = 2, **cell: Any) -> Record:
    """Return the record of a job whose ranks hold half of the store each and serve all samples from memory."""
    settings: dict[str, Any] = {
        "share": "store",
        "store_fill": "first-epoch",
        "batch_size": BATCH,
        "cache": "warm",
    } | cell
    record = make_record("lmdb", steps=STEPS, epoch=epoch, ranks=ranks, **settings)
    record = dataclasses.replace(record, samples=SAMPLES)
    assert record.store is not None
    held_bytes = store_bytes(record)[0]
    parts = [
        DataStoreFacts(
            held_samples=record.store.count // ranks + (record.store.count % ranks if rank == 0 else 0),
            held_bytes=held_bytes // ranks + (held_bytes % ranks if rank == 0 else 0),
            from_memory=SAMPLES // ranks - 5,
            from_ranks=5,
            sent_bytes=1000,
            received_bytes=1000,
            exchange_s=0.5,
            waited_s=0.2,
            after_last_s=0.1,
        )
        for rank in range(ranks)
    ]
    record = with_job(record)
    assert record.job is not None
    each = tuple(
        dataclasses.replace(rank, data_store=part)
        for rank, part in zip(record.job.per_rank, parts, strict=True)
    )
    return dataclasses.replace(record, job=dataclasses.replace(record.job, per_rank=each))


def with_reads(record: Record, device_read_bytes: int | None) -> Record:
    counters = dataclasses.replace(record.counters, device_read_bytes=device_read_bytes)
    return dataclasses.replace(record, counters=counters)


def figures(record: Record) -> list[str]:
    return [finding.figure for finding in check_data_store(record)]


def messages(record: Record) -> list[str]:
    return [finding.message for finding in check_data_store(record)]


def part_of(record: Record, number: int = 0) -> DataStoreFacts:
    assert record.job is not None
    part = record.job.per_rank[number].data_store
    assert part is not None
    return part


def test_facts_that_agree_are_not_found() -> None:
    assert messages(data_store_record()) == []
    assert messages(data_store_record(ranks=4)) == []


def test_a_process_that_is_alone_has_no_data_store() -> None:
    assert messages(make_record("lmdb")) == []


def test_missing_facts_are_found_on_their_rank() -> None:
    record = data_store_record()
    assert record.job is not None
    ranks = (record.job.per_rank[0], dataclasses.replace(record.job.per_rank[1], data_store=None))
    record = dataclasses.replace(record, job=dataclasses.replace(record.job, per_rank=ranks))
    assert figures(record) == ["job.per_rank[1].data_store"]
    assert "missing" in messages(record)[0]


def test_facts_about_a_data_store_of_another_cell_are_found() -> None:
    record = data_store_record()
    other = make_record("lmdb", steps=STEPS, ranks=2, batch_size=BATCH)
    assert messages(dataclasses.replace(record, cell=other.cell)) == ["its cell has no data store"]


@pytest.mark.parametrize("change", [-1, 1])
def test_a_sample_with_two_owners_or_none_is_found(change: int) -> None:
    record = data_store_record()
    held = part_of(record).held_samples + change
    assert figures(with_part(record, held_samples=held)) == ["data_store.held_samples"]


@pytest.mark.parametrize("change", [-1, 1, 1000])
def test_bytes_that_are_not_those_of_the_whole_store_are_found(change: int) -> None:
    """The ranks hold every sample once, so together they hold the bytes of the store, neither more nor fewer."""
    record = data_store_record()
    wrong = with_part(record, held_bytes=part_of(record).held_bytes + change)
    assert figures(wrong) == ["data_store.held_bytes"]
    payload_bytes, _ = store_bytes(record)
    assert messages(wrong) == [
        f"the ranks hold {payload_bytes + change} bytes, but the store has {payload_bytes}"
    ]


def test_a_data_store_may_hold_payloads_or_decoded_pixels() -> None:
    record = data_store_record()
    assert record.store is not None
    encoded = dataclasses.replace(record.store, payload_bytes=12_345)
    as_pixels = dataclasses.replace(record, store=encoded)
    other = part_of(record, 1).held_bytes
    assert messages(with_part(as_pixels, held_bytes=store_bytes(as_pixels)[1] - other)) == []
    assert messages(with_part(as_pixels, held_bytes=12_345 - other)) == []
    assert figures(with_part(as_pixels, held_bytes=12_346 - other)) == ["data_store.held_bytes"]


def test_samples_of_unknown_origin_are_found() -> None:
    record = data_store_record()
    assert figures(with_part(record, from_ranks=4)) == ["data_store.from_memory"]
    assert messages(with_part(record, from_ranks=4)) == [
        f"the origin of {SAMPLES - 1} samples is recorded, but {SAMPLES} were served"
    ]


def test_bytes_that_were_sent_and_never_received_are_found() -> None:
    assert figures(with_part(data_store_record(), sent_bytes=1001)) == ["data_store.sent_bytes"]
    lost = with_part(data_store_record(), 1, received_bytes=0)
    assert messages(lost) == ["2000 bytes were sent, but 1000 received"]


def test_a_wait_is_a_part_of_its_exchange() -> None:
    record = data_store_record()
    assert figures(with_part(record, waited_s=0.4)) == []
    assert figures(with_part(record, waited_s=0.41)) == ["data_store.waited_s"]
    assert figures(with_part(record, waited_s=0.45, after_last_s=None)) == []


def test_samples_read_again_after_the_data_store_was_filled_are_found() -> None:
    record = data_store_record()
    part = part_of(record)
    again = with_part(record, from_store=3, from_memory=part.from_memory - 3)
    assert figures(again) == ["data_store.from_store"]


def test_the_epoch_that_fills_a_data_store_reads_every_sample() -> None:
    record = data_store_record(epoch=0)
    assert figures(record) == ["data_store.from_memory"]
    for number in (0, 1):
        record = with_part(record, number, from_store=SAMPLES // 2, from_memory=0, from_ranks=0)
    assert messages(record) == []
    preloaded = data_store_record(epoch=0, store_fill="preload")
    assert messages(preloaded) == []


def test_reads_from_the_device_while_serving_from_memory_are_found() -> None:
    record = dataclasses.replace(data_store_record(), payload_bytes=1 << 30)
    allowed = round(0.05 * (1 << 30))
    assert figures(with_reads(record, allowed)) == []
    assert figures(with_reads(record, allowed + 1)) == ["device_read_bytes"]
    assert figures(with_reads(record, None)) == []


def test_a_few_reads_may_be_of_libraries() -> None:
    record = dataclasses.replace(data_store_record(), payload_bytes=1 << 20)
    assert figures(with_reads(record, 16 << 20)) == []
    assert figures(with_reads(record, (16 << 20) + 1)) == ["device_read_bytes"]


def cold(before: float | None, after: float | None, cache: str = "cold", **cell: Any) -> Record:
    """Return the record of a job whose store was so far resident before and after an epoch from memory."""
    record = with_reads(data_store_record(cache=cache, **cell), 0)
    assert record.cache is not None
    facts = dataclasses.replace(record.cache, resident_frac_before=before, resident_frac_after=after)
    return dataclasses.replace(record, cache=facts)


def steps_of(*waits_ms: tuple[float, ...]) -> StepTable:
    """Return the step table of a job, given each rank's wait in each step, in milliseconds."""
    waits = np.array(waits_ms)
    return {
        "step": np.repeat(np.arange(waits.shape[1]), len(waits)),
        "rank": np.tile(np.arange(len(waits)), waits.shape[1]),
        "data_wait_ns": np.round(waits.T.reshape(-1) * 1e6).astype(np.int64),
    }


def waits(record: Record, steps: StepTable) -> list[Finding]:
    return list(check_waits(record, steps))


def test_a_rank_that_waited_longer_than_for_its_batches_is_found() -> None:
    record = data_store_record()
    assert waits(record, steps_of((100.0, 100.0), (100.0, 100.0))) == []
    (finding,) = waits(record, steps_of((100.0, 100.0), (100.0, 90.0)))
    assert finding.figure == "job.per_rank[1].data_store.waited_s"
    assert finding.message == "0.2 s, but the rank waited 0.19 s for its batches"


def test_waits_of_older_records_include_the_end_and_are_not_judged() -> None:
    record = with_part(data_store_record(), 1, after_last_s=None)
    assert waits(record, steps_of((100.0, 100.0), (0.0, 0.0))) == []
