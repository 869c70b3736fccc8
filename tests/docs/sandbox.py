"""A folder in which the documents' commands run in miniature: small real files, a small store, a small run."""

import contextlib
import itertools
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from typer.testing import CliRunner

from storebench.cli.main import app
from storebench.errors import EXIT_INCONCLUSIVE, EXIT_OK
from storebench.formats.registry import parse_backend
from storebench.runs.records import PROBES_DIR
from storebench.scenario import shipped_scenarios
from tests.docs.command_line import positional, without
from tests.support.dataset_files import cifar_binary, labels, pixels, write_class_folders, write_mnist
from tests.support.warm_cells import warm_cells

MNIST, CIFAR10_BATCH, TEST = 96, 16, 24
BACKEND = "lmdb"

SMALL_RUN = (
    *("--limit", "32", "--max-steps", "1", "--batch-size", "16", "--model", "tiny", "--epochs", "1"),
    *("--replicates", "1", "--threads", "1", "--device", "cpu"),
    # Where a test's temporary folder is in memory only, cold cannot exist; limited needs root.
    *("--cache", "any"),
)
"""A later option wins: what is appended to every 'storebench run' of a document that names a backend."""

SMALL_FIRST = (
    *("--size", "96", "--max-steps", "2", "--batch-size", "8", "--workers", "1", "--replicates", "1"),
    *("--cache", "any"),
)
"""The same where it names none: the few images are repeated."""

MINIATURE = """
name = "{name}"
test_limit = 0

[[matrix]]
dataset = "mnist"
limit = 32
batch_size = 16
model = "tiny"
compute = "emulated:0.01"
backends = ["lmdb"]
threads = 1
"""


@dataclass(kw_only=True)
class Sandbox:
    """Where commands run, and what was run already.

    Attributes
    ----------
    root
        The working folder.
    results
        A run's folder, with one replicate of one cell.
    store
        A store.
    shown
        Commands of documents that were run already.
    numbers
        The numbers of the next runs.
    """

    root: Path
    env: Mapping[str, str]
    results: Path = Path("runs/small")
    store: Path = Path("stores/mnist-train-limit32/lmdb+raw")
    shown: set[tuple[str, ...]] = field(default_factory=set)
    numbers: Iterator[int] = field(default_factory=itertools.count)

    def run(self, *words: str) -> None:
        """Run ``storebench WORDS`` in this process."""
        with contextlib.chdir(self.root), warm_cells():
            result = CliRunner(env=self.env).invoke(app, list(words))
        allowed = (EXIT_OK, EXIT_INCONCLUSIVE) if words[0] == "check" else (EXIT_OK,)
        assert result.exit_code in allowed, (
            f"storebench {' '.join(words)}\n{result.output}\n{result.exception!r}"
        )

    def inside(self, words: Sequence[str]) -> list[str]:
        """Return the words with every absolute path, and every folder of images, put into the sandbox."""
        photos = f"folder:{self.root / 'data' / 'photos'}"
        folders = ("PATH", "~/photos")
        moved = [photos if word.startswith("folder:") or word in folders else word for word in words]
        return [str(Path(word).relative_to("/")) if word.startswith("/") else word for word in moved]

    def miniature(self, name: str) -> str:
        """Write a scenario of one small cell; return its path in the sandbox."""
        path = Path("miniatures") / f"{name}.toml"
        (self.root / path.parent).mkdir(exist_ok=True)
        (self.root / path).write_text(MINIATURE.format(name=name))
        return str(path)

    def with_fresh_out(self, words: Sequence[str]) -> list[str]:
        """Return the words with a folder for the run that no other command has used.

        It has what earlier runs measured of the device, which takes seconds.
        """
        folder, kept = Path("runs") / str(next(self.numbers)), self.root / PROBES_DIR
        (self.root / folder).mkdir(parents=True)
        kept.mkdir(exist_ok=True)
        (self.root / folder / PROBES_DIR).symlink_to(kept)
        return [*without(words, "--out"), "--out", str(folder)]

    def interrupted(self, scenario: str, folder: str) -> None:
        """Leave in `folder` what a killed run left: everything but its records."""
        self.run("bench", scenario, "--out", folder)
        (self.root / folder / "records.jsonl").unlink()


