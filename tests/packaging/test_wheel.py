"""The wheel is whole: everything in it works in any folder, and nothing else is in it."""

import email
import json
import os
import subprocess
import tarfile
import zipfile
from pathlib import Path

import pytest

from storebench._version import __version__
from storebench.system.kernel import LIBRARY
from tests.support.installed import ROOT, Built, Environment, environment_with, output_of, wheel_of
from tests.support.photo_folders import write_photos

SCENARIOS = {path.name for path in (ROOT / "scenarios").glob("*.toml")}


def package_files() -> set[str]:
    """Return the package's files in the checkout, links followed."""
    found: set[str] = set()
    for folder, _, names in os.walk(ROOT / "storebench", followlinks=True):
        found |= {str((Path(folder) / name).relative_to(ROOT)) for name in names}
    return {name for name in found if "__pycache__" not in name and not name.endswith(".so")}


def test_the_wheel_holds_the_package_and_nothing_else(built: Built) -> None:
    with zipfile.ZipFile(built.wheel) as archive:
        names = set(archive.namelist())
    about = {name for name in names if name.startswith(f"storebench-{__version__}.dist-info/")}
    assert names - about == package_files() | {f"storebench/system/{LIBRARY.name}"}
    assert built.wheel.name.startswith(f"storebench-{__version__}-cp311-abi3-linux_"), (
        "one wheel for all Pythons"
    )
    assert {"storebench/py.typed", "storebench/report/templates/report.html.j2"} <= names
    assert {name for name in names if name.startswith("storebench/scenarios/")} == {
        f"storebench/scenarios/{name}" for name in SCENARIOS
    }


def test_the_source_archive_has_what_its_build_needs(built: Built) -> None:
    with tarfile.open(built.sdist) as archive:
        files = {member.name.partition("/")[2] for member in archive if member.isfile()}
        assert not [member.name for member in archive if member.issym()]
    assert {"pyproject.toml", "README.md", "LICENSE", *package_files()} <= files


def test_the_metadata_names_pythons_and_extras(built: Built) -> None:
    with zipfile.ZipFile(built.wheel) as archive:
        text = archive.read(f"storebench-{__version__}.dist-info/METADATA").decode()
    about = email.message_from_string(text)
    assert about["Requires-Python"] == ">=3.11"
    classifiers = about.get_all("Classifier", [])
    for version in ("3.11", "3.12", "3.13"):
        assert f"Programming Language :: Python :: {version}" in classifiers
    wanted = about.get_all("Requires-Dist", [])
    assert {'plyvel>=1.5; python_version < "3.13" and extra == "leveldb"'} <= set(wanted)


@pytest.mark.full
def test_its_scenarios_are_run_by_name(installed: Environment, tmp_path: Path) -> None:
    listed = json.loads(installed.run("storebench", "scenarios", "--json", cwd=tmp_path))
    assert {Path(row["path"]).name for row in listed} == SCENARIOS
    assert {Path(row["path"]).parent for row in listed} == {installed.site_packages / "storebench/scenarios"}
    plan = json.loads(installed.run("storebench", "bench", "smoke", "--dry-run", "--json", cwd=tmp_path))
    assert {cell["backend"] for cell in plan["cells"]} >= {"png", "lmdb"}
    assert list(tmp_path.iterdir()) == []


def test_it_lists_the_formats(installed: Environment, tmp_path: Path) -> None:
    listed = json.loads(installed.run("storebench", "formats", "--json", cwd=tmp_path))
    names = [row["name"] for row in listed if row["builtin"]]
    assert names[:5] == ["files", "hdf5", "memory", "leveldb", "lmdb"]


@pytest.mark.full
def test_without_a_compiler_it_installs_without_its_kernel(
    built: Built, installed: Environment, tmp_path: Path
) -> None:
    wheel = wheel_of(built.sdist, tmp_path, CC="/no/such/compiler")
    for made, found in (
        (installed, "loaded"),
        (environment_with(wheel, tmp_path / "environment"), "not built"),
    ):
        listed = json.loads(made.run("storebench", "doctor", "--json", cwd=tmp_path))
        assert [check["found"] for check in listed["checks"] if check["name"] == "compiled kernel"] == [found]


TRAINING = """
import torch

images = torch.utils.data.TensorDataset(torch.zeros(64, 3, 8, 8), torch.zeros(64))
for pixels, labels in torch.utils.data.DataLoader(images, batch_size=4):
    pixels.sum()
"""


@pytest.mark.slow
def test_its_verbs_work_without_home_and_path_and_write_nothing_into_the_installation(
    installed: Environment, tmp_path: Path
) -> None:
    folder = tmp_path / "my photographs"
    write_photos(folder / "photos", each=32, only=0)
    (folder / "train.py").write_text(TRAINING)
    (folder / "cat").symlink_to("/bin/cat")
    bare = {"PATH": str(folder), "TMPDIR": str(tmp_path)}  # no compiler, no git, no HOME
    before = modified(installed.site_packages)
    short = ("--max-steps", "4", "--batch-size", "4", "--workers", "1", "--compute", "none")
    for words in (
        ("doctor",),
        ("run", "lmdb", "--dataset", "photos", *short, "--out", "run"),
        ("report", "run", "--out", "report"),
        ("profile", "train.py"),
    ):
        command = [str(installed.folder / "bin" / "storebench"), *words]
        done = subprocess.run(command, cwd=folder, env=bare, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{words}\n{done.stdout}\n{done.stderr}"
    assert (folder / "report" / "report.html").is_file()
    assert modified(installed.site_packages) == before, "it may be read-only"


def modified(folder: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*")}


def test_the_tests_run_the_wheel_and_not_the_checkout(installed: Environment, tmp_path: Path) -> None:
    code = "import storebench, storebench.cli.main; print(storebench.__file__); print(storebench.__version__)"
    file, version = output_of([str(installed.python), "-c", code], cwd=tmp_path).splitlines()
    assert Path(file).parent == installed.site_packages / "storebench"
    assert version == __version__
