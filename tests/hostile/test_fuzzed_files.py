"""Damage each kind of file that storebench reads: every answer is success or one line (`here` checks that).

Every change is drawn from a seed, and a failure names it.
"""

import json
import random
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.hostile.mutations import RAW, as_json, cut_or_flipped, mutated
from tests.support.container_files import WRITERS
from tests.support.foreign_files import jpegs, numbered, write_lmdb, write_vlen
from tests.support.thinning import some

Here = Callable[..., int]

ROUNDS = some(12)
"""Random changes of one file."""


def ask(here: Here, run: Path, change: str) -> None:
    """Ask the verbs that read a run; a report is made only where it is refused, because plots take seconds."""
    refused = here(change, "validate", run)
    here(change, "trace", run, "--out", run / "trace.json")
    if refused:
        here(change, "report", run, "--out", run / "report")


def test_records_of_a_run(here: Here, run: Path) -> None:
    path, random_ = run / "records.jsonl", random.Random(0)
    first, *rest = path.read_text(encoding="utf-8").splitlines()
    for _ in range(2 * ROUNDS):
        change, record = mutated(json.loads(first), random_)
        path.write_text("\n".join([json.dumps(record), *rest]) + "\n", encoding="utf-8")
        ask(here, run, change)


def test_the_facts_of_a_run(here: Here, run: Path) -> None:
    path, random_ = run / "run.json", random.Random(1)
    about = json.loads(path.read_text(encoding="utf-8"))
    for _ in range(ROUNDS):
        change, document = mutated(about, random_)
        path.write_bytes(as_json(document))
        ask(here, run, change)


def test_steps_of_a_run(here: Here, run: Path) -> None:
    path, random_ = next((run / "steps").iterdir()), random.Random(2)
    content = path.read_bytes()
    for _ in range(ROUNDS):
        change, damaged = cut_or_flipped(content, random_)
        path.write_bytes(damaged)
        ask(here, run, change)
    path.write_bytes(content)
    table = pq.read_table(path)
    for name in table.column_names:
        pq.write_table(table.drop_columns([name]), path)
        ask(here, run, f"{name} is missing")
    for name, raw in RAW.items():
        path.write_bytes(raw)
        ask(here, run, name)


@pytest.mark.parametrize("file", ["records.jsonl", "run.json"])
def test_other_content_in_a_file_of_a_run(here: Here, built: Path, run: Path, file: str) -> None:
    for name, content in RAW.items():
        (run / file).write_bytes(content)
        ask(here, run, f"{file}: {name}")
    scenario = built / "scenario.toml"
    code = here(file, "bench", scenario, "--resume", "--out", run, "--stores", built / "stores")
    assert code or file == "records.jsonl"


def test_the_manifest_of_a_store(here: Here, stores: Path) -> None:
    path, random_ = stores / "hdf5+raw" / "manifest.json", random.Random(3)
    manifest = json.loads(path.read_text(encoding="utf-8"))
    for _ in range(ROUNDS):
        change, document = mutated(manifest, random_)
        path.write_bytes(as_json(document))
        here(change, "verify", path.parent)


@pytest.mark.parametrize(
    ("store", "reader"),
    [
        ("lmdb+raw", "direct"),
        ("hdf5+raw", "direct"),
        ("memory+png", "shared"),
        ("leveldb+raw", "get"),
    ],
)
def test_the_files_of_a_store(here: Here, stores: Path, store: str, reader: str) -> None:
    random_ = random.Random(store)
    for path in sorted(path for path in (stores / store).rglob("*") if path.is_file())[:6]:
        content = path.read_bytes()
        changes = list(RAW.items())[:: len(RAW) // ROUNDS + 1]
        if path.suffix in {".npy", ".h5", ".bin"}:  # the libraries of the others end the process
            drawn = (cut_or_flipped(content[: 1 << 12], random_) for _ in range(2))
            changes += [(change, damaged + content[1 << 12 :]) for change, damaged in drawn]
        for change, damaged in changes:
            path.write_bytes(damaged)
            code = here(f"{path.name}: {change}", "verify", stores / store, "--reader", reader)
            assert code or change not in RAW or damaged == content, f"{path.name}: {change}"
        path.write_bytes(content)


FOREIGN: dict[str, Callable[[Path], Path]] = {
    "HDF5": lambda folder: write_vlen(folder / "a.h5", jpegs(20), chunks=(4,), compression="gzip"),
    "LMDB": lambda folder: write_lmdb(folder / "a", numbered(jpegs(20))),
}


@pytest.mark.parametrize("kind", FOREIGN)
def test_a_file_of_another_program_that_is_inspected(here: Here, in_memory: Path, kind: str) -> None:
    place, random_ = FOREIGN[kind](in_memory), random.Random(kind)
    files = [path for path in sorted(place.iterdir()) if path.stat().st_size] if place.is_dir() else [place]
    for _ in range(ROUNDS):
        path = random_.choice(files)
        content = path.read_bytes()
        change, damaged = cut_or_flipped(content, random_)
        path.write_bytes(damaged)
        here(f"{path.name}: {change}", "inspect", place, "--samples", "20")
        path.write_bytes(content)


@pytest.mark.parametrize("kind", WRITERS)
def test_a_container_that_is_converted(here: Here, in_memory: Path, kind: str) -> None:
    samples = [(content, number % 3) for number, content in enumerate(jpegs(12))]
    text, random_ = WRITERS[kind](in_memory / "data", samples), random.Random(kind)
    files = [path for path in sorted((in_memory / "data").iterdir()) if path.stat().st_size]
    asked = ("convert", "memory", "--dataset", text if "data.mdb" not in text else in_memory / "data")
    for number in range(ROUNDS):
        path = random_.choice(files)
        content = path.read_bytes()
        change, damaged = cut_or_flipped(content, random_)
        path.write_bytes(damaged)
        here(f"{path.name}: {change}", *asked, "--out", in_memory / f"stores{number}")
        path.write_bytes(content)


def test_a_scenario(here: Here, tmp_path: Path) -> None:
    path = tmp_path / "scenario.toml"
    for name, content in RAW.items():
        path.write_bytes(content)
        assert here(name, "bench", path, "--dry-run", "--stores", tmp_path / "stores") == 2, name
