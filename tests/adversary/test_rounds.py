"""Attacks on the rounds of a run: lost ones are excused, lucky ones are added, and one run is given as two."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from storebench.report.validation.validate import validate
from tests.support.quick_cli import storebench

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


def excuse_a_lost_replicate(run: Path) -> None:
    """Drop the slow first round of PNG files, and say that this round was added for the other cells only."""
    records = records_of(run)
    kept = [record for record in records if (record["cell"]["backend"], record["replicate"]) != ("png", 0)]
    rewrite(run, kept, added_rounds=[{"replicate": 0, "cell_ids": ids_of(run, without="png")}])


def add_a_lucky_round(run: Path) -> None:
    """Record a third round, which the scenario does not have, with the figures of the second."""
    records = records_of(run)
    lucky = [record | {"replicate": 2} for record in records if record["replicate"] == 1]
    rewrite(run, [*records, *lucky])


def list_a_lucky_round(run: Path) -> None:
    """Record a third round, and list it as added although no rule added it."""
    records = records_of(run)
    lucky = [record | {"replicate": 2} for record in records if record["replicate"] == 1]
    rewrite(run, [*records, *lucky], added_rounds=[{"replicate": 2, "cell_ids": ids_of(run)}])


def lose_a_late_round(run: Path) -> None:
    """Drop the slow last round of PNG files, and say that their matrix has fewer replicates than the scenario."""
    kept = [
        record for record in records_of(run) if (record["cell"]["backend"], record["replicate"]) != ("png", 1)
    ]
    matrices = [matrix | {"replicates": 1} for matrix in scenario_of(run)["matrix"]]
    rewrite(run, kept, scenario=scenario_of(run, matrix=matrices))


def hide_the_rule(run: Path) -> None:
    """Say nothing of the rule by which the run stopped, so that its intervals are not corrected for it."""
    rewrite(run, records_of(run), scenario=scenario_of(run, until=0.1), stopping=None)


def soften_the_rule(run: Path) -> None:
    """Say that the run was to be as precise as it turned out to be."""
    rule = {"until": 0.5, "min_replicates": 5, "max_replicates": 12, "budget_s": None}
    rewrite(run, records_of(run), scenario=scenario_of(run, until=0.1), stopping=rule, stops=[])


def claim_a_rule(run: Path) -> None:
    """Say that precision ended a run whose number of rounds was fixed."""
    rule = {"until": 0.1, "min_replicates": 5, "max_replicates": 12, "budget_s": None}
    rewrite(run, records_of(run), stopping=rule, stops=[])


ATTACKS: dict[str, tuple[Callable[[Path], None], str]] = {
    "a lost replicate is excused by an added round": (excuse_a_lost_replicate, "added_rounds"),
    "a round that the scenario does not have": (add_a_lucky_round, "replicate"),
    "a lost last round is none of its cell's": (lose_a_late_round, "replicate"),
    "a lucky round is listed as added": (list_a_lucky_round, "added_rounds"),
    "the rule for added rounds is hidden": (hide_the_rule, "stopping"),
    "the rule for added rounds is softened": (soften_the_rule, "stopping"),
    "a rule is claimed that the scenario lacks": (claim_a_rule, "stopping"),
}


@pytest.mark.quiet  # it comes first, so it makes the run, which must not be a busy machine's
def test_the_rule_that_added_rounds_is_no_finding(run: Path) -> None:
    """The same description, with the rule of its scenario and a round that this rule can have added."""
    rule = {"until": 0.1, "min_replicates": 5, "max_replicates": 12, "budget_s": 720.0}
    scenario = scenario_of(run, until=0.1, budget="12 min")
    added = [{"replicate": 5, "cell_ids": ids_of(run)}]
    rewrite(run, records_of(run), scenario=scenario, stopping=rule, added_rounds=added, stops=[])
    assert [str(finding) for finding in validate(run)] == []


@pytest.mark.parametrize("name", ATTACKS)
def test_changed_rounds_are_found(run: Path, name: str) -> None:
    attack, figure = ATTACKS[name]
    attack(run)
    assert figure in {finding.figure for finding in validate(run)}


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
