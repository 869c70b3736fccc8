"""Files that once ended in a traceback, given to the real command line: one line, the right exit code, no traceback."""

import json
import os
import re
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lmdb
import pytest

from tests.hostile.hostile_run import SAMPLES, Here, records_of, write_records
from tests.hostile.mutations import DEEP
from tests.support.quick_cli import storebench
from tests.support.step_tables import split

Completed = subprocess.CompletedProcess[str]
DEEP_JSON = "[" * DEEP + "]" * DEEP


def refused(done: Completed, code: int = 5) -> str:
    """Return the one line of a refusal."""
    assert done.returncode == code, (done.stdout, done.stderr)
    [line] = [line for line in done.stderr.splitlines() if not line.startswith("verifying ")]
    assert line.startswith("storebench: ")
    assert "unexpected" not in line
    return line


def put(**changes: Any) -> Callable[[dict[str, Any]], None]:
    return lambda manifest: manifest.update(changes)


MANIFESTS: dict[str, tuple[Callable[[dict[str, Any]], None], str]] = {
    "a format that is a list": (put(format=[]), "format"),
    "images of three terabytes": (
        lambda m: m["dataset"].update(image_shape=[10**6, 10**6, 3]),
        "image_shape",
    ),
    "images of negative height": (lambda m: m["dataset"].update(image_shape=[-28, 28, 1]), "image_shape"),
    "images without pixels": (lambda m: m["dataset"].update(image_shape=[0, 28, 1]), "image_shape"),
    "sizes in words": (put(file_bytes="x"), "file_bytes"),
    "a negative size": (put(payload_bytes=-1), "payload_bytes"),
    "more samples than there are numbers": (put(count=2**70), "count"),
    "a share above one": (lambda m: m["dataset"]["provenance"].update(derived_frac=2), "derived_frac"),
    "a duration without end": (put(build_s=float("inf")), "build_s"),
    "a name that no field has": (put(cuont=3), "cuont"),
    "a digest that is missing": (lambda m: m.pop("samples_digest"), "samples_digest"),
}


@pytest.mark.parametrize("name", MANIFESTS)
def test_a_manifest_that_cannot_be_names_its_field(here: Here, stores: Path, name: str) -> None:
    change, field = MANIFESTS[name]
    path = stores / "memory+raw" / "manifest.json"
    manifest = json.loads(path.read_text(encoding="utf-8"))
    change(manifest)
    path.write_text(json.dumps(manifest), encoding="utf-8")
    answer = here("verify", path.parent)
    answer.check(name)
    assert answer.code == 5
    assert re.search(rf"manifest\.json: a manifest with wrong fields \(.*{field}", answer.err)


@pytest.mark.parametrize("verb", ["validate", "trace", "check"])
def test_records_that_are_nested_100000_deep_are_refused(run: Path, tmp_path: Path, verb: str) -> None:
    with (run / "records.jsonl").open("a", encoding="utf-8") as file:
        file.write(f'{{"schema_version": {DEEP_JSON}}}\n')
    arguments = (run, run) if verb == "check" else (run,)
    done = storebench(tmp_path, verb, *arguments)
    assert "nested too deep" in (done.stdout if verb == "validate" else refused(done))
    assert done.returncode == 5
    assert "Traceback" not in done.stderr


def test_a_run_json_that_is_nested_100000_deep_is_refused(run: Path, built: Path, tmp_path: Path) -> None:
    (run / "run.json").write_text(f'{{"cells": {DEEP_JSON}}}', encoding="utf-8")
    assert "nested too deep" in refused(storebench(tmp_path, "report", run))
    done = storebench(tmp_path, "bench", built / "scenario.toml", "--resume", "--out", run)
    assert "not a run" in refused(done)


@pytest.mark.parametrize(("key", "value"), [("workers", "[" * 5000 + "]" * 5000), ("size", str(2**70))])
def test_a_scenario_beyond_what_python_and_numpy_take_is_refused(
    tmp_path: Path, key: str, value: str
) -> None:
    lines = ['name = "s"', "[[matrix]]", 'dataset = "mnist"', "synthetic = true", f"{key} = {value}"]
    (tmp_path / "s.toml").write_text("\n".join(lines), encoding="utf-8")
    assert "s.toml" in refused(storebench(tmp_path, "bench", "s.toml", "--dry-run"), code=2)


def test_a_size_beyond_all_data_is_refused_on_the_command_line(tmp_path: Path) -> None:
    samples = ("--dataset", "mnist", "--synthetic", "--size", 2**70)
    assert "size" in refused(storebench(tmp_path, "run", "lmdb", *samples), code=2)
    assert "size" in refused(storebench(tmp_path, "convert", "lmdb", *samples), code=2)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("verb", ["report", "trace"])
def test_a_table_of_steps_that_is_no_parquet_is_named(run: Path, tmp_path: Path, verb: str) -> None:
    split(run)
    table = run / records_of(run)[0]["steps_file"]
    table.write_bytes(b"PAR1 it is not PAR1")
    done = storebench(tmp_path, verb, run)
    assert table.name in done.stdout + refused(done)


