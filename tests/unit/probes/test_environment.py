"""The key that decides whether two results may be compared, and the notes beside it."""

import dataclasses
import re
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from storebench.probes import machine
from storebench.probes.counters import OtherWork
from storebench.probes.environment import environment, match_key
from storebench.record.schema import Conditions
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


@pytest.mark.parametrize(
    ("quota", "cores"), [("max 100000", 64), ("200000 100000", 2), ("150000 100000", 2), ("50000 100000", 1)]
)
def test_a_cpu_quota_limits_the_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quota: str, cores: int
) -> None:
    (tmp_path / "cpu.max").write_text(f"{quota}\n")
    monkeypatch.setattr(machine, "cpu_groups", lambda: [tmp_path])
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(64)))
    assert machine.usable_cores() == cores
    assert OtherWork().conditions().cores == cores


def test_other_work_is_counted_over_all_cpus_of_a_quota() -> None:
    limited = Conditions(wall_s=10.0, cores=2, cpus=64, others_cpu_s=100.0)
    assert limited.others_frac == pytest.approx(100 / 640)
    assert dataclasses.replace(limited, cpus=None).others_frac == pytest.approx(5.0)
