"""The key that decides whether two results may be compared, and the notes beside it."""

import re
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from storebench.probes import machine
from storebench.probes.environment import environment, match_key
from storebench.probes.machine import mount_of
from tests.support.disks import loop_disk

KEY = """
import sys
{first}
from storebench.probes.environment import environment
print(environment(sys.argv[1]).key)
"""


def test_the_key_is_the_same_in_every_process_whatever_it_imported(
    tmp_path: Path, python: Callable[..., str]
) -> None:
    plain = python(KEY.format(first=""), tmp_path)
    assert plain == environment(tmp_path).key
    assert plain == python(KEY.format(first="import h5py, lmdb, torch; torch.set_num_threads(1)"), tmp_path)


def test_the_key_changes_with_what_must_match(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = environment(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    after = environment(tmp_path)
    assert after.match["threads"]["OMP_NUM_THREADS"] == "7"
    assert after.key != before.key
    assert after.key == match_key(after.match)


def test_match_and_notes_hold_what_the_issue_asks_for(tmp_path: Path) -> None:
    found = environment(tmp_path)
    assert {"cpu", "cores", "memory_gib", "kernel", "filesystem", "block_device", "libraries"} <= set(
        found.match
    )
    assert {"python", "torch", "numpy", "pillow", "libjpeg", "zlib", "h5py", "hdf5", "lmdb", "plyvel"} == set(
        found.match["libraries"]
    )
    assert {"host", "load", "governor", "free_memory_bytes", "container", "damon", "git_dirty"} <= set(
        found.notes
    )


def test_queue_settings_are_those_of_the_disk(disk: Path) -> None:
    mount = mount_of(disk)
    found = machine.block_device(mount)
    assert mount.device is not None
    stat = Path(f"/sys/block/{found['name']}/queue/read_ahead_kb")
    assert found["read_ahead_kb"] == stat.read_text().strip()
    assert "name" not in environment(disk).match["block_device"], "sda today may be sdb tomorrow"


def test_loop_devices_that_read_in_other_ways_are_other_environments(
    disk: Path, shm: Path, root: None
) -> None:
    found = []
    for place, cached in ((disk, False), (disk, True), (shm.parent, True)):
        with (
            tempfile.TemporaryDirectory(dir=place) as folder,
            loop_disk(Path(folder), cached=cached, files=1) as mount,
        ):
            found.append(environment(mount))
    assert len({one.key for one in found}) == 3
    models = [one.match["block_device"]["model"] for one in found]
    assert re.fullmatch(r"loop over \w+ on .+ with direct I/O", models[0])
    assert re.fullmatch(r"loop over \w+ on .+ through the page cache", models[1])
    assert models[2] == "loop over tmpfs on no device through the page cache"