@pytest.mark.parametrize("verb", ["report", "trace", "bench"])
def test_a_file_of_all_steps_that_is_no_parquet_is_named(
    run: Path, built: Path, tmp_path: Path, verb: str
) -> None:
    (run / "steps.parquet").write_bytes(b"PAR1 it is not PAR1")
    bench = (built / "scenario.toml", "--resume", "--replicates", 2, "--out")
    done = storebench(tmp_path, verb, *(bench if verb == "bench" else ()), run)
    assert "steps.parquet" in done.stdout + refused(done)
    assert not (run / "steps").exists() or not list((run / "steps").iterdir())


def test_images_without_pixels_in_a_record_are_named(run: Path, tmp_path: Path) -> None:
    records = records_of(run)
    records[0]["store"]["image_shape"] = [0, 0, 0]
    write_records(run, records)
    assert "store.image_shape: 0 is less than 1" in refused(storebench(tmp_path, "report", run))
    assert "store.image_shape: 0 is less than 1" in refused(storebench(tmp_path, "check", run, run))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0, 1e300, 2**70])
@pytest.mark.parametrize("name", ["open_s", "epoch_s", "cache.curve.elapsed_s"])
def test_a_record_with_a_figure_that_no_clock_shows_is_named(
    here: Here, run: Path, name: str, value: float
) -> None:
    records = records_of(run)
    part = records[0]["cache"]["curve"][1] if "curve" in name else records[0]
    part[name.rpartition(".")[2]] = value
    write_records(run, records)
    answer = here("validate", run)
    answer.check(f"{name} is {value}")
    assert answer.code == 5
    assert f"{name}: " in answer.out


def test_a_training_that_diverged_is_a_record(here: Here, run: Path) -> None:
    records = records_of(run)
    records[0]["portion"] = None
    records[0]["cache"]["curve"] = []
    records[0]["loss"] = {"first": 2.3, "last": float("nan")}
    write_records(run, records)
    answer = here("validate", run)
    assert answer.code == 0, answer.out


def test_an_lmdb_file_with_impossible_entries_is_refused_at_once(tmp_path: Path) -> None:
    entries, pages = 1 << 34, 1 << 26
    with lmdb.open(str(tmp_path / "db"), map_size=1 << 20) as env, env.begin(write=True) as transaction:
        transaction.put(b"%08d" % 0, b"x")
    path = tmp_path / "db" / "data.mdb"
    with path.open("r+b") as file:
        for number in (0, 1):
            # Of the meta page's main database: leaf pages and entries; then the last page.
            file.seek(number * 4096 + 88 + 16)
            file.write(struct.pack("<Q", pages))
            file.seek(number * 4096 + 88 + 32)
            file.write(struct.pack("<Q", entries))
            file.seek(number * 4096 + 136)
            file.write(struct.pack("<Q", pages - 1))
        try:
            file.truncate(pages * 4096)
        except OSError:
            pytest.skip("no file may be so large here")
    assert "than its record says" in refused(storebench(tmp_path, "inspect", path))


BOOM = """
import sys
from storebench.cli.common import exit_codes
from storebench.cli.main import app

@app.command("boom")
def boom() -> None:
    with exit_codes():
        {}

app(["boom"])
"""


def boom(temporary: Path, code: str, **variables: str) -> Completed:
    """Run a command with a bug in it."""
    command = [sys.executable, "-c", BOOM.format(code)]
    env = {**os.environ, "TMPDIR": str(temporary), **variables}
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("{}['a\\nb']", "KeyError"),
        ("(lambda f: f(f))(lambda f: f(f))", "RecursionError"),
        ("bytes(1 << 60)", "MemoryError"),
    ],
)
def test_an_error_that_nobody_expected_is_one_line_that_names_its_details(
    tmp_path: Path, code: str, kind: str
) -> None:
    done = boom(tmp_path, code)
    assert done.returncode == 5
    [line] = done.stderr.splitlines()
    assert line.startswith(f"storebench: unexpected error: {kind}")
    details = Path(line.rpartition(" ")[2])
    assert details.parent == tmp_path
    assert details.stat().st_mode & 0o077 == 0
    assert "Traceback (most recent call last)" in details.read_text(encoding="utf-8")


def test_an_unexpected_error_shows_its_traceback_when_that_is_asked_for(tmp_path: Path) -> None:
    assert "Traceback (most recent call last)" in boom(tmp_path, "1 / 0", STOREBENCH_DEBUG="1").stderr
    assert "Traceback" not in boom(tmp_path, "1 / 0", STOREBENCH_DEBUG="0").stderr


def test_a_known_error_shows_its_traceback_when_that_is_asked_for(tmp_path: Path) -> None:
    done = storebench(tmp_path, "verify", "nowhere", STOREBENCH_DEBUG="1")
    assert done.returncode == 5
    assert "Traceback (most recent call last)" in done.stderr
    assert done.stderr.splitlines()[-1].startswith("storebench: nowhere: not a store")
    assert storebench(tmp_path, "verify", "nowhere").stderr.count("\n") == 1


def test_the_stores_are_named_as_these_tests_name_them(built: Path) -> None:
    assert (built / "stores" / SAMPLES / "memory+raw" / "manifest.json").is_file()
