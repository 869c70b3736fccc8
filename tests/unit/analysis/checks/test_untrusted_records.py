"""Records that somebody else wrote: their words are printed, drawn and tabulated, and command nothing."""

import dataclasses
import json
import re
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree as ET

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import storebench
from storebench.cli.main import app
from storebench.errors import StorebenchError
from storebench.record.lines import append_records
from storebench.record.schema import Cell, Environment, Record, Status
from tests.support.planted import make_record, steps_table, write_run

PWN = "::error::pwn"
NASTY = f"\n{PWN} ##[error]x \x1b[31mred\u202e <script>alert(1)</script> | [x](http://e) $\\frac{{$"
CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2028\u2029]")


def nasty(record: Record) -> Record:
    """Return a record in which every word that somebody else chooses is a trap."""
    words = {
        "dataset": f"folder:a{NASTY.replace('/', '')}",
        "backend": f"@SUM(1){NASTY}" if record.cell.backend.name == "lmdb" else "png",
        "model": NASTY,
    }
    cell = Cell.of_fields(**(record.cell.fields() | words))
    environment = Environment(
        key=NASTY, match={NASTY: NASTY, "filesystem": "=1+1", "cores": 2}, notes={NASTY: 1}
    )
    assert record.store is not None
    store = dataclasses.replace(record.store, source=NASTY, provenance_note=NASTY)
    return dataclasses.replace(record, cell=cell, environment=environment, store=store, run_id=NASTY)


def trapped() -> Iterator[Record]:
    for backend in ("png", "lmdb", "hdf5"):
        for replicate in range(3):
            yield nasty(make_record(backend, replicate=replicate, cache="warm"))
    one = nasty(make_record("leveldb", cache="warm"))
    yield dataclasses.replace(one, status=Status.FAILED, failure=NASTY, samples_per_s=0.0)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("nasty") / "run", list(trapped()), with_steps=True)


def storebench_lines(*arguments: object) -> list[str]:
    """Run the command line and return what it printed; nothing in it is a command or moves a cursor."""
    done = CliRunner().invoke(app, list(map(str, arguments)))
    assert done.exit_code in (0, 5), done.output
    assert "Traceback" not in done.output
    for text in (done.stdout, done.stderr):
        harmless(text)
    return [*done.stdout.splitlines(), *done.stderr.splitlines()]


def harmless(text: str) -> None:
    assert not CONTROL.search(text)
    assert not [line for line in text.split("\n") if line.lstrip().startswith("::")]


@pytest.fixture(scope="module")
def report(run: Path) -> Path:
    out = run.parent / "report"
    lines = storebench_lines("report", run, "--out", out, "--allow-invalid", "--plots")
    assert any("pwn" in line for line in lines)
    return out


def test_the_files_of_a_report_hold_no_command_and_no_control_character(report: Path) -> None:
    texts = [path for path in report.iterdir() if path.suffix in (".html", ".md", ".csv", ".svg")]
    assert len(texts) > 8
    for path in texts:
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".html":  # its own style and script have tabs and may have anything else
            text = re.sub(r"(?s)<(style|script)>.*?</\1>", "", text)
        harmless(text)
        if path.suffix != ".csv":
            assert "<script>alert" not in text


def test_plots_are_drawn_of_names_with_dollar_signs_and_are_well_formed(report: Path) -> None:
    drawings = list(report.glob("*.svg"))
    assert len(drawings) >= 5
    for path in drawings:
        ET.parse(path)
        assert path.with_suffix(".png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("verb", ["validate", "report", "trace"])
def test_findings_and_lines_of_a_verb_are_plain(verb: str, run: Path, tmp_path: Path) -> None:
    wrong = nasty(make_record("lmdb", cache="warm", data_wait_frac=3.0))
    other = write_run(tmp_path / "run", [wrong], with_steps=True)
    out = () if verb == "validate" else ("--out", tmp_path / f"{verb}.json")
    assert storebench_lines(verb, other, *out)


ELSEWHERE = ("/etc/passwd", "steps/../../steps.parquet", "other/steps.parquet", "a\0b")


def with_steps_at(folder: Path, name: str) -> Path:
    """Write a run whose record names its table of steps so; there is one, one folder above the run."""
    record = make_record("lmdb", cache="warm")
    pq.write_table(pa.Table.from_pandas(steps_table(record)), folder / "steps.parquet")
    run = write_run(folder / "run", [])
    (run / "other").mkdir()
    pq.write_table(pa.Table.from_pandas(steps_table(record)), run / "other" / "steps.parquet")
    append_records(run, [dataclasses.replace(record, steps_file=name)])
    return run


@pytest.mark.parametrize("name", ELSEWHERE)
def test_a_table_of_steps_outside_of_its_run_is_not_read(name: str, tmp_path: Path) -> None:
    run = with_steps_at(tmp_path, name)
    done = CliRunner().invoke(app, ["report", str(run), "--allow-invalid", "--out", str(run / "x")])
    assert done.exit_code == 5, done.output
    assert "outside of the run's steps/" in done.stderr
    done = CliRunner().invoke(app, ["validate", str(run), "--json"])
    assert done.exit_code == 5
    assert "steps_file" in {entry["figure"] for entry in json.loads(done.stdout)}
    with pytest.raises(StorebenchError, match="outside"):
        storebench.load_steps(run)
    assert not (run / "x").exists()
