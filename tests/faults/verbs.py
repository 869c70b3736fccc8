"""The commands that faults are planted into: what each starts from, what is run, and what must hold afterwards."""

import json
import shutil
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from pathlib import Path

from tests.faults.engine import Ending
from tests.faults.invariants import (
    complete_run_problems,
    failures_name_a_file,
    file_problems,
    run_problems,
    store_problems,
)
from tests.faults.templates import (
    EPOCHS,
    SAMPLES,
    SAMPLES_ID,
    STORES,
    Templates,
    bench_command,
    scenario,
)


@dataclass(kw_only=True)
class Verb(ABC):
    """A command, what it starts from, and what must hold after a fault in it."""

    name: str
    templates: Templates
    points: int
    sample: int
    normal: int = 0
    known: dict[str, list[bytes]] = field(default_factory=dict)

    @abstractmethod
    def prepare(self, work: Path) -> None:
        """Put everything into `work` that the command starts from."""

    @abstractmethod
    def command(self, work: Path) -> list[str]:
        """Return the command into which the fault is planted."""

    def again(self, work: Path) -> list[str]:
        """Return the command with which somebody would go on after the fault."""
        return self.command(work)

    @abstractmethod
    def after_fault(self, work: Path, ending: Ending) -> list[str]:
        """Return what does not hold right after the fault."""

    @abstractmethod
    def complete(self, work: Path) -> list[str]:
        """Return what is missing of the command's whole result."""

    def after_again(self, work: Path, ending: Ending) -> list[str]:
        """Return what does not hold after the command that went on."""
        return self.complete(work)

    def learn(self, work: Path) -> None:
        """Keep what a run of the command without a fault wrote, to compare with."""
        self.known.clear()


@dataclass(kw_only=True)
class Convert(Verb):
    """``convert`` of a store that is not there yet."""

    backend: str

    def prepare(self, work: Path) -> None:
        pass

    def command(self, work: Path) -> list[str]:
        return ["convert", self.backend, *SAMPLES, "--out", "stores", "--processes", "1"]

    def after_fault(self, work: Path, ending: Ending) -> list[str]:
        return store_problems(self.store(work), absent=True)

    def complete(self, work: Path) -> list[str]:
        return store_problems(self.store(work))

    def store(self, work: Path) -> Path:
        return work / "stores" / SAMPLES_ID / STORES[self.backend]


@dataclass(kw_only=True)
class Force(Convert):
    """``convert --force`` over a whole store of the same samples: afterwards a plain convert must find a store."""

    def prepare(self, work: Path) -> None:
        self.templates.stores(work, self.backend)

    def command(self, work: Path) -> list[str]:
        return [*super().command(work), "--force"]

    def again(self, work: Path) -> list[str]:
        return [*super().command(work), "--json"]

    def after_fault(self, work: Path, ending: Ending) -> list[str]:
        return store_problems(self.store(work))

    def after_again(self, work: Path, ending: Ending) -> list[str]:
        built = [entry["built"] for entry in json.loads(ending.stdout)]
        rebuilt = (
            [] if built == [False] else ["the next convert built a store although there was a whole one"]
        )
        return self.complete(work) + rebuilt


RESUME = ("--resume", "--retry-failed")


@dataclass(kw_only=True)
class Bench(Verb):
    """``bench`` of one cell, its store there already; ``--resume`` goes on."""

    more: str = 'backends = ["lmdb"]'
    stores: tuple[str, ...] = ("lmdb",)
    replicates: int = 1
    compute: str = "emulated:0.1"

    def prepare(self, work: Path) -> None:
        (work / "scenario.toml").write_text(scenario(self.more, self.replicates, self.compute))
        self.templates.stores(work, *self.stores)

    def command(self, work: Path) -> list[str]:
        return bench_command()

    def again(self, work: Path) -> list[str]:
        begun = (work / "run" / "run.json").exists()
        return bench_command(*RESUME) if begun else bench_command()

    def after_fault(self, work: Path, ending: Ending) -> list[str]:
        return self.store_problems(work) + run_problems(work / "run") + failures_name_a_file(work / "run")

    def complete(self, work: Path) -> list[str]:
        return self.store_problems(work) + complete_run_problems(work / "run", self.replicates, EPOCHS)

    def store_problems(self, work: Path) -> list[str]:
        stores = work / "stores" / SAMPLES_ID
        return [line for backend in self.stores for line in store_problems(stores / STORES[backend])]


@dataclass(kw_only=True)
class Resume(Bench):
    """``bench --resume --replicates 2`` of a run whose second replicate was killed while it was recorded."""

    def prepare(self, work: Path) -> None:
        run_folder = self.templates.run(work)
        with (run_folder / "records.jsonl").open("ab") as file:
            file.write((run_folder / "records.jsonl").read_bytes()[:300])

    def command(self, work: Path) -> list[str]:
        return bench_command("--resume", "--replicates", str(self.replicates))

    def again(self, work: Path) -> list[str]:
        return [*self.command(work), "--retry-failed"]


OLDER = b"an older report of mnist"


@dataclass(kw_only=True)
class Report(Verb):
    """``report`` over an older report."""

    def prepare(self, work: Path) -> None:
        self.templates.run(work)
        for path in self.templates.report(work).iterdir():
            if path.suffix in (".html", ".md", ".svg"):
                path.write_bytes(path.read_bytes().replace(b"mnist", OLDER))

    def command(self, work: Path) -> list[str]:
        return ["report", "run", "--out", "report"]

    def learn(self, work: Path) -> None:
        self.known = {}
        for folder in (work / "report", self.templates.report(work / "tmp")):
            for path in folder.iterdir():
                self.known.setdefault(path.name, []).append(path.read_bytes())
        shutil.rmtree(work / "tmp" / "report")

    def after_fault(self, work: Path, ending: Ending) -> list[str]:
        either = {
            name: [*texts, *(text.replace(b"mnist", OLDER) for text in texts)]
            for name, texts in self.known.items()
        }
        return file_problems(work / "report", either) + self._missing(work)

    def complete(self, work: Path) -> list[str]:
        return file_problems(work / "report", self.known) + self._missing(work)

    def _missing(self, work: Path) -> list[str]:
        return [f"report/{name} is missing" for name in self.known if not (work / "report" / name).exists()]


SHARED = 'backends = ["memory:shared"]\nworkers = 1'


def all_verbs(templates: Templates) -> list[Verb]:
    """Return every command with the number of faults that are planted into it."""
    new = [
        Convert(name=f"convert {backend}", templates=templates, backend=backend, points=32, sample=sample)
        for backend, sample in (("memory", 0), ("lmdb", 4), ("hdf5", 0), ("leveldb", 0), ("png", 4))
    ]
    forced = [
        Force(name=f"convert --force {backend}", templates=templates, backend=backend, points=32, sample=2)
        for backend in ("memory", "lmdb", "hdf5", "leveldb", "png")
    ]
    worker = Bench(
        name="bench with a worker",
        templates=templates,
        points=24,
        sample=2,
        more=SHARED,
        stores=("memory",),
        compute="none",
    )
    return [
        *new,
        *forced,
        Bench(name="bench", templates=templates, points=64, sample=8),
        worker,
        Resume(name="bench --resume", templates=templates, points=64, sample=8, replicates=2),
        Report(name="report", templates=templates, points=32, sample=2),
    ]
