"""The command line: one line to refuse, and the exit code that the documentation promises."""

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from storebench.cli.main import app
from storebench.run.folder import Run
from storebench.run.scenario import load_scenario

CompletedText = subprocess.CompletedProcess[str]
Cli = Callable[..., CompletedText]

SCENARIO = """\
name = "bad"

[[matrix]]
dataset = "mnist"
synthetic = true
limit = 8
backends = ["lmdb"]
"""


def refused(done: CompletedText, code: int = 2) -> str:
    """Return the one line on standard error."""
    assert done.returncode == code, done.stderr
    assert done.stdout == ""
    [line] = done.stderr.splitlines()
    assert line.startswith("storebench: ")
    return line


def refused_here(*words: str) -> str:
    """Return the line with which this process refuses a command line before it runs the verb."""
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 2, done.output
    assert done.stdout == ""
    [line] = done.stderr.splitlines()
    assert line.startswith("storebench: ")
    return line


NUMBERS = {
    "convert png --dataset mnist": "size limit image-size processes seed",
    "run lmdb --dataset mnist": (
        "size limit image-size replicates timeout workers batch-size epochs max-steps threads"
        " ranks global-batch-size seed"
    ),
    "bench smoke": "replicates rounds timeout nodes node",
    "inspect data.mdb": "samples",
    "trace .": "replicate epoch",
}
"""A command line -> its options that take a number."""


@pytest.mark.parametrize("words", NUMBERS)
@pytest.mark.parametrize("value", ["-1", "many"])
def test_every_number_is_refused_in_one_line_with_its_option(value: str, words: str) -> None:
    for name in NUMBERS[words].split():
        line = refused_here(*words.split(), f"--{name}", value)
        assert f"--{name}" in line
        assert value in line


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("inspect", "missing argument 'PATH'. 'storebench inspect --help' explains it."),
        (
            "convert --wrong",
            "--wrong (Possible options: --json). 'storebench convert --help' explains it.",
        ),
        ("trace . there", "(there). 'storebench trace --help' explains it."),
        ("mesure", "'mesure'. 'storebench --help' lists all commands."),
        ("data fetch", "'storebench data fetch --help' explains it."),
        ("--wrong", "no such option: --wrong"),
    ],
)
def test_what_cannot_be_parsed_is_refused_in_one_line(words: str, said: str) -> None:
    assert said in refused_here(*words.split())


def test_bench_refuses_a_missing_scenario_and_missing_cells(cli: Cli, tmp_path: Path) -> None:
    assert "storebench scenarios" in refused(cli("bench", "nothing.toml"))
    (tmp_path / "good.toml").write_text(SCENARIO)
    assert "Use one of: lmdb, mnist." in refused(cli("bench", "good.toml", "--only", "hdf5"))


def test_a_run_is_never_overwritten_and_only_a_run_is_resumed(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "good.toml").write_text(SCENARIO)
    assert "there is no run to resume" in refused(cli("bench", "good.toml", "--resume", "--out", "run"))
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").write_text("{}")
    said = refused(cli("bench", "good.toml", "--out", "run"))
    assert "there is already a run here" in said
    assert "--resume" in said
    refused(cli("run", "lmdb", "--dataset", "mnist", "--out", "run"))
    assert (tmp_path / "run" / "run.json").read_text() == "{}"
    assert "not a run" in refused(cli("bench", "good.toml", "--resume", "--out", "run"), code=5)


def test_a_run_is_not_resumed_with_another_scenario(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "good.toml").write_text(SCENARIO)
    Run.create(load_scenario(tmp_path / "good.toml"), tmp_path / "run", [])
    (tmp_path / "good.toml").write_text(SCENARIO.replace("bad", "other"))
    said = refused(cli("bench", "good.toml", "--resume", "--out", "run"))
    assert "the run here belongs to the scenario 'bad'" in said


def test_a_folder_that_cannot_be_written_is_refused(cli: Cli, tmp_path: Path) -> None:
    if os.geteuid() == 0:
        locked = Path("/sys/storebench")  # where not even root makes folders
    else:
        locked = tmp_path / "locked" / "run"
        locked.parent.mkdir(mode=0o500)
    said = refused(
        cli("run", "lmdb", "--dataset", "mnist", "--synthetic", "--limit", "8", "--out", str(locked))
    )
    assert f"{locked}: no permission to write. Name a folder that you may write with --out." in said


def test_a_dry_run_refuses_ranks_that_no_nodes_can_share(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "ranks.toml").write_text(f"{SCENARIO}ranks = [1, 2, 4]\n")
    nodes = ("bench", "ranks.toml", "--nodes", "4")
    said = refused(cli(*nodes, "--dry-run"))
    assert "--nodes: 2 ranks cannot be divided among 4 nodes" in said
    assert said == refused(cli(*nodes, "--rendezvous", "127.0.0.1:29400", "--node", "0"))


