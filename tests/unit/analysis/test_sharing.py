"""A shared file says what its run says, names nobody, and any change of a rate, an interval or a count is found."""

import dataclasses
import json
import lzma
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

from storebench.analysis.checks.records import read_results
from storebench.analysis.sharing import share
from storebench.record.schema import CacheVerdict, Environment, PlaceFacts, Status
from storebench.record.shared import packed, read_shared
from storebench.report.content import content_of
from tests.docs.doc_files import ROOT
from tests.support.findings import validate
from tests.support.planted import make_record, paper_records, portion_of, write_run

REFERENCE = ROOT / "results" / "reference"
Content = Any
Cli = Callable[..., CompletedProcess[str]]


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a sound shared run with warm and limited cells, as JSON."""
    folder = tmp_path_factory.mktemp("sharing")
    part = [make_record("lmdb", cache="limited", memory_bytes=64 << 20, replicate=n) for n in range(3)]
    part = [dataclasses.replace(record, portion=portion_of(record)) for record in part]
    content, packed = share(write_run(folder / "run", [*paper_records("warm", rounds=3), *part]))
    (folder / "sound.json.xz").write_bytes(packed)
    assert validate(folder / "sound.json.xz") == []
    return json.dumps(content)


def scaled(part: Content, *names: str, by: float = 1.2) -> None:
    """Multiply figures, or divide them by whose name a "/" stands."""
    for name in names:
        part[name.strip("/")] *= 1 / by if name.startswith("/") else by


def warm(content: Content) -> Content:
    return next(record for record in content["records"] if record["cell"]["backend"] == "hdf5")


def steady(content: Content) -> Content:
    return next(record["portion"] for record in content["records"] if record["portion"])


def rated(content: Content) -> Content:
    return content["cells"][0]


PLANTED: dict[str, Callable[[Content], object]] = {
    "a rate": lambda c: scaled(warm(c), "samples_per_s"),
    "the time of a rate": lambda c: scaled(warm(c), "/timed_s"),
    "a rate and its time": lambda c: scaled(warm(c), "samples_per_s", "/timed_s"),
    "a rate, its time and the rest of it": lambda c: scaled(
        warm(c), "samples_per_s", *("/timed_s", "/data_wait_s", "/compute_s", "/h2d_s", "/overhead_s")
    ),
    "the samples of a rate": lambda c: scaled(warm(c), "timed_samples", by=2),
    "a rate and its samples": lambda c: scaled(warm(c), "timed_samples", "samples_per_s", by=2),
    "the share of waits": lambda c: scaled(warm(c), "data_wait_frac"),
    "a rate of bytes": lambda c: scaled(warm(c), "payload_bytes_per_s", by=2),
    "the steps": lambda c: scaled(warm(c), "steps", by=0.5),
    "a steady rate": lambda c: scaled(steady(c), "samples_per_s"),
    "the time of a steady rate": lambda c: scaled(steady(c), "/seconds"),
    "a steady rate and its time": lambda c: scaled(steady(c), "samples_per_s", "/seconds"),
    "the rate of a cell": lambda c: scaled(rated(c), "images_per_s"),
    "the lower end of an interval": lambda c: scaled(rated(c), "low", by=1.01),
    "the upper end of an interval": lambda c: scaled(rated(c), "high", by=1.01),
    "an interval": lambda c: scaled(rated(c), "images_per_s", "low", "high"),
    "the number of replicates": lambda c: scaled(rated(c), "replicates", by=2),
    "the number of records": lambda c: scaled(rated(c), "records", by=2),
    "the samples that came": lambda c: scaled(warm(c)["coverage"], "served", by=2),
    "the samples of an epoch": lambda c: scaled(warm(c), "samples", by=2),
    "a sample twice": lambda c: warm(c)["coverage"].update(duplicates=1),
    "a sample missing": lambda c: warm(c)["coverage"].update(missing=1),
    "a wrong sample": lambda c: warm(c)["coverage"].update(timed_wrong=1),
    "the bytes of an epoch": lambda c: scaled(warm(c), "payload_bytes", by=2),
    "a replicate left out": lambda c: c["records"].remove(warm(c)),
    "a replicate added": lambda c: c["records"].append(warm(c) | {"replicate": 99}),
    "a replicate recorded twice": lambda c: c["records"].append(warm(c)),
    "a cell left out": lambda c: c["cells"].remove(rated(c)),
    "a warm cell that was cold": lambda c: warm(c)["cache"].update(resident_frac_before=0.5),
    "the order of samples": lambda c: warm(c)["digests"].update(order="0" * 32),
    "a path": lambda c: warm(c).update(storebench_version="/home/somebody"),
}


@pytest.mark.parametrize("planted", PLANTED)
def test_a_changed_figure_is_found(planted: str, text: str, tmp_path: Path) -> None:
    content = json.loads(text)
    PLANTED[planted](content)
    (tmp_path / "changed.json.xz").write_bytes(packed(content))
    assert validate(tmp_path / "changed.json.xz") != []


@pytest.mark.parametrize("name", ["overlap", "lmdbio-limited"])
def test_a_shared_file_says_what_its_run_says(name: str, tmp_path: Path, cli: Cli) -> None:
    told = cli("share", str(REFERENCE / name), "--out", "run.json.xz")
    assert told.returncode == 0
    assert len(told.stdout.splitlines()) == 10
    assert "{" not in told.stdout
    assert cli("validate", "run.json.xz").stderr == "no findings\n"
    run, shared = (content_of(read_results(path)) for path in (REFERENCE / name, tmp_path / "run.json.xz"))
    assert shared.answer.sentence == run.answer.sentence
    assert shared.answer.conditions == run.answer.conditions
    assert shared.caveats == run.caveats
    assert shared.overview
    assert run.overview
    assert shared.overview.rows == run.overview.rows


@pytest.mark.parametrize("order", [1, -1])
def test_folders_have_numbers_in_the_order_of_their_names(order: int, tmp_path: Path) -> None:
    records = [
        dataclasses.replace(
            make_record(backend, replicate=n, place=place), place=PlaceFacts(server=f"ext4 on {place}")
        )
        for n in range(3)
        for backend, place in (("lmdb", "/a"), ("png", "copy:/b"))[::order]
    ]
    (tmp_path / "run.json.xz").write_bytes(share(write_run(tmp_path / "run", records))[1])
    shared = read_results(tmp_path / "run.json.xz").records
    numbers = {(str(record.cell.backend), str(record.cell.place)) for record, _ in shared}
    assert numbers == {("lmdb", "/place-0"), ("png", "copy:/place-1")}
    assert {record.place.server for record, _ in shared if record.place} == {"ext4"}


def test_a_shared_file_names_nobody(tmp_path: Path) -> None:
    record = make_record("lmdb", dataset="folder:/home/alice/secret", place="/scratch/alice")
    match = {"kernel": "6.8.0-alice", "filesystem": "ext4", "mount_options": ["alice"], "cores": 2}
    assert record.store
    named = dataclasses.replace(
        record,
        run_id="20260101T000000Z-alice",
        environment=Environment(key="e1", match=match, notes={"host": "alice", "mount_options": ["alice"]}),
        reader_notes={"index": "/home/alice", "shuffle buffer": "1000"},
        store=dataclasses.replace(record.store, source="alice", provenance_note="secret"),
        ceilings=dataclasses.replace(record.ceilings, device_method="/home/alice", reasons={"a": "alice"}),
        counters=dataclasses.replace(record.counters, reasons={"cpu_user_s": "alice"}),
    )
    assert record.cache
    failed = dataclasses.replace(
        named,
        replicate=1,
        status=Status.FAILED,
        failure="/home/alice: no answer after 60 s; see alice.log",
        cache=dataclasses.replace(
            record.cache, verdict=CacheVerdict.FAILED, reason="9% resident; cold cannot exist on /home/alice"
        ),
    )
    run = write_run(tmp_path / "alice", [named, failed])
    (tmp_path / "run.json.xz").write_bytes(share(run)[1])
    content = read_shared(tmp_path / "run.json.xz")
    for word in ("alice", "secret", "scratch", "home"):
        assert word not in json.dumps(content)
    assert validate(tmp_path / "run.json.xz") == []
    assert [(r["cell"]["dataset"][:7], r["cell"]["place"], r["failure"]) for r in content["records"]] == [
        ("images-", "/place-0", None),
        ("images-", "/place-0", "no answer after"),
    ]
    assert content["records"][0]["environment"]["match"]["kernel"] == "6.8.0"
    assert content["records"][1]["cache"]["reason"] == "9% resident"
    assert content["records"][0]["reader_notes"] == {"shuffle buffer": "1000"}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "cut short"),
        (b"{}", "not a shared run"),
        (lzma.compress(b"[]"), "not a shared run"),
        (lzma.compress(b'{"records": [], "cells": [1]}'), "not a shared run"),
        (lzma.compress(b'{"records": [{}], "cells": [{}]}')[:-9], "cut short"),
        (lzma.compress(b'{"records": [], "cells": []}' + b" " * (40 << 20), preset=0), "not a shared run"),
    ],
    ids=["empty", "text", "a list", "no cells", "half", "a bomb"],
)
def test_a_file_that_is_no_shared_run_is_refused(content: bytes, said: str, tmp_path: Path, cli: Cli) -> None:
    (tmp_path / "run.json.xz").write_bytes(content)
    done = cli("validate", "run.json.xz")
    assert done.returncode == 5
    assert said in done.stdout
