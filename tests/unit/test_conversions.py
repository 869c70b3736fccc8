"""Conversions of one store into another: the same samples, timed as what they are, and recorded."""

import dataclasses
import json
import os
import pickle
import subprocess
from pathlib import Path

import numpy as np
import pytest

from storebench.conversion_rounds import ConversionRounds, conversion_pairs
from storebench.datasets import DatasetSpec
from storebench.formats.registry import parse_backend
from storebench.results import Cell, Status
from storebench.runs.conversions import (
    CONVERSIONS_NAME,
    append_conversion,
    read_conversions,
    seconds_by_source,
)
from storebench.runs.records import SUPERSEDED_NAME
from storebench.scenario import make_scenario
from storebench.stores.convert import ensure_store
from storebench.stores.find import Store, StoreSamples
from storebench.stores.verify import verify_store
from tests.support.quick_cli import storebench

SPEC = DatasetSpec(name="cifar10", limit=30, synthetic=True)


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("stores")


@pytest.fixture(scope="module")
def png(stores: Path) -> Store:
    return ensure_store(SPEC, parse_backend("png"), stores)


def convert(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return storebench(folder, "convert", *arguments)


def cells(*backends: str, **changes: object) -> list[Cell]:
    matrix = {
        "dataset": "cifar10",
        "limit": 30,
        "synthetic": True,
        "backends": list(backends),
        "compute": "none",
    }
    return make_scenario({"name": "pairs", "matrix": [matrix | changes]}).cells()


@pytest.mark.parametrize("target", ["lmdb", "hdf5", "leveldb+png", "files+raw"])
def test_a_conversion_holds_the_samples_of_its_source_and_of_the_dataset(
    png: Store, tmp_path: Path, target: str
) -> None:
    done = convert(tmp_path, target, "--from", str(png.path), "--out", str(tmp_path), "--json")
    assert done.returncode == 0, done.stderr
    (facts,) = json.loads(done.stdout)
    assert facts["samples_digest"] == png.manifest.samples_digest
    assert Path(facts["path"]).parent == tmp_path / png.path.parent.name
    assert verify_store(Path(facts["path"])).count == 30
    again = ensure_store(SPEC, parse_backend(target), tmp_path)
    assert not again.built, "a run takes a converted store for the dataset's"


def test_a_lossy_conversion_is_of_the_pixels_that_it_keeps(png: Store, tmp_path: Path) -> None:
    done = convert(tmp_path, "lmdb+jpeg", "--from", str(png.path), "--out", str(tmp_path), "--json")
    (facts,) = json.loads(done.stdout)
    assert facts["samples_digest"] != png.manifest.samples_digest
    assert verify_store(Path(facts["path"])).count == 30


def test_samples_of_a_store_are_those_of_the_dataset_in_any_process(png: Store) -> None:
    samples = StoreSamples(png.path)
    first, label = samples.sample(3)
    elsewhere = pickle.loads(pickle.dumps(samples))
    second, again = elsewhere.sample(3)
    assert np.array_equal(first, second)
    assert label == again
    assert len(samples) == 30
    samples.close()
    elsewhere.close()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["lmdb"], "name the samples with exactly one of --dataset, --list and --from"),
        (["lmdb", "--dataset", "mnist", "--from", "STORE"], "exactly one of"),
        (["lmdb", "--from", "STORE", "--limit", "3"], "--limit chooses samples of a dataset"),
        (["png", "--from", "STORE"], "files+png is the store itself"),
    ],
)
def test_what_cannot_be_meant_is_refused(png: Store, arguments: list[str], said: str) -> None:
    done = convert(
        png.path.parent, *(str(png.path) if argument == "STORE" else argument for argument in arguments)
    )
    assert done.returncode == 2
    assert said in done.stderr


def test_a_folder_that_is_no_store_is_refused(tmp_path: Path) -> None:
    done = convert(tmp_path, "lmdb", "--from", str(tmp_path))
    assert done.returncode == 5
    assert str(tmp_path) in done.stderr


def test_each_dataset_is_converted_from_png_into_each_store_once() -> None:
    wanted = cells("hdf5", "png", "lmdb", "lmdb:direct", "memory:native", "null", cache=["cold", "warm"])
    wanted += cells("hdf5", "lmdb", limit=20)
    pairs = [
        (pair.cell.data.limit, pair.source_name, pair.target_name)
        for pair in conversion_pairs({cell: Path(cell.backend.name) for cell in wanted})
    ]
    assert pairs == [
        (30, "files+png", "hdf5+raw"),
        (30, "files+png", "lmdb+raw"),
        (20, "hdf5+raw", "lmdb+raw"),
    ]


def rounds(run: Path, repeats: int) -> ConversionRounds:
    return ConversionRounds(folder=run, run_id="run", repeats=repeats, seed=1, environment=dict(os.environ))


def test_conversions_are_timed_in_phases_recorded_and_resumed(
    png: Store, stores: Path, tmp_path: Path
) -> None:
    before = sorted(stores.rglob("*"))
    wanted = dict(zip(cells("png", "lmdb"), (png.path, Path("unused")), strict=True))
    lines: list[str] = []
    rounds(tmp_path, 1).execute(wanted, lines.append)
    rounds(tmp_path, 2).execute(wanted, lines.append)
    assert (
        lines == [f"converting files+png into lmdb+raw, {n}" for n in ("1 of 2", "2 of 2")] or len(lines) == 2
    )
    records = read_conversions(tmp_path)
    assert [(record.replicate, record.status, record.failure) for record in records] == [
        (0, Status.OK, None),
        (1, Status.OK, None),
    ]
    for record in records:
        assert record.samples == 30
        assert 0 < record.make_s + record.write_s + record.sync_s <= record.seconds
        assert record.source_bytes == png.manifest.file_bytes
        assert record.file_bytes > 30 * 3072
        assert record.source_resident_frac is None or record.source_resident_frac < 0.01
    found = seconds_by_source(records, cells("lmdb:direct")[0])
    assert found == {"files+png": tuple(record.seconds for record in records)}
    assert sorted(stores.rglob("*")) == before, "nothing stays of a timed conversion"


def test_a_failed_conversion_is_recorded_until_it_runs_again(tmp_path: Path) -> None:
    folder = tmp_path / "stores" / "x"
    folder.mkdir(parents=True)
    wanted = dict(zip(cells("png", "lmdb"), (folder, folder), strict=True))
    rounds(tmp_path, 1).execute(wanted)
    (record,) = read_conversions(tmp_path)
    assert record.status is Status.FAILED
    assert record.failure
    assert seconds_by_source([record], cells("lmdb")[0]) == {}
    assert not rounds(tmp_path, 1).left(wanted)
    assert len(rounds(tmp_path, 1).left(wanted, retry_failed=True)) == 1
    failed = (tmp_path / CONVERSIONS_NAME).read_text()
    append_conversion(tmp_path, dataclasses.replace(record, status=Status.OK, seconds=2.0))
    assert seconds_by_source(read_conversions(tmp_path), cells("lmdb")[0]) == {"files+png": (2.0,)}
    assert not rounds(tmp_path, 1).left(wanted, retry_failed=True)
    assert (tmp_path / SUPERSEDED_NAME).read_text() == failed
    assert len(read_conversions(tmp_path)) == 1
