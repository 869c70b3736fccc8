"""Put a file system image on a loop device with its own read-ahead, for one process and its lifetime."""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from storebench.errors import CellFailedError, from_os_error
from storebench.probes.code import cell_environment
from storebench.probes.machine import IN_MEMORY, SYS_BLOCK, mount_of, read_text
from storebench.probes.page_cache import evict
from storebench.system.scratch import scratch_folder

# The required programs, from util-linux and e2fsprogs.
TOOLS = ("unshare", "mount", "losetup", "mkfs.ext4")

BLOCK_BYTES = 4096

_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_TRIAL_BYTES = 8 << 20
_TRIAL_READAHEAD_KIB = 64

_FILL = """\
mount -o loop,noatime "$1" "$2"
rmdir "$2/lost+found"
cp -a --sparse=never "$3/." "$2/"
sync -f "$2"
umount "$2"
"""


def own_namespace(command: Sequence[str]) -> list[str]:
    """Return `command` wrapped so that it runs in its own mount namespace; its process id does not change."""
    unshare = shutil.which("unshare", path=system_path()) or "unshare"
    return [unshare, "--mount", "--propagation", "private", "--", *command]


def mount_image(image: Path, folder: Path, readahead_kib: int, *, writable: bool = False) -> None:
    """Mount `image` on `folder` in this process's namespace, with a read-ahead; read-only unless `writable`."""
    # mount(8) makes the device detach itself on unmounting, and tells the kernel so before it mounts.
    options = "loop,noatime" if writable else "ro,loop"
    _call("mount", "-o", options, str(image), str(folder))
    device = mount_of(folder).device
    if device is None:
        raise CellFailedError("the image is mounted, but not on a device", where=folder)
    settings = (SYS_BLOCK / f"{device[0]}:{device[1]}").resolve()
    _call("losetup", "--direct-io=on", f"/dev/{settings.name}")
    try:
        (settings / "queue" / "read_ahead_kb").write_text(str(readahead_kib))
    except OSError as error:
        raise CellFailedError(f"read-ahead cannot be set ({error.strerror})", where=settings) from None
    if read_text(settings / "loop" / "dio") != "1":
        raise CellFailedError("the loop device does no direct I/O on this file system", where=image)
    # The pages that mounting read from the image came through the page cache.
    evict([image])


def make_image(image: Path, size_bytes: int, *, files: int) -> None:
    """Write an empty ext4 file system of `size_bytes` with room for this many files."""
    try:
        with image.open("wb") as file:
            # Allocated in one step, so that the store has the same layout on disk as its own files.
            os.posix_fallocate(file.fileno(), 0, size_bytes)
    except OSError as error:
        raise from_os_error(error, image) from error
    # It is written once and then mounted read-only, so it needs no journal.
    options = ("-O", "^has_journal", "-E", "nodiscard,lazy_itable_init=0", "-m", "0")
    _call("mkfs.ext4", "-q", "-F", "-b", str(BLOCK_BYTES), *options, "-N", str(files + 16), str(image))


def fill_image(image: Path, folder: Path, source: Path) -> None:
    """Copy everything in `source` into the image, which is mounted on `folder` in the meantime, and sync it."""
    _call(*own_namespace(["sh", "-ec", _FILL, "sh", str(image), str(folder), str(source)]))


def why_not(folder: Path) -> str:
    """Return the reason why no image in `folder` can be mounted with its own read-ahead, by trying, or ""."""
    if os.geteuid() != 0:
        return "needs root"
    missing = [tool for tool in TOOLS if shutil.which(tool, path=system_path()) is None]
    if missing:
        return f"needs {', '.join(missing)} (from util-linux and e2fsprogs)"
    fstype = mount_of(folder).fstype
    if fstype in IN_MEMORY:
        return f"needs a disk, and {folder} is on {fstype}"
    with scratch_folder("attempt", folder) as scratch:
        image, point = scratch / "trial.img", scratch / "mount"
        point.mkdir()
        try:
            make_image(image, _TRIAL_BYTES, files=16)
            trial = (sys.executable, "-P", "-m", __name__, str(image), str(point), str(_TRIAL_READAHEAD_KIB))
            _call(*own_namespace(trial))
        except CellFailedError as error:
            return error.what
    return ""


def _call(*command: str) -> None:
    env = {**cell_environment(), "PATH": system_path()}  # a Python among the commands must find this package
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    except OSError as error:
        raise CellFailedError(f"{command[0]} cannot be run ({error.strerror})") from None
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise CellFailedError(f"{command[0]}: {lines[-1]}")


def system_path() -> str:
    """Return PATH with the folders of system programs, which are missing for some accounts."""
    return os.pathsep.join(filter(None, (os.environ.get("PATH"), _SYSTEM_PATH)))


if __name__ == "__main__":
    # A trial for why_not: mount, print the kernel's refusal as the last line, and clean up at the end.
    try:
        mount_image(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
    except CellFailedError as refusal:
        sys.exit(refusal.what)
