"""The key that decides whether two results may be compared, and the notes beside it."""

import json
import os
import re
import socket
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


def test_fewer_cores_are_another_environment(tmp_path: Path) -> None:
    allowed = os.sched_getaffinity(0)
    if len(allowed) < 2:
        pytest.skip("needs two cores")
    before = environment(tmp_path).key
    os.sched_setaffinity(0, {min(allowed)})
    try:
        assert environment(tmp_path).key != before
    finally:
        os.sched_setaffinity(0, allowed)


def test_it_is_plain_json_and_tells_no_host_name(tmp_path: Path) -> None:
    found = environment(tmp_path)
    text = json.dumps([found.match, found.notes])
    assert json.loads(text)[0] == found.match
    assert len(socket.gethostname()) < 4 or socket.gethostname() not in text


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


@pytest.mark.parametrize("direct", [True, False])
def test_a_partition_of_a_loop_device_has_the_image_of_its_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, direct: bool
) -> None:
    """A cache below it would be found by chance only: the image may be all in the page cache before the first read."""
    image, partition = tmp_path / "image", tmp_path / "loop0" / "loop0p1"
    image.touch()
    partition.mkdir(parents=True)
    (partition / "partition").write_text("1\n")
    (tmp_path / "loop0" / "loop").mkdir()
    (tmp_path / "loop0" / "loop" / "backing_file").write_text(f"{image}\n")
    (tmp_path / "loop0" / "loop" / "dio").write_text(f"{direct:d}\n")
    numbers = tmp_path / "numbers"
    numbers.mkdir()
    (numbers / "259:4").symlink_to(partition)
    monkeypatch.setattr(machine, "SYS_BLOCK", numbers)
    assert machine.loop_image((259, 4)) == (image, direct)


def test_tmpfs_has_no_block_device(shm: Path) -> None:
    found = environment(shm).match
    assert found["filesystem"] == "tmpfs"
    assert found["block_device"] == {}


@pytest.mark.parametrize(
    ("text", "word"), [("none [mq-deadline] kyber", "mq-deadline"), ("none", "none"), (None, None)]
)
def test_the_chosen_word_of_a_setting(text: str | None, word: str | None) -> None:
    assert machine.chosen(text) == word


def test_memory_agrees_with_the_page_count() -> None:
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert machine.memory_bytes("MemTotal") == pages
    assert machine.memory_bytes("NoSuchLine") is None
