"""What commands under faults start from, made once by commands without faults: stores, a run, a report."""

import functools
import shutil
from pathlib import Path

from tests.faults.engine import Place, run
from tests.support.quick_cli import CommandServer

STORES = {
    "memory": "memory+raw",
    "lmdb": "lmdb+raw",
    "hdf5": "hdf5+raw",
    "leveldb": "leveldb+raw",
    "png": "files+png",
}
"""Backends and the names of their stores."""

SAMPLES = ("--dataset", "mnist", "--synthetic", "--limit", "12")
SAMPLES_ID = "mnist-train-limit12-synthetic"
EPOCHS = 2
SCENARIO = """
name = "faults"
replicates = {replicates}
test_limit = 0

[[matrix]]
dataset = "mnist"
synthetic = true
limit = 12
batch_size = 4
model = "none"
compute = "{compute}"
threads = 1
epochs = 2
{more}
"""


class Templates:
    """What commands start from, made once by commands without faults: stores, a run, a report."""

    def __init__(self, folder: Path, server: CommandServer) -> None:
        self._folder, self._server = folder, server

    def stores(self, work: Path, *backends: str) -> Path:
        """Put the stores of `backends` into `work` and return the folder that they are in."""
        for backend in backends:
            part = Path("stores", SAMPLES_ID, STORES[backend])
            shutil.copytree(self._stores / part, work / part)
        return work / "stores" / SAMPLES_ID

    def run(self, work: Path) -> Path:
        """Put a whole run of one replicate, its scenario and its store into `work`; return the run's folder."""
        shutil.copytree(self._run, work, ignore=lambda *_: ["report", "tmp"], dirs_exist_ok=True)
        return work / "run"

    def report(self, work: Path) -> Path:
        """Put the report of the run into `work` and return its folder."""
        return Path(shutil.copytree(self._run / "report", work / "report"))

    @functools.cached_property
    def _stores(self) -> Path:
        return self._made(["convert", *STORES, *SAMPLES, "--out", "stores"])

    @functools.cached_property
    def _run(self) -> Path:
        return self._made(bench_command(), ["report", "run", "--out", "report"])

    def _made(self, *commands: list[str]) -> Path:
        """Return the folder in which commands were run."""
        place = Place.new(self._folder)
        (place.work / "scenario.toml").write_text(scenario())
        for command in commands:
            ending = run(command, place, server=self._server)
            if ending.code != 0:
                raise RuntimeError(f"{' '.join(command)}: exit code {ending.code}\n{ending.stderr}")
        return place.work


def scenario(more: str = 'backends = ["lmdb"]', replicates: int = 1, compute: str = "emulated:0.1") -> str:
    return SCENARIO.format(more=more, replicates=replicates, compute=compute)


def bench_command(*words: str) -> list[str]:
    return ["bench", "scenario.toml", "--stores", "stores", "--out", "run", *words]
