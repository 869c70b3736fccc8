"""Settings of the loop: each arrives in the record, and a new one is one field."""

import copy
import json
import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import storebench
from storebench.errors import CorruptDataError, ScenarioError
from storebench.record.lines import record_from_dict, record_to_dict
from storebench.record.schema import CELL_FIELDS, Cell, Record
from storebench.run.scenario import make_scenario
from storebench.settings.loop_fields import SETTINGS
from storebench.settings.setting import Setting
from storebench.settings.words import Compute, ComputeKind
from tests.support.revision_tools import BEING_COMPILED

NEW_FIELD = """
    gradient_steps: int | None = setting(
        default=None,
        meaning="Batches whose gradients are added up before the weights change.",
        least=1,
        most=64,
        label="{} batches per change",
        told=False,
    )
"""

LOOK = """
import json, sys
from pathlib import Path
import storebench
from storebench.errors import ScenarioError
from storebench.analysis.frame import sourced
from storebench.analysis.labels import setting_label
from storebench.analysis.summary import summarise
from storebench.record.schema import CELL_FIELDS, cell_types
from storebench.record.lines import read_records
from storebench.run.scenario import make_scenario

def cell_of(**keys):
    matrix = {"dataset": "mnist", "backends": ["lmdb"]} | keys
    return make_scenario({"name": "x", "matrix": [matrix]}).cells()[0]

try:
    refusal = cell_of(gradient_steps=65)
except ScenarioError as error:
    refusal = str(error)
[record] = read_records(sys.argv[1])
[cell] = summarise(sourced([(record, Path(sys.argv[1]))]))
print(json.dumps({
    "package": storebench.__file__,
    "last_field": list(CELL_FIELDS)[-1],
    "label": setting_label(cell, ["gradient_steps"]),
    "ids": [cell_of().cell_id, cell_of(gradient_steps=2).cell_id],
    "refusal": refusal,
    "type": str(cell_types()["gradient_steps"]),
}))
"""

VALUES = {
    "loader": "ring",
    "model": "tiny",
    "compute": "emulated:2.5",
    "device": "cuda",
    "shuffle": False,
    "cache": "warm",
    "memory": "64 MiB",
    "pad": True,
    "sync": "after",
    "share": "node",
    "store_fill": "first-epoch",
    "store_memory": "64 MiB",
    "trainer_data": "replicated",
    "tier": "100:2000",
    "place": "copy:s3:http://127.0.0.1:1/bucket",
}
"""Scenario key -> a value that is not the default; every other setting is a number."""


BESIDE: dict[str, dict[str, Any]] = {
    "memory": {"cache": "limited", "epochs": 1},
    "global_batch_size": {"ranks": 2},
    "pad": {"ranks": 2},
    "sync": {"ranks": 2},
    "share": {"ranks": 2},
    "store_fill": {"ranks": 2, "share": "store", "epochs": 2},
    "store_memory": {"ranks": 2, "share": "store"},
    "trainers": {"ranks": 8},
    "trainer_data": {"ranks": 2, "trainers": 2},
    "tournament_steps": {"ranks": 2, "trainers": 2},
}
"""Scenario key -> other keys that it needs."""


def recorded(**keys: Any) -> dict[str, Any]:
    """Return the cell of a record, as JSON, for a matrix with `keys`."""
    matrix = {"dataset": "mnist", "backends": ["lmdb"]} | keys
    [cell] = make_scenario({"name": "x", "matrix": [matrix]}).cells()
    record = Record(storebench_version="0", run_id="x", cell=cell, replicate=0, epoch=0, started_utc="")
    raw = json.loads(json.dumps(record_to_dict(record)))
    assert record_from_dict(raw, where="here") == record
    fields: dict[str, Any] = raw["cell"]
    return fields


@pytest.mark.parametrize("row", SETTINGS, ids=lambda row: row.key)
def test_the_key_of_each_setting_arrives_in_the_record(row: Setting) -> None:
    value = VALUES.get(row.key, 4 * ((row.least or 0) + 1))
    beside = BESIDE.get(row.key, {})
    plain, changed = recorded(), recorded(**beside, **{row.key: value})
    differing = {name for name in changed if changed[name] != plain[name]}
    assert changed[row.name] == (64 << 20 if row.text else value)
    alike = {"epochs"} if row.key == "memory" else set()
    assert differing == {row.name} | set(beside) - alike | (
        {"batch_size"} if row.key == "global_batch_size" else set()
    )


def test_a_record_has_the_fields_of_its_cell_in_order() -> None:
    fields = recorded()
    assert list(fields) == list(CELL_FIELDS)
    assert next(iter(CELL_FIELDS)) == "dataset"
    assert list(CELL_FIELDS)[14:] == [row.name for row in SETTINGS]


@pytest.mark.parametrize(
    ("text", "kind", "milliseconds"),
    [
        ("real", ComputeKind.REAL, 0.0),
        ("none", ComputeKind.NONE, 0.0),
        ("emulated:0.010", ComputeKind.EMULATED, 0.01),
    ],
)
def test_compute_is_read_and_keeps_its_spelling(text: str, kind: ComputeKind, milliseconds: float) -> None:
    compute = Compute(text)
    assert (compute.kind, compute.milliseconds) == (kind, milliseconds)
    for same in (copy.deepcopy(compute), pickle.loads(pickle.dumps(compute))):
        assert (same, same.kind, same.milliseconds) == (text, kind, milliseconds)
    assert recorded(compute=text, model="tiny")["compute"] == text


