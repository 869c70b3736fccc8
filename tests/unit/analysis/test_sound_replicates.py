"""A cell is judged by the replicates that held their state; the others are one line, and no figure rests on them."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

from storebench.analysis.checks.records import examine
from storebench.analysis.frame import sourced
from storebench.analysis.labels import not_held
from storebench.analysis.panels import rate_ratio
from storebench.analysis.summary import CellSummary, summarise
from storebench.record.schema import CacheVerdict, Record, Status
from storebench.report.build import write_report
from storebench.run.replicates import failures
from tests.support.findings import validate
from tests.support.planted import make_record, write_run

Cli = Callable[..., CompletedProcess[str]]

FASTER = {"wait_ms": 1.0, "compute_ms": 0.0}
SLOWER = {"wait_ms": 9.0, "compute_ms": 0.0}


def part(record: Record, name: str, **changes: Any) -> Record:
    return dataclasses.replace(record, **{name: dataclasses.replace(getattr(record, name), **changes)})


def evicted(record: Record) -> Record:
    return part(record, "counters", device_read_bytes=160 << 20)


def failed(record: Record) -> Record:
    record = part(record, "cache", verdict=CacheVerdict.FAILED, reason="12% resident")
    return dataclasses.replace(record, status=Status.FAILED, failure="the cache was not warm: 12% resident")


OUT: dict[str, Callable[[Record], Record]] = {
    "pages were read again": evicted,
    "the state was not reached": failed,
    "too few pages before": lambda r: part(r, "cache", resident_frac_before=0.5),
    "too few pages after": lambda r: part(r, "cache", resident_frac_after=0.5),
}


def cell_of(*records: Record) -> CellSummary:
    [cell] = summarise(sourced((record, Path("run/records.jsonl")) for record in records))
    return cell


def rounds(
    backend: str, count: int, out: int, change: Callable[[Record], Record], **changes: Any
) -> list[Record]:
    records = [make_record(backend, replicate=number, **changes) for number in range(count)]
    return [change(record) if number < out else record for number, record in enumerate(records)]


@pytest.mark.parametrize("name", OUT)
@pytest.mark.parametrize(
    ("count", "out", "has_rate"),
    [
        (5, 0, True),
        (5, 2, True),
        (5, 3, False),
        (3, 1, False),
        (2, 0, True),
    ],
)
def test_a_cell_has_a_rate_with_three_sound_replicates_or_all_of_fewer(
    name: str, count: int, out: int, has_rate: bool
) -> None:
    cell = cell_of(*rounds("lmdb", count, out, OUT[name]))
    assert (len(cell.replicates), len(cell.not_held), len(cell.sound)) == (count, out, count - out)
    assert (cell.median("samples_per_s") is not None) is has_rate
    assert cell.too_few is not has_rate
    if has_rate:
        assert [number for _, number in cell.values("samples_per_s")] == [*range(out, count)]
    assert len(not_held([cell])) == (1 if out else 0)
    assert cell.failure == cell.invalid == ""


def test_a_replicate_is_out_with_all_of_its_epochs() -> None:
    records = [make_record("lmdb", replicate=n, epoch=e, epochs=2) for n in range(4) for e in range(2)]
    records[3] = evicted(records[3])
    cell = cell_of(*records)
    assert {row["replicate"] for row in cell.usable} == {0, 2, 3}


@pytest.mark.parametrize(("count", "verdict"), [(6, "faster"), (5, "undecided")])
def test_a_pairing_has_the_rounds_in_which_both_are_sound(count: int, verdict: str) -> None:
    png, lmdb = rounds("png", count, 1, evicted, **SLOWER), rounds("lmdb", count, 0, evicted, **FASTER)
    ratio = rate_ratio(cell_of(*lmdb), cell_of(*png))
    assert ratio is not None
    assert (ratio.rounds, ratio.verdict) == (count - 1, verdict)


def test_a_finding_about_the_comparison_still_takes_out_the_cell(tmp_path: Path) -> None:
    records = rounds("lmdb", 5, 1, lambda r: part(r, "coverage", timed_wrong=1))
    write_run(tmp_path / "run", [*records, *rounds("png", 5, 1, evicted)])
    cells = {cell.backend: cell for cell in examine(tmp_path / "run").cells}
    assert cells["lmdb"].invalid
    assert not cells["png"].invalid
    assert {finding.of_replicate for finding in validate(tmp_path / "run")} == {True, False}


def test_every_command_reports_four_of_five(tmp_path: Path, cli: Cli) -> None:
    write_run(
        tmp_path / "run", [*rounds("png", 5, 1, evicted, **SLOWER), *rounds("lmdb", 5, 0, evicted, **FASTER)]
    )
    checked, listed = cli("validate", "run"), cli("validate", "run", "--json")
    assert checked.returncode == 0, checked.stderr
    assert "device_read_bytes" in checked.stdout
    assert [finding["of_replicate"] for finding in json.loads(listed.stdout)] == [True]
    content = write_report(tmp_path / "run", tmp_path / "report").content
    assert any("4 of 5 replicates held" in line for line in content.answer.lines)
    assert [len(cell.sound) for cell in sorted(content.cells, key=lambda cell: cell.backend)] == [5, 4]


def test_a_cell_without_a_rate_does_not_hide_the_others(tmp_path: Path, cli: Cli) -> None:
    write_run(tmp_path / "run", [*rounds("png", 5, 0, evicted), *rounds("lmdb", 5, 3, evicted)])
    assert cli("validate", "run").returncode == 5
    content = write_report(tmp_path / "run", tmp_path / "report").content
    assert [cell.backend for cell in content.cells if cell.median("samples_per_s")] == ["png"]
    assert any("no rate: 2 of 5 replicates held" in line for line in content.caveats)


@pytest.mark.parametrize(("out", "count"), [(1, 0), (3, 3)])
def test_a_state_that_did_not_hold_fails_a_run_only_if_its_cell_has_no_rate(out: int, count: int) -> None:
    assert len(failures(rounds("lmdb", 5, out, failed))) == count
    crashed = dataclasses.replace(make_record("png"), status=Status.FAILED, failure="killed")
    assert crashed in failures([crashed, *rounds("lmdb", 5, out, failed)])