def make_sandbox(root: Path, repository: Path) -> Sandbox:
    """Write the data, and make the store and the run that the documents' commands need."""
    data = root / "data"
    write_mnist(data / "mnist", train=MNIST, test=TEST)
    folder = data / "cifar10" / "cifar-10-batches-bin"
    folder.mkdir(parents=True)
    for name in (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"):
        planar = pixels(CIFAR10_BATCH, 3, 32, 32)
        (folder / f"{name}.bin").write_bytes(cifar_binary(planar, labels(CIFAR10_BATCH)))
    (folder / "batches.meta.txt").write_text("\n".join(f"class{number}" for number in range(10)))
    for part in ("imagenet/train", "imagenet/val", "photos/train", "photos/val"):
        write_class_folders(data / part, {"n01440764": 3, "n01443537": 3})
    shutil.copytree(repository / "scenarios", root / "scenarios")
    env = {"STOREBENCH_DATA": str(data), "STOREBENCH_STORES": "stores", "STOREBENCH_RUNS": "runs"}
    sandbox = Sandbox(root=root, env=env)
    sandbox.run("bench", sandbox.miniature("small"), "--out", str(sandbox.results))
    sandbox.run("convert", "lmdb", "--dataset", "mnist")  # the store that docs/pytorch.md reads
    return sandbox


def _run(sandbox: Sandbox, words: list[str]) -> list[list[str]]:
    """Train from the first backend only, one step; the others' names are read. Without one, each cell is short."""
    backends = positional(words)
    if not backends:
        return [[*sandbox.with_fresh_out(sandbox.inside(words)), *SMALL_FIRST]]
    assert [parse_backend(backend) for backend in backends]
    words = without([word for word in words if word not in backends[1:]], "--memory", "--readahead")
    return [[*sandbox.with_fresh_out(sandbox.inside(words)), *SMALL_RUN]]


def _convert(sandbox: Sandbox, words: list[str]) -> list[list[str]]:
    return [[*sandbox.inside(words), "--limit", "16"]]


def _bench(sandbox: Sandbox, words: list[str]) -> list[list[str]]:
    """Plan the real scenario, then run a miniature in its place. Another revision (--against) is not checked out, so no budget applies."""
    words = without(without(sandbox.inside(words), "--against"), "--budget")
    [scenario] = positional(words)
    if scenario not in shipped_scenarios() and not (sandbox.root / scenario).is_file():
        words[words.index(scenario)] = scenario = sandbox.miniature(Path(scenario).stem)
    planned = [word for word in words if word not in ("--resume", "--dry-run", "--drop-caches")]
    if "--dry-run" in words:
        return [[*planned, "--dry-run"]]
    small = without(words, "--only", "--replicates")
    small[small.index(scenario)] = miniature = sandbox.miniature(Path(scenario).stem)
    small = sandbox.with_fresh_out(small)
    if "--resume" in words:
        sandbox.interrupted(miniature, small[-1])
    return [[*planned, "--dry-run"], [word for word in small if word != "--drop-caches"]]


def _read_results(sandbox: Sandbox, words: list[str]) -> list[list[str]]:
    """Read the small run, whatever folders a document names."""
    named = positional(words)
    kept = [word for word in words[1:] if word not in named]
    for at in (number for number, word in enumerate(kept) if word == "--cell"):
        kept[at + 1] = BACKEND
    return [[words[0], str(sandbox.results), *sandbox.inside(kept)]]


def _check(sandbox: Sandbox, words: list[str]) -> list[list[str]]:
    """Hold the small run against itself, which is at most inconclusive; what would change a baseline is parsed only."""
    if {"--update", "--confirm"} & set(words):
        return []
    named = positional(words)
    options = without([word for word in words[1:] if word not in named], "--policy")
    return [["check", str(sandbox.results), str(sandbox.results), *sandbox.inside(options)]]


def _verify(sandbox: Sandbox, words: list[str]) -> list[list[str]]:
    [named] = positional(words)
    return [[str(sandbox.store) if word == named else word for word in words]]


def _doctor(_: Sandbox, words: list[str]) -> list[list[str]]:
    named = positional(words)
    return [["." if word in named else word for word in words]]


def _data(_: Sandbox, words: list[str]) -> list[list[str]]:
    """Without --to nothing is downloaded, because the data is there."""
    return [without(words, "--to")]


def _as_it_is(_: Sandbox, words: list[str]) -> list[list[str]]:
    return [words]


PLANS: dict[str, Callable[[Sandbox, list[str]], list[list[str]]]] = {
    "run": _run,
    "convert": _convert,
    "bench": _bench,
    "report": _read_results,
    "validate": _read_results,
    "trace": _read_results,
    "export": _read_results,
    "check": _check,
    "verify": _verify,
    "doctor": _doctor,
    "data": _data,
    "formats": _as_it_is,
    "accelerators": _as_it_is,
    "scenarios": _as_it_is,
}
"""Verb -> how its commands are made small enough to run; a verb that is not here is parsed only."""


def in_miniature(sandbox: Sandbox, words: Sequence[str]) -> list[list[str]]:
    """Return what to run for a document's ``storebench WORDS``; nothing where it is only parsed, or was run before."""
    if tuple(words) in sandbox.shown:
        return []
    sandbox.shown.add(tuple(words))
    if words[0].startswith("-"):
        return [list(words)]
    return PLANS[words[0]](sandbox, list(words)) if words[0] in PLANS else []
