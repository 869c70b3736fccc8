"""Results of the checks on emulated nodes: written, read back, and printed as tables."""

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import pytest

from benchmarks.nodes import kept
from benchmarks.nodes.__main__ import main
from benchmarks.nodes.cluster import Epoch
from benchmarks.nodes.exchange import Exchange, read_by_ranks
from benchmarks.nodes.kept import Check, Replicate
from benchmarks.nodes.limits import MB, Limits, Observed, Probed
from benchmarks.scaling_io import Way
from tests.support.planted import make_record

LIMITS = Limits(link_bytes_per_s=40 * MB, device_bytes_per_s=(40 * MB, 20 * MB))
PROBED = Probed(sent_bytes_per_s=(38 * MB, 38 * MB), device_bytes_per_s=(40 * MB, 20 * MB))
OBSERVED = Observed(
    seconds=2.0,
    received_bytes=(1e6, 2e6),
    sent_bytes=(2e6, 1e6),
    read_bytes=(6e7, 3e7),
    received_peak=(1e6, 1e6),
    sent_peak=(1e6, 1e6),
    read_peak=(3e7, 2e7),
    busy_frac=0.25,
)
CELL = {"backend": "lmdb:direct", "ranks": 2, "compute": "none", "gradient_bytes": 0, "sync": "overlapped"}


def replicate(predicted: float, measured: float, error: float | None, **changes: Any) -> Replicate:
    """Return a replicate whose limits held."""
    plain = Replicate(
        limits=LIMITS,
        probed=PROBED,
        observed=OBSERVED,
        cell=CELL,
        round=0,
        epoch=0,
        samples_per_s=100.0,
        skew=0.5,
        payload_bytes=1000,
        device_read_bytes=(1_500_000, 20_000),
        failure="",
        marks=(),
        predicted=predicted,
        measured=measured,
        error=error,
    )
    return dataclasses.replace(plain, **changes)


def written(folder: Path, **replicates: list[Replicate]) -> Path:
    """Write the checks of a folder; those that are not named have one replicate without an error."""
    usual = [replicate(1.0, 1.0, 0.0)]
    for name in ("skew", "store", "model"):
        kept.keep(folder, Check(name=name, replicates=tuple(replicates.get(name, usual))))
    return folder


def printed(capsys: pytest.CaptureFixture[str], folder: Path) -> str:
    assert main(["tables", str(folder)]) == 0
    return capsys.readouterr().out


def test_a_check_is_read_back_as_it_was(tmp_path: Path) -> None:
    free = dataclasses.replace(LIMITS, device_bytes_per_s=(math.inf, math.inf))
    check = Check(
        name="model",
        replicates=(
            replicate(0.6, 0.7, 0.1, marks=("the cores were 90% busy",)),
            replicate(0.6, 0.7, None, limits=free, probed=None, observed=None, failure="it was killed"),
        ),
        ways={"lmdb:direct, 0 workers": Way(rate=100.0, cpu_s=0.001, amplification=1.0, load_s=0.0)},
    )
    kept.keep(tmp_path, check)
    assert kept.read(tmp_path, "model") == check
    content = json.loads((tmp_path / "model.json").read_text(encoding="utf-8"))
    assert content["emulated"] is True
    assert content["replicates"][1]["limits"]["device_bytes_per_s"] == [None, None]


def test_without_a_folder_nothing_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    kept.keep(None, Check(name="skew", replicates=()))
    assert list(tmp_path.iterdir()) == []


def test_marked_replicates_are_printed_and_do_not_count(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    marked = replicate(0.667, 0.9, 0.35, marks=("the cores were 90% busy",))
    lines = printed(capsys, written(tmp_path, skew=[replicate(0.667, 0.7, 0.05), marked])).splitlines()
    assert "| 40 and 20 | 0.667 | 0.700, 0.900 (marked) | +5.0%, +35.0% |" in lines
    assert (
        "The largest error of 1 replicate is 5.0%; 1 is marked, and the cores were at most 25% busy." in lines
    )


def test_replicates_that_failed_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    failed = replicate(0, 0, None, observed=None, failure="it was killed")
    checks = {name: [replicate(0.667, 0.7, 0.05), failed] for name in ("skew", "model")}
    text = printed(capsys, written(tmp_path, **checks))
    assert text.count("of 1 replicate is 5.0%; none is marked, 1 failed, and") == 1
    assert text.count("of 1 cell is 5.0%; none is marked, 1 failed, and") == 1


def test_bytes_that_a_rank_did_not_count_are_not_zero(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    epoch = replicate(13.82e6, 13.86e6, 0.003, device_read_bytes=(0, None))
    assert "| 2 | 13.82 | 13.86 | +0.3% | not counted |" in printed(capsys, written(tmp_path, store=[epoch]))
    moved = Exchange(nodes=2, payload_bytes=20_000_000, received_bytes=1e7, read_bytes=0)
    assert moved.right
    assert not dataclasses.replace(moved, read_bytes=200_001).right
    assert not dataclasses.replace(moved, received_bytes=1.051e7).right
    unknown = dataclasses.replace(moved, read_bytes=read_by_ranks((0, None)))
    assert not unknown.right
    assert str(unknown).endswith("ranks read uncounted bytes from disks")


def test_epochs_that_compare_nothing_are_not_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    epochs = [replicate(0, 0, None), replicate(13.82e6, 13.86e6, 0.003, epoch=1)]
    text = printed(capsys, written(tmp_path, store=epochs))
    assert "| 2 | 13.82 | 13.86 | +0.3% | 1.52 |" in text
    assert text.count("| 2 |") == 1


def test_cells_of_the_model_are_named_by_their_settings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trains = CELL | {"compute": "emulated:300", "gradient_bytes": 17_000_000, "sync": "after"}
    text = printed(
        capsys, written(tmp_path, model=[replicate(396, 430, -0.078), replicate(84, 81, 0.032, cell=trains)])
    )
    assert "Links of 40 MB/s, disks of 40 and 20 MB/s:" in text
    assert "| `lmdb:direct`, 2 ranks that only read | 396 | 430 | -7.8% |" in text
    assert "| `lmdb:direct`, 2 ranks, 300 ms, 17 MB of gradients after it | 84 | 81 | +3.2% |" in text


def test_the_figures_of_a_replicate_are_those_of_its_record() -> None:
    record = make_record("lmdb", steps=4)
    found = Replicate.of(Epoch(record=record, observed=OBSERVED, marks=()), LIMITS, PROBED, error=0.1)
    assert (found.samples_per_s, found.payload_bytes) == (record.samples_per_s, record.payload_bytes)
    assert (found.cell["backend"], found.skew, found.device_read_bytes) == ("lmdb", None, ())
    assert found.counts


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "there is no result of this check"),
        ("{", "not the result of a check"),
        ('{"schema_version": 2}', "schema version 2 is not 1"),
        (
            '{"schema_version": 1, "check": "skew", "ways": {}, "replicates": [{}]}',
            "not the result of a check",
        ),
        ("[]", "not the result of a check"),
    ],
)
def test_a_missing_or_damaged_result_is_one_line(
    content: str | None, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written(tmp_path)
    path = tmp_path / "skew.json"
    path.unlink() if content is None else path.write_text(content, encoding="utf-8")
    assert main(["tables", str(tmp_path)]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("emulated nodes: ")
    assert words in line
    assert "skew.json" in line
