"""Attacks on a store after it was verified: a run from it must fail, and name what is wrong."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from storebench.probes.machine import mount_of
from tests.support.quick_cli import storebench

SIZE = ("--dataset", "cifar10", "--limit", "64", "--synthetic")
FROM_STORES = ("--compute", "emulated:0.01", "--threads", "1", "--stores", "stores")
FOLDER = "cifar10-train-limit64-synthetic"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("attacked")
    done = storebench(root, "convert", "files+raw", "memory", "hdf5", *SIZE, "--out", "stores")
    assert done.returncode == 0, done.stderr
    return root


@pytest.fixture
def stores(built: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(built / "stores", tmp_path / "stores")) / FOLDER


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


def serve_one_sample_everywhere(stores: Path) -> None:
    one = images(stores)[0].read_bytes()
    for path in images(stores):
        path.write_bytes(one)


def shift_the_labels(stores: Path) -> None:
    path = stores / "files+raw" / "labels.npy"
    np.save(path, np.roll(np.load(path), 1))


def cut_one_short(stores: Path) -> None:
    path = images(stores)[7]
    path.write_bytes(path.read_bytes()[:-1])


def lose_one(stores: Path) -> None:
    images(stores)[9].unlink()


def forge_the_digests(stores: Path) -> None:
    """Change the pixels and the digests of one sample, but not the manifest that digests these digests."""
    path = stores / "files+raw" / "sample_digests.npy"
    digests = np.load(path)
    digests[5] ^= 1
    np.save(path, digests)


ATTACKS: dict[str, Callable[[Path], None]] = {
    "a bit of one pixel": flip_a_bit,
    "two samples exchanged": exchange_two_samples,
    "one sample everywhere": serve_one_sample_everywhere,
    "labels shifted by one": shift_the_labels,
    "a truncated image": cut_one_short,
    "a missing image": lose_one,
    "forged digests": forge_the_digests,
}


SEEN_BEFORE = {cut_one_short, lose_one, forge_the_digests}


@pytest.mark.parametrize("name", ATTACKS)
def test_a_run_from_a_changed_store_fails(stores: Path, tmp_path: Path, name: str) -> None:
    ATTACKS[name](stores)
    done = storebench(tmp_path, "run", "files+raw", *SIZE, *FROM_STORES, "--out", "run")
    if ATTACKS[name] in SEEN_BEFORE:
        # Sizes, counts and the digest of the digests are checked first: such a store is named and built again.
        assert (done.returncode, "building" in done.stderr) == (0, True), done.stderr
    else:
        assert done.returncode == 5, (done.returncode, done.stderr)
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("backend", ["memory+raw", "hdf5+raw", "files+raw"])
def test_samples_on_another_file_system_fail_the_cell(
    backend: str, stores: Path, tmp_path: Path, in_memory: Path
) -> None:
    """The record would name the file system of the store's folder."""
    if mount_of(in_memory).point == mount_of(tmp_path).point:
        pytest.skip("the temporary folder is in memory, and there is no other file system to write to")
    path = images(stores)[0] if backend == "files+raw" else next((stores / backend).glob("data.*"))
    shutil.move(path, in_memory / path.name)
    path.symlink_to(in_memory / path.name)
    done = storebench(tmp_path, "run", backend, *SIZE, *FROM_STORES, "--out", "run")
    assert done.returncode == 5, done.stderr
    assert f"a link to tmpfs on {mount_of(in_memory).point}, but the store is on " in done.stderr


def test_a_store_that_agrees_with_itself_disagrees_with_the_others(stores: Path, tmp_path: Path) -> None:
    """Exchange the whole store for one of other samples: only comparing formats can tell."""
    other = storebench(tmp_path, "convert", "hdf5", *SIZE, "--seed", "1", "--out", "others")
    assert other.returncode == 0, other.stderr
    [planted] = (tmp_path / "others").glob("*/hdf5+raw")
    for name in ("data.h5", "sample_digests.npy"):
        shutil.copy(planted / name, stores / "hdf5+raw" / name)
    changed = json.loads((planted / "manifest.json").read_text(encoding="utf-8"))
    path = stores / "hdf5+raw" / "manifest.json"
    honest = json.loads(path.read_text(encoding="utf-8"))
    changed["dataset"]["spec"] = honest["dataset"].get("spec", changed["dataset"].get("spec"))
    path.write_text(json.dumps(honest | {"samples_digest": changed["samples_digest"]}), encoding="utf-8")
    done = storebench(tmp_path, "run", "hdf5", "files+raw", *SIZE, *FROM_STORES, "--out", "run")
    if done.returncode == 0:
        done = storebench(tmp_path, "validate", "run")
        assert "samples" in done.stdout
    assert done.returncode == 5, (done.returncode, done.stdout, done.stderr)
