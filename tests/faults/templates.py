"""What commands under faults start from, made once by commands without faults: stores, a run, a report."""

import shutil
from collections.abc import Sequence
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
        self._made: set[str] = set()

    def stores(self, work: Path, *backends: str) -> Path:
        """Put the stores of `backends` into `work` and return the folder that they are in."""
        made = self._work("stores", ["convert", *STORES, *SAMPLES, "--out", "stores"])
        for backend in backends:
            part = Path("stores", SAMPLES_ID, STORES[backend])
            shutil.copytree(made / part, work / part)
        return work / "stores" / SAMPLES_ID

    def run(self, work: Path) -> Path:
        """Put a whole run of one replicate, its scenario and its store into `work`; return the run's folder."""
        made = self._work("run", bench_command(), scenario=scenario())
        for name in ("stores", "run"):
            shutil.copytree(made / name, work / name)
        shutil.copy(made / "scenario.toml", work)
        return work / "run"

    def report(self, work: Path) -> Path:
        """Put the report of the run into `work` and return its folder."""
        made = self._made_from_run("report", ["report", "run", "--out", "report"])
        shutil.copytree(made / "report", work / "report")
        return work / "report"

    def _made_from_run(self, name: str, command: Sequence[str]) -> Path:
        self._work("run", bench_command(), scenario=scenario())
        return self._work(name, command, run_of=self._folder / "run" / "work" / "run")

    def _work(
        self, name: str, command: Sequence[str], *, scenario: str = "", run_of: Path | None = None
    ) -> Path:
        """Return the folder in which `command` was run, once."""
        place = Place(folder=self._folder / name, cache=self._folder / "cache")
        if name in self._made:
            return place.work
        place.make()
        (place.work / "scenario.toml").write_text(scenario)
        if run_of is not None:
            shutil.copytree(run_of, place.work / "run")
        ending = run(command, place, server=self._server)
        if ending.code != 0:
            raise RuntimeError(f"{' '.join(command)}: exit code {ending.code}\n{ending.stderr}")
        self._made.add(name)
        return place.work


def scenario(more: str = 'backends = ["lmdb"]', replicates: int = 1, compute: str = "emulated:0.1") -> str:
    return SCENARIO.format(more=more, replicates=replicates, compute=compute)


def bench_command(*words: str) -> list[str]:
    return ["bench", "scenario.toml", "--stores", "stores", "--out", "run", *words]
