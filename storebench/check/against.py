"""Another git revision beside the working tree, replicate by replicate: same machine, same minutes.

The revision is checked out into a worktree and gets a virtual environment of
its own. Where it asks for the same libraries as the working tree (the same
constraints.txt and dependencies) that environment borrows the installed ones,
so that no network is needed; else they are installed.
"""

import contextlib
import dataclasses
import json
import secrets
import subprocess
import sys
import sysconfig
import tempfile
import tomllib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from storebench.check.sides import PAIRING_NAME
from storebench.errors import CellFailedError, OutputError, UsageError, from_os_error
from storebench.results import Cell
from storebench.runner import schedule
from storebench.scenario import Scenario

Say = Callable[[str], None]

_SIDE_SCRIPT = Path(__file__).with_name("against_side.py")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sides:
    """The two run folders that a comparison wrote."""

    baseline: Path
    contender: Path
    commit: str


def run_against(
    ref: str,
    scenario: Scenario,
    out: Path,
    stores: Path,
    *,
    only: Sequence[str] | None = None,
    repository: Path | None = None,
    drop_caches: bool = False,
    say: Say = lambda _line: None,
) -> Sides:
    """Run `scenario` with the revision `ref` and with the working tree, interleaved.

    For every replicate of every cell both sides run one after the other, the side that
    goes first alternating. Each side builds and reads stores of its own.

    Parameters
    ----------
    out
        Two run folders are made in it: ``baseline`` and ``contender``.
    stores
        Folder of the working tree's stores; the revision's lie in ``against-COMMIT`` in it.
    only
        Cell ids to run; null runs all.
    repository
        A folder in the git repository; null takes the one that this storebench was imported from.
    say
        Is told what goes on.

    Raises
    ------
    UsageError
        There is no such revision, or no repository.
    OutputError
        There are runs in `out` already, or the revision cannot be installed.
    CellFailedError
        A side ended, or it cannot run this scenario at all.
    """
    root = _repository(repository)
    commit = _commit(root, ref)
    cells = [cell for cell in scenario.cells() if not only or cell.cell_id in only]
    sides = Sides(baseline=out / "baseline", contender=out / "contender", commit=commit)
    for folder in (sides.baseline, sides.contender):
        if folder.exists():
            raise OutputError("there is a run here already", where=folder, hint="Name another --out.")
    with checked_out(root, commit, say) as (worktree, python), contextlib.ExitStack() as running:
        ours = {"scenario": scenario, "drop_caches": drop_caches, "only": only}
        pairs = [
            (worktree, python, sides.baseline, stores / f"against-{commit[:12]}"),
            (root, Path(sys.executable), sides.contender, stores),
        ]
        processes = [running.enter_context(_side(*pair, ours)) for pair in pairs]
        _pair_up(sides, ref)
        _interleave(processes, cells, scenario, say)
    return sides


def _interleave(processes: Sequence["_Side"], cells: Sequence[Cell], scenario: Scenario, say: Say) -> None:
    """Let both sides run every replicate, one after the other; the first of the two alternates."""
    positions = {cell.cell_id: position for position, cell in enumerate(scenario.cells())}
    work = schedule(cells, scenario.replicates, scenario.seed)
    for number, one in enumerate(work):
        say(f"{number + 1} of {len(work)}: {one.cell.backend} {one.cell.cache}, replicate {one.replicate}")
        for process in processes if number % 2 == 0 else reversed(processes):
            process.run(positions[one.cell.cell_id], one.replicate)


def _pair_up(sides: Sides, ref: str) -> None:
    """Write into both runs that they belong together, so that a check pairs their rounds."""
    about = {"pairing": secrets.token_hex(8), "ref": ref, "commit": sides.commit}
    for side, folder in (("baseline", sides.baseline), ("contender", sides.contender)):
        path = folder / PAIRING_NAME
        path.write_text(json.dumps({**about, "side": side}, indent=2) + "\n", encoding="utf-8")


@contextlib.contextmanager
def checked_out(root: Path, commit: str, say: Say) -> Iterator[tuple[Path, Path]]:
    """Check a commit out into a temporary worktree; give its folder and an interpreter that imports it.

    Both are removed in the end, whatever happens.
    """
    with tempfile.TemporaryDirectory(prefix="storebench-against-") as scratch:
        worktree, venv = Path(scratch) / "tree", Path(scratch) / "venv"
        say(f"checking out {commit[:12]}")
        _git(root, "worktree", "add", "--detach", "--quiet", str(worktree), commit)
        try:
            yield worktree, _environment(root, worktree, venv, say)
        finally:
            with contextlib.suppress(OutputError):
                _git(root, "worktree", "remove", "--force", str(worktree))
            _git(root, "worktree", "prune")


