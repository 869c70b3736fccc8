"""The code of this process: a digest of a package's files, and the git commit from which they were imported."""

import functools
import hashlib
import os
import subprocess
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from storebench._version import __version__

CODE_SUFFIXES = (".py", ".c", ".so", ".pyd")
CHANGED = "+changes"

_DIGEST_BYTES = 16
_GIT_TIMEOUT_S = 10


@dataclass(frozen=True, kw_only=True)
class Checkout:
    """Git's information about some files."""

    commit: str | None = None
    changed: bool | None = None

    def __str__(self) -> str:
        """Return the commit, with "+changes" if the files differ from it; "" outside a checkout."""
        return f"{self.commit or ''}{CHANGED if self.changed else ''}"


def package_folder() -> Path:
    """Return the folder of the storebench package that this process imported."""
    return Path(__file__).resolve().parents[1]


@functools.cache
def running_digest() -> str:
    """Return the digest of the storebench package that this process imported, as of the first call."""
    return code_digest(package_folder())


@functools.cache
def running_checkout() -> Checkout:
    """Return commit and changes of the storebench package that this process imported, as of the first call."""
    return checkout_of(package_folder())


def storebench_version() -> str:
    """Return the version, with the commit of a checkout."""
    commit, _, changed = str(running_checkout()).partition("+")
    return " ".join(filter(None, [__version__, commit[:12] + (f"+{changed}" if changed else "")]))


def code_digest(*sources: Path) -> str:
    """Return a digest of the names and contents of the code files of packages (folders) and modules (files)."""
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    for source in sources:
        base = source.parent
        files = [source]
        if source.is_dir():
            files = sorted(
                path for path in source.rglob("*") if path.suffix in CODE_SUFFIXES and path.is_file()
            )
        for file in files:
            content = file.read_bytes()
            digest.update(f"{file.relative_to(base).as_posix()}\n{len(content)}\n".encode())
            digest.update(content)
    return digest.hexdigest()


def checkout_of(*sources: Path) -> Checkout:
    """Return commit and changes of some packages and modules of one checkout."""
    folder = sources[0].parent
    tracked = [str(path / "__init__.py" if path.is_dir() else path) for path in sources]
    # An installed copy may be inside another repository, so only tracked files count.
    if _git(folder, "ls-files", "--error-unmatch", "--", *tracked) is None:
        return Checkout()
    commit = _git(folder, "rev-parse", "HEAD")
    status = _git(folder, "status", "--porcelain", "--", *map(str, sources))
    if status is None:
        return Checkout(commit=commit)
    # Of untracked files, only code and folders count.
    suffixes = (*CODE_SUFFIXES, "/")
    lines = status.splitlines()
    changed = any(not line.startswith("?? ") or line.strip('"').endswith(suffixes) for line in lines)
    return Checkout(commit=commit, changed=changed)


def cell_environment() -> dict[str, str]:
    """Return the environment of a cell's process, with the storebench package that this process imported."""
    parent = str(Path(__file__).absolute().parents[2])
    if parent in {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}:
        # At the front of PYTHONPATH, installed packages would precede the standard library.
        return dict(os.environ)
    path = os.pathsep.join(filter(None, [parent, os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONPATH": path}


def git_environment() -> dict[str, str]:
    """Return this process's environment without the variables that point git at another repository (as hooks do)."""
    redirecting = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX")
    return {name: value for name, value in os.environ.items() if name not in redirecting}


def _git(folder: Path, *arguments: str) -> str | None:
    command = ["git", "--no-optional-locks", "-C", str(folder), *arguments]
    env = git_environment()
    try:
        done = subprocess.run(
            command, env=env, capture_output=True, text=True, timeout=_GIT_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.rstrip() if done.returncode == 0 else None
