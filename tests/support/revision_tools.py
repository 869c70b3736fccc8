"""A clone of this checkout to compare revisions of, with slow-downs planted into it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

BEING_COMPILED = shutil.ignore_patterns("*.pyc.*")
"""Files that a copy of the package omits, because another process may be compiling them. Compiled files stay valid."""

SLOW = """

def _slowly(method):
    import functools
    import time

    @functools.wraps(method)
    def slow(*arguments, **options):
        time.sleep({seconds})
        return method(*arguments, **options)

    return slow


{name} = _slowly({name})
"""


def git(folder: Path, *arguments: str) -> str:
    """Return what git says; "" where it fails."""
    identity = ("-c", "user.name=test", "-c", "user.email=test@localhost")
    command = ["git", "-C", str(folder), *identity, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def commit(folder: Path, message: str) -> str:
    """Commit everything in a repository; return the commit."""
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--allow-empty", "--message", message)
    return git(folder, "rev-parse", "HEAD")


def clone_here(folder: Path) -> Path:
    """Clone this checkout with the package as it is in the working tree; return the clone's top folder."""
    git(ROOT, "clone", "--quiet", "--local", str(ROOT), str(folder))
    shutil.rmtree(folder / "storebench")
    shutil.copytree(ROOT / "storebench", folder / "storebench", ignore=BEING_COMPILED)
    commit(folder, "The package as it is in the working tree")
    return folder.resolve()


def plant(path: Path, name: str, seconds: float) -> None:
    """Let a function or method of a module sleep before it does its work."""
    assert path.is_file(), path
    with path.open("a", encoding="utf-8") as file:
        file.write(SLOW.format(name=name, seconds=seconds))


def storebench(folder: Path, *words: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the command line in a folder, whose storebench is the one that runs where it has one."""
    return subprocess.run(
        [sys.executable, "-m", "storebench", *map(str, words)],
        cwd=folder,
        env=os.environ | variables,
        capture_output=True,
        text=True,
        timeout=1100,
        check=False,
    )
