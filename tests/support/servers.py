"""Which servers of places can be tried on this machine."""

import ctypes.util
import importlib.util
import os
import shutil
import sys
from pathlib import Path


def missing(kind: str) -> str:
    """Return why a kind of server cannot be tried here, "" if it can."""
    if kind in ("ssh", "weed") and not (
        os.access("/dev/fuse", os.R_OK | os.W_OK) and (not os.geteuid() or shutil.which("fusermount3"))
    ):
        return "needs FUSE"
    if kind == "ssh":
        found = shutil.which("sshd", path=f"/usr/sbin:{os.environ.get('PATH', '')}") and shutil.which("sshfs")
        return "" if found else "needs OpenSSH's server and sshfs"
    if kind in ("s3", "weed"):
        found = shutil.which("weed", path=f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}")
        return "" if found and importlib.util.find_spec("obstore") else "needs the extra s3"
    if os.geteuid() or shutil.which("ganesha.nfsd") is None:
        return "needs root and NFS-Ganesha"
    return "" if ctypes.util.find_library("nfs") else "needs libnfs"
