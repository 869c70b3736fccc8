"""Every format on a disk that fills up, and on one that nobody may write to."""

import functools
import subprocess
import sys
from pathlib import Path

import pytest

from storebench.formats.registry import format_names, get_format, is_installed
from storebench.testing.stores import build_small_store, local_readers, read_digest
from tests.support.copies import own_mounts, run_code

STORING = [name for name in format_names() if is_installed(name) and get_format(name).info.borrows is None]
READERS = [(name, reader) for name in STORING for reader in local_readers(get_format(name))]


def run_mounted(mount: str, code: str, *arguments: object, forks: bool = True) -> str:
    """In a copy of this process, with its own mounts, run the shell line `mount`, then `code`; return its output.

    A new process runs it if not `forks`.
    """
    if forks:
        done = run_code(code, *arguments, first=functools.partial(own_mounts, mount))
    else:
        shell = ["unshare", "--mount", "sh", "-ec", f'{mount}; exec "$@"', "sh"]
        words = [sys.executable, "-c", code, *map(str, arguments)]
        done = subprocess.run([*shell, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def ext4_image(folder: Path, size: str, *options: str) -> Path:
    """Make an ext4 of this size in a file."""
    image = folder / "ext4.img"
    with image.open("wb") as file:
        file.truncate(int(size.removesuffix("M")) << 20)
    subprocess.run(["mkfs.ext4", "-q", "-F", *options, str(image)], check=True)
    return image


@functools.cache
def _may_mount() -> bool:
    """Tell whether this process is root with CAP_SYS_ADMIN, mkfs.ext4 and loop devices."""
    script = (
        'set -e; cd "$(mktemp -d)"; trap "rm -r $PWD" EXIT; truncate -s 4M image; mkdir on; '
        "mkfs.ext4 -q -F image; mount -o loop image on; umount on"
    )
    try:
        done = subprocess.run(["unshare", "--mount", "sh", "-c", script], capture_output=True, check=False)
    except FileNotFoundError:
        return False
    return done.returncode == 0


@pytest.fixture(autouse=True)
def mounting() -> None:
    if not _may_mount():
        pytest.skip("mounting needs root with CAP_SYS_ADMIN, mkfs.ext4 and loop devices")


FILL_UP = """
import shutil, sys
from pathlib import Path
from storebench.codecs import get_codec
from storebench.errors import DiskFullError, from_os_error
from storebench.formats.registry import get_format
from storebench.record.manifest import StoreSpec
from storebench.testing.stores import dataset_info, left_open, open_files

name, codec, folder = sys.argv[1], sys.argv[2], Path(sys.argv[3]) / "store"
import numpy as np
image = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
size = len(get_codec(codec).encode(image))
spec = StoreSpec(dataset=dataset_info(3000, image.shape), format=name, codec=codec)
get_format(name)
before = open_files()
folder.mkdir()
try:
    with get_format(name).writer(folder, spec) as writer:
        for seed in range(3000):  # no two are equal: some formats would store them once
            writer.append(np.random.default_rng(seed).bytes(size), 0)
except OSError as error:
    failure = from_os_error(error, folder)
except DiskFullError as error:
    failure = error
assert isinstance(failure, DiskFullError), failure
assert not left_open(before)
shutil.rmtree(folder)
print(failure)
"""


@pytest.mark.root
@pytest.mark.parametrize("name", STORING)
def test_a_full_disk_is_one_clear_error_and_nothing_stays_open(name: str, tmp_path: Path) -> None:
    about = get_format(name)
    mount = f"mount -t tmpfs -o size=2m none {tmp_path}"
    line = run_mounted(mount, FILL_UP, name, about.info.default_codec, tmp_path, forks=about.traits().forks)
    assert f"the disk is full (tmpfs on {tmp_path})" in line
    assert line.count("\n") == 1


@pytest.mark.root
@pytest.mark.parametrize(
    ("name", "codec", "size"),
    [(name, "raw", ["4M"]) for name in ("hdf5", "leveldb", "lmdb", "sqlite")]
    + [("files", "jpeg", ["16M", "-N", "64"])],  # which has too few inodes
)
def test_a_full_ext4_is_told_as_one(name: str, codec: str, size: list[str], tmp_path: Path) -> None:
    image = ext4_image(tmp_path, *size)
    line = run_mounted(f"mount -o loop {image} {tmp_path}", FILL_UP, name, codec, tmp_path)
    assert f"the disk is full (ext4 on {tmp_path})" in line


READ_ALL = """
import sys
from pathlib import Path
from storebench.testing.stores import read_digest

store = Path(sys.argv[3])
try:
    (store / "probe").touch()
except OSError:
    print(read_digest(sys.argv[1], sys.argv[2], store, 0))
"""


@pytest.mark.root
@pytest.mark.parametrize(("name", "reader"), READERS)
def test_a_read_only_disk_will_do(name: str, reader: str, tmp_path: Path) -> None:
    store_format = get_format(name)
    path = tmp_path / "store"
    path.mkdir()
    build_small_store(store_format, store_format.info.default_codec, path)
    remount = f"mount --bind {path} {path} && mount -o remount,bind,ro {path}"
    printed = run_mounted(remount, READ_ALL, name, reader, path, forks=store_format.traits(reader).forks)
    assert printed.strip() == read_digest(name, reader, path, 0)