def test_a_dry_run_says_what_it_would_do_and_does_nothing(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "good.toml").write_text(SCENARIO.replace('["lmdb"]', '["lmdb", "png"]\nworkers = [0, 2]'))
    done = cli("bench", "good.toml", "--dry-run", "--json")
    plan = json.loads(done.stdout)
    assert len(plan["cells"]) == 4
    assert {store["name"] for store in plan["stores"]} == {
        "mnist-train-limit8-synthetic/lmdb+raw",
        "mnist-train-limit8-synthetic/files+png",
    }
    assert plan["write_bytes"] == sum(store["store_bytes"] for store in plan["stores"])
    assert [path.name for path in tmp_path.iterdir()] == ["good.toml"]
    spoken = cli("bench", "good.toml", "--dry-run")
    assert "4 cells x 1 replicate;" in spoken.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["good.toml"]


LISTED = ("--dataset", "mnist", "--synthetic", "--limit", "8")


def test_options_that_are_axes_take_lists(cli: Cli, tmp_path: Path) -> None:
    axes = (
        "--workers",
        "0,2",
        "--loader",
        "threads, ring",
        "--cache",
        "cold,warm",
        "--compute",
        "none,emulated:2",
    )
    done = cli("run", "lmdb", "png", *LISTED, *axes, "--batch-size", "4,8", "--dry-run", "--json")
    assert done.returncode == 0, done.stderr
    cells = json.loads(done.stdout)["cells"]
    assert len(cells) == 2 * 2**5
    for name, values in {
        "workers": {0, 2},
        "loader": {"threads", "ring"},
        "cache": {"cold", "warm"},
        "compute": {"none", "emulated:2"},
        "batch_size": {4, 8},
        "backend": {"lmdb", "png"},
        "threads": {1},
    }.items():
        assert {cell[name] for cell in cells} == values, name
    spoken = cli("run", "lmdb", *LISTED, "--workers", "0,2", "--dry-run")
    assert "2 cells x 1 replicate; " in spoken.stdout.splitlines()[-1]
    assert "about" in spoken.stdout.splitlines()[-1]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["lmdb", "--workers", "0,two"], "--workers: 'two' is not a whole number"),
        (["lmdb", "--workers", "0,,2"], "--workers: an empty value in '0,,2'"),
        (["lmdb", "--workers", "0,999"], "--workers: must be less than or equal to 256, not 999"),
        (["lmdb", "--wokers", "1"], "--wokers"),
        (["lmdb", "--cache", "cold,icy"], "--cache: must be 'cold', 'warm', 'limited' or 'any', not"),
        (["lmdb", "--loader", "ring,rings"], "--loader: must be 'processes', 'threads' or 'ring', not"),
        (["lmdb", "--tier", "floppy"], "no tier is called 'floppy'"),
        (["lmdb", "--readahead", "128,3"], "--readahead: readahead is in KiB and a multiple of 4"),
        (["lmdb", "--model", "none", "--compute", "real"], "compute 'real' needs a model"),
        (["lmdb", "--split", "tain"], "'train' or 'test'"),
        (["lmdb", "--dataset", "mnits"], "Did you mean 'mnist'?"),
        (["lmdb", "--dataset", "photos"], "no dataset is called 'photos', and there is no such folder"),
        (["lmbd"], "BACKEND: no format is called 'lmbd'. Did you mean 'lmdb'?"),
        (["ffcv"], "BACKEND: no format is called 'ffcv'. Known: "),
        (["lmdb:gett"], "Did you mean 'get'?"),
        (["lmdb?readahed=off"], "readahead"),
    ],
)
def test_an_error_names_the_argument_or_option_and_the_item_and_makes_nothing(
    arguments: list[str], words: str, cli: Cli, tmp_path: Path
) -> None:
    listed = LISTED[2:] if "--dataset" in arguments else LISTED
    assert words in refused(cli("run", *arguments, *listed, "--out", "run"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
def test_a_device_that_is_not_there_is_refused_before_anything_is_written(cli: Cli, tmp_path: Path) -> None:
    cuda = "cuda: there is no CUDA device here. Use the device cpu."
    assert cuda in refused(cli("run", "lmdb", *LISTED, "--device", "cuda", "--out", "run"))
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "gpu.toml").write_text(SCENARIO.replace("limit = 8", 'limit = 8\ndevice = "cuda"'))
    assert cuda in refused(cli("bench", "gpu.toml", "--out", "run"))
    assert not (tmp_path / "run").exists()
    assert cli("bench", "gpu.toml", "--dry-run").returncode == 0  # a plan needs no device


@pytest.mark.parametrize(
    ("words", "model", "batch"),
    [
        (("--compute", "none"), "none", 64),
        (("--compute", "none", "--model", "caffenet"), "caffenet", 256),
        (("--compute", "none,real"), "lenet", 64),
        ((), "lenet", 64),
    ],
)
def test_no_network_is_chosen_where_nothing_is_trained(
    words: tuple[str, ...], model: str, batch: int, cli: Cli
) -> None:
    done = cli("run", "lmdb", *LISTED, *words, "--dry-run", "--json")
    assert done.returncode == 0, done.stderr
    assert {(cell["model"], cell["batch_size"]) for cell in json.loads(done.stdout)["cells"]} == {
        (model, batch)
    }
