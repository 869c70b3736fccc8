"""storebench as a user installs it: the source archive, the wheel that pip builds from it, and fresh environments.

Nothing is downloaded. A fresh environment borrows the libraries of the running one, but not the storebench there.
"""

import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ("LICENSE", "README.md", "pyproject.toml", "scenarios", "storebench")

_BUILD_SDIST = "import sys; from setuptools import build_meta; build_meta.build_sdist(sys.argv[1])"


@dataclass(frozen=True, kw_only=True)
class Built:
    """A checkout's archives."""

    source: Path
    sdist: Path
    wheel: Path


@dataclass(frozen=True, kw_only=True)
class Environment:
    """A virtual environment with an interpreter of its own and the libraries of the running one."""

    folder: Path

    @property
    def python(self) -> Path:
        """The interpreter."""
        return self.folder / "bin" / "python"

    @property
    def site_packages(self) -> Path:
        """The folder that pip installs into."""
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        return self.folder / "lib" / version / "site-packages"

    def run(self, *words: str, cwd: Path, env: Mapping[str, str] | None = None) -> str:
        """Run a command of the environment as if it were activated; return its standard output.

        pip and pytest are borrowed libraries without a script here, so they are run as modules.
        """
        program, *arguments = words
        script = self.folder / "bin" / program
        command = [str(script)] if script.exists() else [str(self.python), "-m", program]
        return output_of([*command, *arguments], cwd=cwd, env=env)


def output_of(command: list[str], *, cwd: Path, env: Mapping[str, str] | None = None) -> str:
    """Run a command without network and without this checkout on its path; return its standard output."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PIP_"))}
    # For pip "0" is how a variable says --no-build-isolation.
    offline = {"PIP_NO_INDEX": "1", "PIP_NO_BUILD_ISOLATION": "0", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    done = subprocess.run(
        command, cwd=cwd, env={**own, **offline, **(env or {})}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def build(folder: Path) -> Built:
    """Build the source archive of a copy of the checkout, and the wheel from the archive, in `folder`."""
    source = folder / "source"
    source.mkdir()
    for name in SOURCES:
        path = ROOT / name
        if path.is_dir():
            ignored = shutil.ignore_patterns("__pycache__", "*.so")
            shutil.copytree(path, source / name, symlinks=True, ignore=ignored)
        else:
            shutil.copy(path, source / name)
    output_of([sys.executable, "-c", _BUILD_SDIST, str(folder)], cwd=source)
    (sdist,) = folder.glob("*.tar.gz")
    return Built(source=source, sdist=sdist, wheel=wheel_of(sdist, folder))


def wheel_of(sdist: Path, folder: Path, **variables: str) -> Path:
    """Return the wheel that pip builds from a source archive, in `folder`."""
    words = ("wheel", "--quiet", "--no-deps", "--no-cache-dir", "--wheel-dir", str(folder), str(sdist))
    output_of([sys.executable, "-m", "pip", *words], cwd=folder, env=variables)
    (wheel,) = folder.glob("*.whl")
    return wheel


def environment_with(wheel: Path, folder: Path) -> Environment:
    """Return a fresh environment in `folder` into which the wheel is installed."""
    made = _bare_environment(folder)
    # Before the libraries are borrowed, so that pip takes no other storebench for an installed one.
    words = ["--python", str(made.python), "install", "--quiet", "--no-deps", str(wheel)]
    output_of([sys.executable, "-m", "pip", *words], cwd=folder)
    borrow_libraries(made)
    return made


def _bare_environment(folder: Path) -> Environment:
    venv.create(folder, symlinks=True, with_pip=False)
    return Environment(folder=folder)


def borrow_libraries(made: Environment) -> None:
    """Let the environment import this interpreter's libraries, after its own; no checkout is among them."""
    libraries = [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
    (made.site_packages / "borrowed.pth").write_text("\n".join(libraries) + "\n")
