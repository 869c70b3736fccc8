"""The environment of a measurement: the facts that must be equal for a comparison, and further notes."""

import functools
import hashlib
import importlib.metadata
import json
import os
import platform
import re
import socket
import sys
import traceback
from pathlib import Path
from typing import Any

import psutil

from storebench.errors import PLYVEL
from storebench.probes import machine
from storebench.probes.cgroup import memory_limit_bytes
from storebench.probes.code import package_folder, running_checkout, storebench_version
from storebench.probes.machine import mount_of, scheduling
from storebench.record.schema import Environment

_LIBRARIES = ("torch", "numpy", "pillow", "h5py", "lmdb", PLYVEL)
_CODEC_LIBRARIES = ("pyarrow", "simplejpeg", "opencv-python-headless", "imagecodecs")
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
# Folders, addresses, users and descriptors differ from mount to mount, and change no speed.
_OF_ONE_MOUNT = re.compile(
    r".*=.*[/:]|(fd|addr|clientaddr|mountaddr|(mount)?port|user_id|group_id|subvolid|xino)="
)


def environment(store: Path | str, device: str = "cpu", *, image: Path | None = None) -> Environment:
    """Describe this machine and process for a store on the filesystem of `store`."""
    place = store if image is None else image.parent
    match = _match(place, device)
    own_device = {} if image is None else {"own_device": _disk_of(store)}
    return Environment(key=match_key(match), match=match, notes={**_notes(place), **own_device})


def match_key(match: dict[str, Any]) -> str:
    """Return twelve hexadecimal digits that are equal if `match` is equal."""
    text = json.dumps(match, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()


def _match(store: Path | str, device: str) -> dict[str, Any]:
    mount = mount_of(store)
    accelerator = None if device == "cpu" else device
    if device.startswith("cuda"):
        import torch

        accelerator = torch.cuda.get_device_name(device) if torch.cuda.is_available() else device
    return {
        "cpu": machine.cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "cpu_quota": machine.cpu_quota(),
        "memory_gib": _gib(psutil.virtual_memory().total),
        "memory_limit_gib": _gib(memory_limit_bytes()),
        "kernel": platform.release(),
        "scheduling": scheduling(),
        "governor": machine.governor(),
        "transparent_hugepages": machine.transparent_hugepages(),
        "filesystem": mount.fstype,
        "mount_options": [option for option in mount.options if not _OF_ONE_MOUNT.match(option)],
        "block_device": _disk_of(store),
        "accelerator": accelerator,
        "libraries": _libraries(),
        "threads": {name: os.environ.get(name) for name in _THREAD_VARIABLES},
    }


def _disk_of(place: Path | str) -> dict[str, str | None]:
    """Describe a disk without its name: it may be sda today and sdb after the next boot."""
    return {name: value for name, value in machine.block_device(mount_of(place)).items() if name != "name"}


def _gib(size_bytes: int | None) -> float | None:
    """Round to a quarter of a GiB, because the kernel's own share differs from boot to boot."""
    return None if size_bytes is None else round(4 * size_bytes / 2**30) / 4


@functools.cache
def _libraries() -> dict[str, str | None]:
    from PIL import features

    versions = {"python": platform.python_version(), **{name: version_of(name) for name in _LIBRARIES}}
    # Builds of one version of Pillow differ in the libraries that decode images, and in speed.
    turbo, ng = features.check_feature("libjpeg_turbo"), features.check_feature("zlib_ng")
    jpeg = features.version_feature("libjpeg_turbo") if turbo else features.version_codec("jpg")
    zlib = features.version_feature("zlib_ng") if ng else features.version_codec("zlib")
    # A wheel bundles the C library in a file whose name has its version and digest.
    files = importlib.metadata.files("h5py") or [] if versions["h5py"] else []
    hdf5 = next((file.name for file in files if file.name.startswith("libhdf5-")), "not bundled")
    return {
        **versions,
        "libjpeg": f"{'libjpeg-turbo' if turbo else 'libjpeg'} {jpeg}",
        "zlib": f"{'zlib-ng' if ng else 'zlib'} {zlib}",
        "hdf5": hdf5 if versions["h5py"] else None,
    }


def version_of(distribution: str) -> str | None:
    """Return an installed distribution's version without importing it; None if it is not installed."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def issue_line(error: BaseException) -> str:
    """Return what an issue about an error must name, and no path or argument of the user's."""
    folder = str(package_folder())
    frames = [
        frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename.startswith(folder)
    ]
    place = f" at storebench{frames[-1].filename.removeprefix(folder)}:{frames[-1].lineno}" if frames else ""
    versions = [f"{name} {version_of(name)}" for name in ("torch", "numpy")]
    system = (
        f"Python {platform.python_version()}, {platform.system()} {platform.release()} {platform.machine()}"
    )
    return (
        f"{type(error).__name__}{place}; storebench {storebench_version()}, {system}, {', '.join(versions)}"
    )


def _notes(store: Path | str) -> dict[str, Any]:
    mount = mount_of(store)
    return {
        "codecs": {name: version_of(name) for name in _CODEC_LIBRARIES},
        "host": hashlib.blake2b(socket.gethostname().encode(), digest_size=4).hexdigest(),
        "load": list(os.getloadavg()),
        "free_memory_bytes": psutil.virtual_memory().available,
        "swap_bytes": psutil.swap_memory().total,
        "virtual_machine": machine.virtual_machine(),
        "damon": machine.damon(),
        "mount_options": list(mount.options),
        "torch_threads": sys.modules["torch"].get_num_threads() if "torch" in sys.modules else None,
        "git_commit": running_checkout().commit,
        "git_dirty": running_checkout().changed,
    }