def _environment(root: Path, worktree: Path, venv: Path, say: Say) -> Path:
    same = _requirements(root) == _requirements(worktree)
    say("borrowing the installed libraries" if same else "its libraries differ: installing them")
    _run(
        [sys.executable, "-m", "venv", *(["--without-pip"] if same else []), str(venv)],
        "making its environment",
    )
    python = venv / "bin" / "python"
    if same:
        _borrow(venv, worktree)
    else:
        _install(python, worktree)
    return python


def _borrow(venv: Path, worktree: Path) -> None:
    """Put the worktree, then this interpreter's libraries, on the environment's path.

    The libraries' own .pth files are not followed, so an editable install of the
    working tree stays invisible.
    """
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    paths = dict.fromkeys([str(worktree), sysconfig.get_path("purelib"), sysconfig.get_path("platlib")])
    target = venv / "lib" / version / "site-packages" / "storebench-against.pth"
    target.write_text("\n".join(paths) + "\n", encoding="utf-8")


def _install(python: Path, worktree: Path) -> None:
    constraints = worktree / "constraints.txt"
    limits = ["-c", str(constraints)] if constraints.is_file() else []
    # torch first and by exact version: a looser request pulls gigabytes of GPU libraries.
    lines = constraints.read_text(encoding="utf-8").splitlines() if limits else []
    torch = [line for line in lines if line.startswith("torch==")]
    for wanted in ([torch] if torch else []) + [["-e", f"{worktree}[all]"]]:
        _run([str(python), "-m", "pip", "install", "--quiet", *limits, *wanted], "installing its libraries")


def _requirements(folder: Path) -> tuple[str, Any]:
    """Return what decides which libraries a revision needs."""
    constraints, project = folder / "constraints.txt", folder / "pyproject.toml"
    about = tomllib.loads(project.read_text(encoding="utf-8"))["project"] if project.is_file() else {}
    wanted = (
        about.get("dependencies"),
        {k: v for k, v in about.get("optional-dependencies", {}).items() if k != "dev"},
    )
    return constraints.read_text(encoding="utf-8") if constraints.is_file() else "", wanted


def _run(command: Sequence[str], what: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr or done.stdout).strip().splitlines()[-1:]
        raise OutputError(f"{what} failed: {' '.join(last)}", hint="Is there a network, and space?")


def _repository(folder: Path | None) -> Path:
    start = folder or Path(__file__).resolve().parent
    try:
        return Path(_git(start, "rev-parse", "--show-toplevel"))
    except OutputError:
        raise UsageError(
            "not in a git repository, so there is no other revision",
            where=start,
            hint="--against works in a checkout of storebench.",
        ) from None


def _commit(root: Path, ref: str) -> str:
    try:
        return _git(root, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{ref}^{{commit}}")
    except OutputError:
        raise UsageError(
            f"git knows no revision {ref!r}", where=root, hint="Is it fetched? A shallow clone has few."
        ) from None


def _git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise OutputError(f"git {arguments[0]}: {done.stderr.strip() or 'failed'}", where=folder)
    return done.stdout.strip()


class _Side:
    """A process of one revision that runs one replicate of one cell whenever it is told to."""

    def __init__(self, process: "subprocess.Popen[str]", folder: Path) -> None:
        self._process = process
        self._folder = folder

    def expect(self) -> None:
        """Wait for the process to say that it is done with what it was told."""
        assert self._process.stdout is not None
        answer = self._process.stdout.readline()
        if not answer:
            self._process.wait()
            raise CellFailedError(
                f"the {self._folder.name} side ended with exit code {self._process.returncode}",
                where=self._folder,
                hint="Its own message stands above; can that revision run this scenario?",
            )

    def run(self, position: int, replicate: int) -> None:
        """Run one replicate of the scenario's cell number `position`."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(f"{position} {replicate}\n")
            self._process.stdin.flush()
        self.expect()


@contextlib.contextmanager
def _side(tree: Path, python: Path, folder: Path, stores: Path, what: dict[str, Any]) -> Iterator[_Side]:
    """Start one side in the folder of its own sources; it is ended in the end."""
    job = {
        "scenario": what["scenario"].model_dump(mode="json", exclude_unset=True),
        "only": list(what["only"] or []),
        "folder": str(folder.resolve()),
        "stores": str(stores.resolve()),
        "drop_caches": what["drop_caches"],
        "tree": str(tree),
    }
    try:
        process = subprocess.Popen(
            [str(python), "-P", str(_SIDE_SCRIPT), json.dumps(job)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
    except OSError as error:
        raise from_os_error(error, python) from error
    try:
        side = _Side(process, folder)
        side.expect()
        yield side
    finally:
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.terminate()
            process.wait()
