"""Formats of other projects: their libraries are only imported when a format is used, and a missing one is one line."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from storebench.formats.registry import PEERS

OWN = [(name, library) for name, entry in PEERS.items() for library in entry.libraries]
FOREIGN = [(name, library) for name, library in OWN if library not in ("numpy", "sqlite3", "pyarrow")]


LEFT = """
import os
from pathlib import Path
from storebench.formats.registry import PEERS, get_format, is_installed
from storebench.testing.stores import build_small_store, read_pixels

before = set(os.listdir("/dev/shm"))
for name in filter(is_installed, PEERS):
    folder = Path("stores", name)
    folder.mkdir(parents=True)
    small = build_small_store(get_format(name), "png", folder)
    with small.open() as opened:
        read_pixels(opened, [1])
left = [str(path) for top in ("home", "temporary") for path in Path(top).rglob("*") if path.is_file()]
left += [name for name in set(os.listdir("/dev/shm")) - before if not name.startswith(("sem.", "storebench"))]
print("LEFT", left)
"""


def run(code: str, *words: str) -> subprocess.CompletedProcess[str]:
    code = f"import sys; {code}; sys.argv[1:] = {list(words)}; from storebench.cli.main import main; main()"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("name", "library"),
    [*FOREIGN[:2], *(pytest.param(*pair, marks=pytest.mark.full) for pair in FOREIGN[2:])],
)
def test_a_missing_library_is_one_line(name: str, library: str, tmp_path: Path) -> None:
    words = ("convert", name, "--dataset", "mnist", "--synthetic", "--size", "4", "--out", str(tmp_path))
    done = run(f"sys.modules[{library!r}] = None", *words)
    assert done.returncode == 2
    last = done.stderr.splitlines()[-1]
    assert f"the format '{name}' needs the library" in last
    assert PEERS[name].install is not None
    assert str(PEERS[name].install) in last
    assert list(tmp_path.iterdir()) == []


def test_listing_imports_none_of_the_libraries() -> None:
    libraries = [library for _, library in FOREIGN]
    code = f"import atexit; atexit.register(lambda: print('LOADED', [x for x in {libraries} if x in sys.modules]))"
    done = run(code, "formats")
    assert done.returncode == 0, done.stderr
    assert "LOADED []" in done.stdout
    assert all(any(line.startswith(f"{name} ") for line in done.stdout.splitlines()) for name in PEERS)


def test_every_library_is_in_an_extra() -> None:
    project = tomllib.loads(Path("pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"].values()
    named = " ".join([*project["dependencies"], *(word for extra in extras for word in extra)])
    wanted = {
        word for entry in PEERS.values() for word in str(entry.install).removeprefix("pip install ").split()
    }
    assert wanted
    wanted -= sys.stdlib_module_names
    assert [word for word in wanted if word.strip("'").split("[")[0] not in named] == []


@pytest.mark.full
def test_libraries_leave_nothing_in_the_home_or_in_shared_memory(tmp_path: Path) -> None:
    for name in ("home", "temporary"):
        (tmp_path / name).mkdir()
    places = {"HOME": str(tmp_path / "home"), "TMPDIR": str(tmp_path / "temporary"), "XDG_CACHE_HOME": ""}
    done = subprocess.run(
        [sys.executable, "-c", LEFT],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path.cwd()), **places},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines()[-1] == "LEFT []"
