"""``storebench run --dataset PATH`` and nothing else: it chooses, measures, and says whether converting is worth it."""

import json
import math
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image as PilImage

from storebench.record.lines import RECORDS_NAME
from tests.support.harness_tools import Bench, CompletedText

SHORT = ("--max-steps", "6", "--batch-size", "8", "--workers", "1")
"""Epochs of a few milliseconds; a first run chooses longer ones."""


def write_tiny(root: Path, count: int = 96, classes: int = 2) -> Path:
    """Write class folders of small square images of one size."""
    for number in range(count):
        folder = root / f"class{number % classes}"
        folder.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(number).integers(0, 256, (16, 16, 3), dtype=np.uint8)
        PilImage.fromarray(pixels).save(folder / f"{number:04d}.png")
    return root


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("tiny") / "images")


@pytest.fixture(scope="module")
def answered(
    bench: Bench, tiny: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, CompletedText]:
    """Run on tiny images, twice per cell."""
    out = tmp_path_factory.mktemp("first") / "run"
    words = ("--replicates", "2", "--stores", bench.stores, "--out", out)
    return out, bench.cli("run", "--dataset", tiny, *SHORT, *words)


def records_of(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / RECORDS_NAME).read_text().splitlines()]


def test_it_ends_with_what_to_do_and_a_row_per_choice(answered: tuple[Path, CompletedText]) -> None:
    _, done = answered
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) <= 25
    assert "undecided after 2 rounds" in lines[0].lower()
    assert any(line.strip().startswith("your files ") for line in lines)
    assert any("raw pixels" in line for line in lines)
    for label in ("Cost: ", "Memory: "):
        assert [line for line in lines if line.startswith(label)], done.stdout


def test_its_cells_only_load(answered: tuple[Path, CompletedText]) -> None:
    records = records_of(answered[0])
    cells = [record["cell"] for record in records if record["cell"]["compute"] == "none"]
    assert {cell["backend"] for cell in cells} == {"original", "lmdb+original", "lmdb"}
    assert {(cell["model"], cell["compute"], cell["cache"]) for cell in cells} == {("none", "none", "warm")}
    assert {record["store"]["image_shape"][0] for record in records} == {16}  # small images stay as they are
    assert len(cells) == 3 * 2


def test_an_interrupted_one_is_continued_and_answers_the_same_question(
    answered: tuple[Path, CompletedText], bench: Bench, tmp_path: Path
) -> None:
    out = Path(shutil.copytree(answered[0], tmp_path / "run"))
    kept = (out / RECORDS_NAME).read_text().splitlines(keepends=True)
    (out / RECORDS_NAME).write_text("".join(kept[:-2]))
    done = bench.cli("run", "--resume", "--out", out, "--stores", bench.stores)
    assert done.returncode == 0, done.stderr
    assert "2 replicates done" in done.stderr
    assert len(records_of(out)) >= len(kept)
    assert any(line.strip().startswith("your files ") for line in done.stdout.splitlines())


def test_it_can_be_shared(answered: tuple[Path, CompletedText], bench: Bench, tmp_path: Path) -> None:
    shared = tmp_path / "machine.json.xz"
    assert bench.cli("share", answered[0], "--out", shared).returncode == 0
    validated = bench.cli("validate", shared)
    assert validated.returncode == 0, validated.stdout
    report = ("--out", tmp_path / "report", "--json")
    done = [bench.cli("report", run, *report) for run in (answered[0], shared)]
    first, second = (json.loads(one.stdout)["answer"] for one in done)
    assert first.startswith("On a busy machine") is second.startswith("On a busy machine")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--out", "nowhere"), "there is no run to resume"),
        (
            ("--out", "nowhere", "--workers", "2"),
            "--resume continues the run as it was begun, without workers",
        ),
    ],
)
def test_a_continued_run_keeps_its_settings(words: tuple[str, ...], said: str, bench: Bench) -> None:
    done = bench.cli("run", "--resume", *words)
    assert done.returncode == 2
    assert said in done.stderr
    assert not (bench.root / "nowhere").exists()


def test_photographs_are_stored_as_they_are_and_as_squares(
    data_root: Path, bench: Bench, tmp_path: Path
) -> None:
    photos = tmp_path / "photos"
    for path in sorted((data_root / "imagenet" / "train").rglob("*.*"))[:70]:
        (photos / path.parent.name).mkdir(parents=True, exist_ok=True)
        (photos / path.parent.name / path.name).symlink_to(path)
    words = ("--replicates", "1", "--stores", tmp_path / "stores", "--out", tmp_path / "run")
    done = bench.cli("run", "-d", photos, *SHORT, *words, "--accelerator", "a100")
    assert done.returncode == 0, done.stderr
    records = records_of(tmp_path / "run")
    assert len(records) == 5
    by = {record["cell"]["backend"]: record for record in records}
    assert by["lmdb"]["store"]["image_shape"] == [224, 224, 3]
    assert by["lmdb+jpeg"]["store"]["image_shape"] == [256, 256, 3]
    sizes = sum(path.stat().st_size for path in photos.rglob("*.*") if path.is_file())
    assert by["original"]["store"]["payload_bytes"] == sizes
    lines = done.stdout.splitlines()
    assert "undecided after 1 round" in lines[0].lower()  # one round tells nothing
    files = next(line for line in lines if line.strip().startswith("your files "))
    counted = by["original"]["counters"]
    cpu_s = (counted["cpu_user_s"] + counted["cpu_system_s"]) / by["original"]["samples"]
    assert int(re.split(r"\s{2,}", files.strip())[4]) == math.ceil(2470 * cpu_s)
    assert "a100" in done.stdout
    assert "rtx4090" not in done.stdout


def test_a_plan_says_what_would_be_measured_and_writes_nothing(
    tiny: Path, bench: Bench, tmp_path: Path
) -> None:
    done = bench.cli(
        "run", "-d", tiny, "--dry-run", "--stores", tmp_path / "stores", "--out", tmp_path / "run"
    )
    assert done.returncode == 0, done.stderr
    assert "4 cells x 10 replicates" in done.stdout
    assert list(tmp_path.iterdir()) == []


def refused(done: CompletedText, code: int = 2) -> str:
    """Return the last line on standard error, which is the refusal."""
    assert done.returncode == code, done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    return done.stderr.splitlines()[-1]


def test_too_few_images_are_refused_with_what_to_do(bench: Bench, tmp_path: Path) -> None:
    few = write_tiny(tmp_path / "few", count=10)
    line = refused(bench.cli("run", "-d", few, "--stores", tmp_path / "stores", "--out", tmp_path / "run"))
    assert "10 images are too few to time anything; at least 64 are needed" in line
    assert "--size 2000" in line
    assert [path.name for path in tmp_path.iterdir()] == ["few"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("run", "{tiny}"), "a folder, not a backend. Write '--dataset {tiny}'"),
        (
            ("{tiny}",),
            "{tiny}: a folder, not a command. To measure its images: storebench run --dataset {tiny}",
        ),
        (("run",), "'--dataset PATH' names a folder of images."),
        (("run", "-d", __file__), "Name such a file, a folder of images, or --list FILE"),
    ],
)
def test_a_folder_in_the_wrong_place_gets_the_right_line(
    words: tuple[str, ...], said: str, tiny: Path, bench: Bench
) -> None:
    done = bench.cli(*(word.format(tiny=tiny) for word in words))
    assert said.format(tiny=tiny) in refused(done)
