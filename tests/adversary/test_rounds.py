"""Attacks on the rounds of a run: lost ones are excused, lucky ones are added, and one run is given as two."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from storebench.report.checks.records import validate
from tests.support.quick_cli import storebench
from tests.support.step_tables import MERGED, write_merged

Raw = dict[str, Any]


def records_of(run: Path) -> list[Raw]:
    return [json.loads(line) for line in (run / "records.jsonl").read_text(encoding="utf-8").splitlines()]


def rewrite(run: Path, records: list[Raw], **about: Any) -> None:
    """Replace the records of a run, and some keys of its description."""
    text = "".join(json.dumps(record) + "\n" for record in records)
    (run / "records.jsonl").write_text(text, encoding="utf-8")
    path = run / "run.json"
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | about), encoding="utf-8")


def scenario_of(run: Path, **keys: Any) -> Raw:
    scenario: Raw = json.loads((run / "run.json").read_text(encoding="utf-8"))["scenario"]
    return scenario | keys


def ids_of(run: Path, *, without: str = "") -> list[str]:
    """Return the ids of the cells of a run, but for those of one backend."""
    cells = json.loads((run / "run.json").read_text(encoding="utf-8"))["cells"]
    return [cell["cell_id"] for cell in cells if cell["backend"] != without]


def add_a_lucky_round(run: Path) -> None:
    """Record a third round, which the scenario does not have, with the figures of the second."""
    records = records_of(run)
    lucky = [record | {"replicate": 2} for record in records if record["replicate"] == 1]
    rewrite(run, [*records, *lucky])


def lose_a_late_round(run: Path) -> None:
    """Drop the slow last round of PNG files, and say that their matrix has fewer replicates than the scenario."""
    kept = [
        record for record in records_of(run) if (record["cell"]["backend"], record["replicate"]) != ("png", 1)
    ]
    matrices = [matrix | {"replicates": 1} for matrix in scenario_of(run)["matrix"]]
    rewrite(run, kept, scenario=scenario_of(run, matrix=matrices))


def change(run: Path, backend: str, change_one: Callable[[Raw], Raw]) -> None:
    """Replace the warm records of one backend."""
    rewrite(
        run,
        [
            change_one(record)
            if (record["cell"]["backend"], record["cell"]["cache"]) == (backend, "warm")
            else record
            for record in records_of(run)
        ],
    )


def repeat_the_best_round(run: Path) -> None:
    """Put the figures of the first round of HDF5 in the place of those of the second, with its own number and time."""
    [best] = [r for r in records_of(run) if key_of(r) == ("hdf5", "warm", 0)]
    own = ("replicate", "started_utc")
    change(run, "hdf5", lambda record: best | {name: record[name] for name in own})


def repeat_the_best_round_with_other_steps(run: Path) -> None:
    """The same, but the copy names the steps of the round that it replaces."""
    [best] = [r for r in records_of(run) if key_of(r) == ("hdf5", "warm", 0)]
    own = ("replicate", "started_utc", "steps_file")
    change(run, "hdf5", lambda record: best | {name: record[name] for name in own})


def key_of(record: Raw) -> tuple[str, str, int]:
    return record["cell"]["backend"], record["cell"]["cache"], record["replicate"]


def exchange_two_cells(run: Path) -> None:
    """Give HDF5 the figures of PNG files and PNG files those of HDF5."""
    records = records_of(run)
    of = {key_of(record): record for record in records}
    other = {"hdf5": "png", "png": "hdf5"}
    own = ("cell", "store", "replicate", "started_utc")

    def exchanged(record: Raw) -> Raw:
        backend, cache, number = key_of(record)
        if backend not in other or cache != "warm":
            return record
        return of[other[backend], cache, number] | {name: record[name] for name in own}

    rewrite(run, [exchanged(record) for record in records])


def exchange_two_cells_and_their_steps(run: Path) -> None:
    """The same, and each names the steps that it has got."""
    steps = pq.read_table(run / MERGED)
    names = {record["steps_file"]: key_of(record) for record in records_of(run) if record["steps_file"]}
    of = {key: name for name, key in names.items()}
    other = {"hdf5": "png", "png": "hdf5"}
    renamed = [
        of[other[names[name][0]], *names[name][1:]]
        if names[name][0] in other and names[name][1] == "warm"
        else name
        for name in steps["steps_file"].to_pylist()
    ]
    place = steps.column_names.index("steps_file")
    write_merged(run, steps.set_column(place, steps.schema.field(place), pa.array(renamed)))
    exchange_two_cells(run)
    exchanged = records_of(run)
    rewrite(run, [record | {"steps_file": of[key_of(record)]} for record in exchanged])


def exchange_them_and_take_the_labels_out(run: Path) -> None:
    """The same, and the rows no longer say for which cell they were written."""
    exchange_two_cells_and_their_steps(run)
    write_merged(run, pq.read_table(run / MERGED).drop_columns(["cell_id"]))


def exchange_them_without_a_description(run: Path) -> None:
    """The same, in a folder that does not say what should have run."""
    exchange_two_cells_and_their_steps(run)
    (run / "run.json").unlink()


def renumber_the_rounds(run: Path) -> None:
    """Count the rounds of PNG files backwards, so that they are paired with other rounds."""
    change(run, "png", lambda record: record | {"replicate": 1 - record["replicate"]})


def drop_the_last_round(run: Path) -> None:
    """Leave out the last round of PNG files, as if the run had been interrupted before it."""
    rewrite(run, [record for record in records_of(run) if key_of(record)[::2] != ("png", 1)])


def drop_every_last_round(run: Path) -> None:
    """Leave out the last round of all cells."""
    rewrite(run, [record for record in records_of(run) if record["replicate"] != 1])


def measure_with_other_code(run: Path) -> None:
    """Say that PNG files were measured with another revision."""
    change(run, "png", lambda record: record | {"code": record["code"] | {"digest": "0" * 32}})


def serve_another_order(run: Path) -> None:
    """Say of every cell that it served the same order, which is not that of the seed."""
    rewrite(
        run, [r | {"digests": r["digests"] | {"order": "0" * 32}} for r in records_of(run) if r["digests"]]
    )


ATTACKS: dict[str, tuple[Callable[[Path], None], str]] = {
    "a round that the scenario does not have": (add_a_lucky_round, "replicate"),
    "a lost last round is none of its cell's": (lose_a_late_round, "replicate"),
    "a round is a copy of a better one": (repeat_the_best_round, "steps_file"),
    "a round has the times of a better one": (repeat_the_best_round_with_other_steps, "epoch_s"),
    "two cells have each other's figures": (exchange_two_cells, "steps_file"),
    "two cells have each other's figures and steps": (exchange_two_cells_and_their_steps, "steps_file"),
    "two cells are exchanged, and the labels of their steps are gone": (
        exchange_them_and_take_the_labels_out,
        "steps_file",
    ),
    "two cells are exchanged, and the run has no description": (
        exchange_them_without_a_description,
        "steps_file",
    ),
    "rounds are paired with others": (renumber_the_rounds, "steps_file"),
    "the last round of a finished run is gone": (drop_the_last_round, "replicate"),
    "the last rounds of a finished run are gone": (drop_every_last_round, "replicate"),
    "steps are there whose records are gone": (drop_every_last_round, "records.jsonl"),
    "a cell was measured with other code": (measure_with_other_code, "code"),
    "an order that is not the seed's": (serve_another_order, "digests.order"),
}


@pytest.mark.parametrize("name", ATTACKS)
def test_changed_rounds_are_found(run: Path, name: str) -> None:
    attack, figure = ATTACKS[name]
    attack(run)
    assert figure in {finding.figure for finding in validate(run)}


def test_a_run_that_was_extended_may_lack_its_last_rounds(run: Path) -> None:
    """It may be interrupted although the step tables of its first rounds are in one file."""
    scenario = scenario_of(run, replicates=4)
    rewrite(run, records_of(run), scenario=scenario)
    assert "replicate" in {finding.figure for finding in validate(run)}
    rewrite(run, records_of(run), scenario=scenario, extended_utc=["2026-01-02T03:04:05Z"])
    assert [str(finding) for finding in validate(run)] == []


def test_a_superseded_record_that_names_no_text_is_no_crash(run: Path) -> None:
    (run / "superseded.jsonl").write_text('{"steps_file": []}\n{"steps_file": {"a": 1}}\n', encoding="utf-8")
    assert [str(finding) for finding in validate(run)] == []


def copied(run: Path, copy: Path) -> None:
    """Give a copy of a run as another run, years later."""
    shutil.copytree(run, copy)
    records = [
        record | {"run_id": "another", "started_utc": f"2036{record['started_utc'][4:]}"}
        for record in records_of(copy)
    ]
    rewrite(copy, records, run_id="another")


def test_a_copy_of_a_run_is_no_second_run(run: Path, tmp_path: Path) -> None:
    copied(run, tmp_path / "copy")
    own = {
        finding.figure for finding in validate([run])
    }  # a busy machine may have measured a ceiling too low
    assert {finding.figure for finding in validate([run, tmp_path / "copy"])} - own == {"run_id"}
    done = storebench(tmp_path, "report", run, tmp_path / "copy", "--out", "report")
    assert done.returncode == 5, done.stderr
    assert "one of them is a copy" in done.stderr
