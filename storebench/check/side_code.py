"""The code of each side of `bench --against`: a revision in a temporary worktree, the working tree, and their proof.

Each side has a virtual environment whose path has links to the side's packages and then the libraries of this
interpreter, but no folder of a checkout: nothing else there is imported, such as a module named like a library.
"""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from storebench.errors import OutputError, UsageError
from storebench.formats.origin import plugin_package
from storebench.probes.code import checkout_of, code_digest, git_environment, package_folder
from storebench.record.schema import Cell, CodeFacts
from storebench.system.kernel import LIBRARY
from storebench.system.progress import Say
from storebench.system.scratch import scratch_folder

OWN = Path("storebench")


def find_root(cells: Iterable[Cell] = ()) -> tuple[Path, list[Path]]:
    """Return the checkout to compare, and its packages and modules, relative to it.

    It is the current folder's if that has storebench, or else the package of a cell's format; otherwise the running
    storebench's.
    """
    plugins = sorted({plugin_package(cell.backend.format) for cell in cells} - {""})
    plugins += [f"{name}.py" for name in plugins]
    places = [OWN, *(Path(base, name) for base in ("", "src") for name in plugins)]
    for folder in (Path.cwd(), package_folder()):
        with contextlib.suppress(OutputError):
            root = Path(git(folder, "rev-parse", "--show-toplevel")).resolve()
            sources = [
                place
                for place in places
                if (root / place).is_file() or (root / place / "__init__.py").is_file()
            ]
            if sources:
                return root, sources
    raise UsageError(
        "this storebench is installed, not checked out, so it has no revisions to compare",
        where=package_folder(),
        hint="Change into a checkout of storebench, or of the package of a format that the scenario names.",
    )


@dataclass(frozen=True)
class Revision:
    """A commit of a checkout that is compared with its working tree."""

    root: Path
    sources: Sequence[Path]
    """The packages and modules that are compared, relative to the checkout."""
    commit: str

    @classmethod
    def of(cls, ref: str, cells: Iterable[Cell]) -> Self:
        root, sources = find_root(cells)
        words = ("--verify", "--quiet", "--end-of-options", f"{ref}^{{commit}}")
        try:
            return cls(root, sources, git(root, "rev-parse", *words))
        except OutputError:
            raise UsageError(
                f"git knows no revision {ref!r}", where=root, hint="Is it fetched? A shallow clone has few."
            ) from None

    def __str__(self) -> str:
        names = ", ".join(source.stem for source in self.sources)
        return f"{names} in {self.root}: revision {self.commit[:12]} against the working tree"


@contextlib.contextmanager
def checked_out(root: Path, commit: str, say: Say) -> Iterator[tuple[Path, Path]]:
    """Check a commit out into a temporary worktree; yield its folder, and a temporary folder for related files."""
    with scratch_folder("comparison") as scratch:
        worktree = scratch.resolve() / "tree"
        say(f"checking out {commit[:12]}")
        git(root, "worktree", "prune")  # removes worktrees of killed comparisons
        git(root, "worktree", "add", "--detach", "--quiet", str(worktree), commit)
        try:
            _add_kernel(root, worktree)
            yield worktree, worktree.parent
        finally:
            with contextlib.suppress(OutputError):
                git(root, "worktree", "remove", "--force", str(worktree))
            git(root, "worktree", "prune")


def _add_kernel(root: Path, worktree: Path) -> None:
    """Give a checkout the working tree's compiled kernel, or one of its own if its source differs."""
    source, library = (Path("storebench", "system", name) for name in ("kernel.c", LIBRARY.name))
    ours, its = root / source, worktree / source
    if not (root / library).exists() or not its.exists():
        return
    if ours.stat().st_mtime > (root / library).stat().st_mtime:
        raise UsageError("the compiled kernel is older than its source", where=ours, hint="Run: make setup")
    if ours.read_bytes() == its.read_bytes():
        shutil.copy2(root / library, worktree / library)
        return
    build = (sys.executable, "-c", "import setuptools; setuptools.setup()", "build_ext", "--inplace")
    subprocess.run(build, cwd=worktree, capture_output=True, check=False)
    if not (worktree / library).exists():
        raise UsageError(
            "the revision's kernel does not compile here", hint="Install a C compiler and setuptools."
        )


def git(folder: Path, *arguments: str) -> str:
    command = ["git", "-C", str(folder), *arguments]
    try:
        done = subprocess.run(command, env=git_environment(), capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise UsageError("git is not installed, and --against needs it", hint="Install git.") from None
    if done.returncode:
        raise OutputError(f"git {arguments[0]}: {done.stderr.strip() or 'failed'}", where=folder)
    return done.stdout.strip()


@dataclass(frozen=True, kw_only=True)
class SideCode:
    python: Path
    """Interpreter that imports this code."""
    tree: Path
    """Folder that holds the imported storebench package."""
    facts: CodeFacts
    """Code facts that its records must contain."""
    digest: str
    """Digest of all that is compared."""


def side_environment() -> dict[str, str]:
    """Return an environment for a side's process in which no variable affects which packages are imported."""
    redirecting = ("PYTHONPATH", "PYTHONHOME", "PYTHONUSERBASE")
    kept = {name: value for name, value in os.environ.items() if name not in redirecting}
    # PYTHONSAFEPATH also reaches the cells of older revisions, which were started without -P.
    return {**kept, "PYTHONSAFEPATH": "1", "PYTHONNOUSERSITE": "1"}


def side_codes(
    root: Path, worktree: Path, scratch: Path, sources: Sequence[Path] = (OWN,)
) -> tuple[SideCode, SideCode]:
    """Return the code of both sides: the worktree's and the working tree's; `sources` are what `find_root` returns."""
    sides = []
    for name, tree in (("baseline", worktree), ("contender", root)):
        packages = [tree / source for source in sources if (tree / source).exists()]
        package = tree / OWN if OWN in sources else package_folder()
        python = _borrowing(scratch / name, packages, [root, worktree])
        digests = [code_digest(other) for other in packages if other != package]
        facts = CodeFacts(
            digest=code_digest(package), commit=str(checkout_of(*packages)), plugin=" ".join(digests)
        )
        digest = code_digest(*packages)
        sides.append(SideCode(python=python, tree=package.parent, facts=facts, digest=digest))
    return sides[0], sides[1]


def _borrowing(environment: Path, packages: Sequence[Path], checkouts: Sequence[Path]) -> Path:
    """Return an interpreter that imports packages and installed libraries, but nothing else of `checkouts`."""
    venv.create(environment, symlinks=True, with_pip=False)
    links = environment / "own"
    links.mkdir()
    for package in packages:
        (links / package.name).symlink_to(package.resolve())
    show_path = (sys.executable, "-P", "-c", "import json, sys; print(json.dumps(sys.path))")
    done = subprocess.run(show_path, capture_output=True, text=True, check=True, cwd="/")
    standard = {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")}
    standard |= {f"{path}/lib-dynload" for path in standard}
    paths = [str(links)]
    for path in map(Path, filter(None, json.loads(done.stdout))):
        in_checkout = any(path.resolve().is_relative_to(checkout.resolve()) for checkout in checkouts)
        is_library = path.name in ("site-packages", "dist-packages") or not in_checkout
        if is_library and str(path) not in standard and path.is_dir():
            paths.append(str(path))
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    target = environment / "lib" / version / "site-packages" / "storebench-against.pth"
    target.write_text("\n".join(paths) + "\n", encoding="utf-8")
    return environment / "bin" / "python"
