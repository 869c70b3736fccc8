"""Every verb and the functions of notebooks refuse damaged or wrong records, and mark them where they are allowed."""

import dataclasses
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import storebench
from storebench.cli.main import app
from storebench.errors import IntegrityError
from storebench.record.lines import append_records
from storebench.record.schema import Record
from tests.support.planted import make_record, write_run

VERBS: dict[str, Callable[[Path, Path], Sequence[Any]]] = {
    "report": lambda run, out: ("report", run, "--out", out),
    "plan": lambda run, _: ("plan", run, "--accelerator", "mine=500"),
    "export": lambda run, out: ("export", run, "--csv", out),
    "trace": lambda run, out: ("trace", run, "--out", out),
    "validate": lambda run, _: ("validate", run),
    "check a baseline": lambda run, out: ("check", run, sound(out.with_name("sound"))),
    "check a contender": lambda run, out: ("check", sound(out.with_name("sound")), run, "--markdown", out),
}
ALLOWING = ("report", "plan")


def with_steps(folder: Path, records: Sequence[Record]) -> Path:
    return write_run(folder, list(records), with_steps=True)


def records() -> list[Record]:
    return [make_record(name, replicate=n, cache="warm") for n in range(5) for name in ("png", "lmdb")]


def sound(folder: Path) -> Path:
    return with_steps(folder, records())


def missing_samples(folder: Path) -> Path:
    """Write a run of whose LMDB cell 3 samples are missing."""
    return with_steps(
        folder,
        [
            dataclasses.replace(record, coverage=dataclasses.replace(record.coverage, missing=3))
            if record.cell.backend.name == "lmdb" and record.coverage
            else record
            for record in records()
        ],
    )


def damaged(folder: Path) -> Path:
    """Write a run of which a line in the middle is cut."""
    run = sound(folder)
    first, *lines = (run / "records.jsonl").read_text().splitlines(keepends=True)
    (run / "records.jsonl").write_text("".join([first, lines[0][:300], "\n", *lines[1:]]))
    return run


WRONG = {"missing samples": missing_samples, "a damaged line": damaged}


def invoke(words: Sequence[Any]) -> tuple[int, str]:
    done = CliRunner().invoke(app, list(map(str, words)))
    assert "Traceback" not in done.output
    return done.exit_code, done.output


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("verb", VERBS)
def test_wrong_records_end_every_verb_with_5(verb: str, wrong: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    code, said = invoke(VERBS[verb](WRONG[wrong](tmp_path / "run"), out))
    assert code == 5, said
    assert ("3 missing" if wrong == "missing samples" else "records.jsonl:2: ") in said
    assert not os.path.lexists(out)


@pytest.mark.parametrize("verb", VERBS)
def test_sound_records_pass_every_verb(verb: str, tmp_path: Path) -> None:
    code, said = invoke(VERBS[verb](sound(tmp_path / "run"), tmp_path / "out"))
    assert code in ((0, 4) if verb.startswith("check") else (0,)), said


@pytest.mark.parametrize(
    ("verb", "expected"), [("trace", 2), ("check a baseline", 3), ("check a contender", 5)]
)
def test_verbs_of_one_run_refuse_a_folder_of_several(verb: str, expected: int, tmp_path: Path) -> None:
    for name in ("first", "second"):
        sound(tmp_path / "runs" / name)
    code, said = invoke(VERBS[verb](tmp_path / "runs", tmp_path / "out"))
    assert code == expected, said


@pytest.mark.parametrize("verb", ALLOWING)
def test_wrong_records_are_marked_where_they_are_allowed(verb: str, tmp_path: Path) -> None:
    words = VERBS[verb](missing_samples(tmp_path / "run"), tmp_path / "out")
    code, said = invoke([*words, "--allow-invalid"])
    assert code == 0, said


def test_notebooks_refuse_wrong_records_unless_they_allow_them(tmp_path: Path) -> None:
    run = missing_samples(tmp_path / "run")
    for read in (storebench.load_results, storebench.load_steps):
        with pytest.raises(IntegrityError, match="3 missing"):
            read(run)
    results = storebench.load_results(run, allow_invalid=True)
    assert set(results[results["invalid"].notna()]["backend"]) == {"lmdb"}
    with pytest.raises(IntegrityError, match="3 missing"):
        storebench.compare(results, baseline="png")
    compared = storebench.compare(results, baseline="png", allow_invalid=True)
    assert compared["verdict"].tolist() == ["undecided"]
    sound_run = sound(tmp_path / "sound")
    assert len(storebench.compare(storebench.load_results(sound_run), baseline="png")) == 1


def test_a_finished_run_with_wrong_records_ends_with_5(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def plant(run: Any, *_: Any, **__: Any) -> None:
        append_records(run.folder, [dataclasses.replace(record, run_id=run.run_id) for record in planted])

    planted = [make_record("lmdb", replicate=0)]
    planted = [
        dataclasses.replace(r, coverage=dataclasses.replace(r.coverage, missing=3))
        for r in planted
        if r.coverage
    ]
    monkeypatch.setattr("storebench.run.execute.execute", plant)
    samples = ("--dataset", "mnist", "--synthetic", "--limit", "64", "--compute", "none")
    words = ("run", "memory", *samples, "--stores", tmp_path / "stores", "--out", tmp_path / "run")
    for options in ((), ("--json",)):
        code, said = invoke([*words[:-1], tmp_path / f"run{len(options)}", *options])
        assert (code, "3 missing" in said) == (5, True), said
        assert json.loads((tmp_path / f"run{len(options)}" / "run.json").read_text())