@pytest.mark.parametrize(
    "text", ["", "fast", "emulated", "emulated:", "emulated:-1", "emulated:1e3", "real "]
)
def test_what_is_no_compute_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="emulated:MILLISECONDS"):
        Compute(text)


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("cache", "icy", "'cold', 'warm', 'limited' or 'any'"),
        ("compute", "fast", "emulated:MILLISECONDS"),
    ],
)
def test_a_record_with_an_unknown_word_is_refused(field: str, value: str, words: str) -> None:
    raw = {"schema_version": 2, "storebench_version": "0", "run_id": "x", "started_utc": ""}
    raw |= {"cell": recorded() | {field: value}, "replicate": 0, "epoch": 0}
    with pytest.raises(CorruptDataError, match=words) as caught:
        record_from_dict(raw, where="here")
    assert f"cell.{field}: " in str(caught.value)


def test_adding_a_setting_is_one_field(tmp_path: Path) -> None:
    copied = tmp_path / "changed" / "storebench"
    shutil.copytree(Path(storebench.__file__).parent, copied, ignore=BEING_COMPILED)
    module = copied / "settings" / "loop_fields.py"
    text, before = module.read_text(), "\n    def __post_init__"
    assert text.count(before) == 1
    module.write_text(text.replace(before, NEW_FIELD + before))
    env = os.environ | {"PYTHONPATH": str(copied.parent)}

    def python(*arguments: str | Path) -> Any:
        command = [sys.executable, *map(str, arguments)]
        done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    samples = ("--dataset", "mnist", "--synthetic", "--limit", "32", "--threads", "1")
    loop = ("--model", "none", "--compute", "none", "--gradient-steps", "3")
    [record] = python("-m", "storebench", "run", "null", *samples, *loop, "--out", "run", "--json")
    assert record["status"] == "ok"
    assert record["cell"]["gradient_steps"] == 3
    seen = python("-c", LOOK, tmp_path / "run")
    assert Path(seen["package"]).is_relative_to(copied)
    assert seen["last_field"] == "gradient_steps"
    assert "3 batches per change" in seen["label"]
    assert seen["ids"][0] != seen["ids"][1]
    assert seen["refusal"].startswith("--gradient-steps: must be less than or equal to 64, not 65")
    assert seen["type"] == "int | None"


def ranked(**keys: Any) -> list[Cell]:
    matrix = {"dataset": "mnist", "backends": ["lmdb"]} | keys
    return make_scenario({"name": "x", "matrix": [matrix]}).cells()


def test_a_global_batch_is_divided_among_the_ranks() -> None:
    cells = ranked(ranks=[1, 2, 4], global_batch_size=64)
    assert [(cell.ranks, cell.batch_size, cell.global_batch_size) for cell in cells] == [
        (1, 64, None), (2, 32, 64), (4, 16, 64),
    ]  # fmt: skip
    [alone] = ranked(batch_size=64)
    assert cells[0].cell_id == alone.cell_id


def test_one_rank_has_one_cell_however_gradients_are_synchronised() -> None:
    cells = ranked(ranks=[1, 2], sync=["overlapped", "after", "none"], pad=True)
    assert [(cell.ranks, str(cell.sync), cell.pad) for cell in cells] == [
        (1, "overlapped", False), (2, "overlapped", True), (2, "after", True), (2, "none", True),
    ]  # fmt: skip
    assert len(ranked(ranks=[2], compute="none", sync=["after", "none"])) == 1


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"pad": True}, "pad is for jobs of several ranks: set ranks as well"),
        ({"ranks": [1, 3], "global_batch_size": 64}, "global_batch_size 64 cannot be divided among 3 ranks"),
        ({"ranks": 2, "global_batch_size": 64, "batch_size": 32}, "batch_size is that of one rank"),
        ({"ranks": 2, "share": "node", "workers": 2}, "share 'node' has one reader per node"),
        (
            {"ranks": 2, "share": "node", "backends": ["memory:native"]},
            "memory:native has no cell with share 'node'",
        ),
    ],
)
def test_settings_that_need_several_ranks_are_refused_without(keys: dict[str, Any], words: str) -> None:
    with pytest.raises(ScenarioError, match=words):
        ranked(**keys)


def test_one_trainer_has_one_cell_whatever_trainers_are_asked_for() -> None:
    cells = ranked(ranks=[2, 4], trainers=[1, 2], trainer_data=["partitioned", "replicated"])
    found = [(cell.ranks, cell.trainers, str(cell.trainer_data)) for cell in cells]
    assert sorted(found) == [
        (2, 1, "partitioned"), (2, 2, "partitioned"), (2, 2, "replicated"),
        (4, 1, "partitioned"), (4, 2, "partitioned"), (4, 2, "replicated"),
    ]  # fmt: skip
    [control, played] = ranked(ranks=2, trainers=2, tournament_steps=[0, 9], sync=["after"])
    assert [str(cell.sync) for cell in (control, played)] == ["overlapped"] * 2, (
        "a rank alone exchanges nothing"
    )
    assert control.cell_id != played.cell_id


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"ranks": [4, 6], "trainers": 4}, "6 ranks cannot be divided among 4 trainers"),
        ({"ranks": 2, "tournament_steps": 5}, "tournament_steps is for jobs of several trainers"),
        ({"ranks": 4, "trainers": 2, "sync": "none"}, "with trainers, sync cannot be 'none'"),
        (
            {"ranks": 2, "trainers": 2, "tournament_steps": 5, "compute": "emulated:5"},
            "tournament_steps needs compute 'real'",
        ),
        (
            {"ranks": 2, "trainers": 2, "tournament_steps": 5, "backends": ["lmdb", "null"]},
            "null has no samples on which a tournament could score networks",
        ),
        ({"ranks": 2, "trainers": 2, "share": "node"}, "with trainers, share must be 'none'"),
    ],
)
def test_trainers_that_make_no_sense_are_refused(keys: dict[str, Any], words: str) -> None:
    with pytest.raises(ScenarioError, match=words):
        ranked(**keys)
