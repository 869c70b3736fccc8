"""`storebench inspect --place`: reads of one file in several folders, side by side, which are left as they were."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from storebench.probes.machine import IN_MEMORY, mount_of
from tests.support.container_files import WRITERS
from tests.support.foreign_files import jpegs

pytestmark = pytest.mark.still_pages

SAMPLES = [(image + bytes(20_000), number % 3) for number, image in enumerate(jpegs(400))]
FIGURES = {"images/s", "MiB/s", "device requests/s", "read p50, µs", "read p99, µs", "first batch, ms"}


def _content(folder: Path) -> dict[str, tuple[int, int]]:
    return {str(path): (path.stat().st_mtime_ns, path.stat().st_ctime_ns) for path in folder.rglob("*")}


@pytest.mark.parametrize(
    "kind", ["HDF5", *(pytest.param(kind, marks=pytest.mark.full) for kind in ("Caffe", "MDS"))]
)
def test_reads_in_several_folders_are_side_by_side(
    kind: str, cli: Callable[..., Any], in_memory: Path, tmp_path: Path
) -> None:
    if mount_of(tmp_path).fstype in IN_MEMORY or in_memory == tmp_path:
        pytest.skip("needs a disk and a folder in memory")
    (first := tmp_path / "a").mkdir()
    (second := tmp_path / "b").mkdir()
    text, again = (WRITERS[kind](folder / "data", SAMPLES) for folder in (first, second))
    before = _content(tmp_path)
    there = Path(again).parent
    done = cli("inspect", text, "--samples", "40", "--place", f"{there},copy:{in_memory}", "--json")
    found = json.loads(done.stdout)
    cold, warm = found["places"]
    assert FIGURES >= {row["figure"] for row in warm["rows"]} >= FIGURES - {"device requests/s"}
    names = [f"{there} ({mount_of(there).fstype})", f"copy:{in_memory} (tmpfs)"]
    assert all(f"{name}, verdict" in warm["rows"][0] for name in names)
    assert [any(name.startswith(names[1]) for name in table["rows"][0]) for table in (cold, warm)] == [
        False,
        True,
    ]
    assert any(line.startswith(f"{names[1]}, cold: left out") for line in found["left_out"])
    assert (_content(tmp_path), _content(in_memory)) == (before, {}), (
        "files are as they were, copies are gone"
    )


REFUSED: dict[str, tuple[list[str], str]] = {
    "relative": (["nowhere"], "nowhere"),
    "missing": (["/nowhere"], "/nowhere"),
    "copied to a missing one": (["copy:/nowhere"], "/nowhere"),
    "a bucket": (["s3:here"], "s3:here"),
    "without the file": (["{0}/empty"], "copy:{0}/empty"),
    "another file": (["{0}/other"], "{0}/other/a.h5"),
    "none": ([""], "--place"),
    "one twice": (["{0}/other,{0}/other/"], "--place"),
    "nothing": (["{0}/other,"], "--place"),
    "no reads": (["{0}/other", "--samples", "0"], "--samples"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_wrong_place_is_refused_in_one_line(case: str, cli: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    text = WRITERS["HDF5"](tmp_path / "data", SAMPLES[:8])
    WRITERS["HDF5"](tmp_path / "other", SAMPLES[:4])
    words, named = REFUSED[case]
    done = cli("inspect", text, "--place", *(word.format(tmp_path) for word in words))
    [line] = done.stderr.splitlines()
    assert (done.returncode, done.stdout) == (2, "")
    assert named.format(tmp_path) in line
