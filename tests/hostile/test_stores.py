"""Attacks on a store after it was verified, trees of LMDB that lead out of its file, and devices in place of files."""

import json
import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from storebench.probes.machine import mount_of
from tests.hostile.conftest import SAMPLES_OPTIONS
from tests.support.quick_cli import storebench

FROM_STORES = ("--compute", "emulated:0.01", "--threads", "1", "--stores", "stores")
PAGE = 4096
BRANCH, LEAF = 1, 2


def images(stores: Path) -> list[Path]:
    return sorted((stores / "files+raw").rglob("*.raw"), key=lambda path: path.name)


def flip_a_bit(stores: Path) -> None:
    path = images(stores)[5]
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(data)


def exchange_two_samples(stores: Path) -> None:
    first, second = images(stores)[3:5]
    data = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(data)


def shift_the_labels(stores: Path) -> None:
    path = stores / "files+raw" / "labels.npy"
    np.save(path, np.roll(np.load(path), 1))


def cut_one_short(stores: Path) -> None:
    path = images(stores)[7]
    path.write_bytes(path.read_bytes()[:-1])


def forge_the_digests(stores: Path) -> None:
    """Change the digests of one sample, but not the manifest that digests these digests."""
    path = stores / "files+raw" / "sample_digests.npy"
    digests = np.load(path)
    digests[5] ^= 1
    np.save(path, digests)


@pytest.mark.parametrize("attack", [flip_a_bit, exchange_two_samples, shift_the_labels])
def test_a_run_from_a_changed_store_fails(
    attack: Callable[[Path], None], stores: Path, tmp_path: Path
) -> None:
    attack(stores)
    done = storebench(tmp_path, "run", "files+raw", *SAMPLES_OPTIONS, *FROM_STORES, "--out", "run")
    assert done.returncode == 5, (done.returncode, done.stderr)
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("attack", [cut_one_short, forge_the_digests])
def test_a_store_of_other_sizes_or_digests_is_built_again(
    attack: Callable[[Path], None], stores: Path, tmp_path: Path
) -> None:
    attack(stores)
    done = storebench(tmp_path, "run", "files+raw", *SAMPLES_OPTIONS, *FROM_STORES, "--out", "run")
    assert (done.returncode, "building" in done.stderr) == (0, True), done.stderr


@pytest.mark.parametrize("backend", ["hdf5+raw", "files+raw"])
def test_samples_on_another_file_system_fail_the_cell(
    backend: str, stores: Path, tmp_path: Path, in_memory: Path
) -> None:
    """The record would name the file system of the store's folder."""
    if mount_of(in_memory).point == mount_of(tmp_path).point:
        pytest.skip("the temporary folder is in memory, and there is no other file system to write to")
    path = images(stores)[0] if backend == "files+raw" else next((stores / backend).glob("data.*"))
    shutil.move(path, in_memory / path.name)
    path.symlink_to(in_memory / path.name)
    done = storebench(tmp_path, "run", backend, *SAMPLES_OPTIONS, *FROM_STORES, "--out", "run")
    assert done.returncode == 5, done.stderr
    assert f"a link to tmpfs on {mount_of(in_memory).point}, but the store is on " in done.stderr


def refusal(place: Path, *arguments: object) -> str:
    """Return the one line of a command that ended with exit code 5."""
    done = storebench(place, *arguments)
    assert done.returncode == 5, (done.returncode, done.stderr)
    [line] = done.stderr.splitlines()
    assert line.startswith("storebench: ")
    return line


def pages_of(data: bytearray, kind: int) -> list[int]:
    """Return where pages of this kind begin, as a writer that only appends leaves them."""
    starts = range(2 * PAGE, len(data), PAGE)
    return [at for at in starts if struct.unpack_from("<H", data, at + 10)[0] == kind]


def point_beyond_the_last_leaf(data: bytearray) -> None:
    at = pages_of(data, LEAF)[-1]
    for pointer in range(at + 16, at + struct.unpack_from("<H", data, at + 12)[0], 2):
        struct.pack_into("<H", data, pointer, 0xFFF8)  # a place that no page has


def leave_the_branch_one_child(data: bytearray) -> None:
    """Leave the root its first leaf alone, and say so wherever pages and entries are counted."""
    [at] = pages_of(data, BRANCH)
    (first,) = struct.unpack_from("<H", data, at + 16)
    child = data[at + first : at + first + 6]
    (leaf,) = struct.unpack("<I", child[:4])
    entries = (struct.unpack_from("<H", data, leaf * PAGE + 12)[0] - 16) // 2
    struct.pack_into("<HHH", data, at + 12, 18, PAGE - 8, PAGE - 8)  # lower and upper bound, and the pointer
    data[at + PAGE - 8 : at + PAGE] = child + bytes(2)
    for meta in (0, PAGE):
        struct.pack_into("<Q", data, meta + 88 + 16, 1)
        struct.pack_into("<Q", data, meta + 88 + 32, entries)


@pytest.mark.parametrize("damage", [point_beyond_the_last_leaf, leave_the_branch_one_child])
def test_a_tree_that_would_end_the_process_is_refused(
    stores: Path, tmp_path: Path, damage: Callable[[bytearray], None]
) -> None:
    path = stores / "lmdb+raw" / "data.mdb"
    data = bytearray(path.read_bytes())
    damage(data)
    path.write_bytes(data)
    assert "data.mdb" in refusal(tmp_path, "verify", path.parent, "--reader", "get")


def zeros(path: Path) -> None:
    path.symlink_to("/dev/zero")


@pytest.mark.parametrize(
    ("pattern", "reader", "make"),
    [
        ("files+raw/**/*.raw", "get", os.mkfifo),
        ("lmdb+raw/data.mdb", "direct", zeros),
    ],
)
def test_what_is_no_regular_file_is_refused_and_not_waited_for(
    stores: Path, tmp_path: Path, pattern: str, reader: str, make: Callable[[Path], None]
) -> None:
    path = min(stores.glob(pattern))
    store = next(folder for folder in path.parents if folder.parent == stores)
    facts = json.loads((store / "manifest.json").read_text(encoding="utf-8"))
    facts["file_bytes"] -= path.stat().st_size  # the sum of sizes is that of the rest
    (store / "manifest.json").write_text(json.dumps(facts), encoding="utf-8")
    path.unlink()
    make(path)
    line = refusal(tmp_path, "verify", store, "--reader", reader)
    assert str(path) in line
    assert "not a regular file" in line
