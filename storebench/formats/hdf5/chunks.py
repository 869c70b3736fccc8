"""The cost of a chunked HDF5 data set, of any program."""

import math
import shlex
from pathlib import Path
from typing import Any

from storebench.units import number_of


def chunks_of_sample(data: Any) -> int:
    """Return the number of chunks that hold parts of one sample of a chunked data set."""
    return math.prod(-(-n // c) for n, c in zip(data.shape[1:], data.chunks[1:], strict=True))


def diagnose_dataset(path: Path, name: str, data: Any, *, sample_bytes: int) -> str | None:
    """Return the cost of a random sample of a data set if its chunks make it large, with the line that reduces it."""
    if not data.chunks or not data.size:
        return None
    item = data.dtype.itemsize
    touched = chunks_of_sample(data)
    cost = touched * math.prod(data.chunks) * item
    if cost < 128 << 10 or cost < 4 * sample_bytes:
        return None
    layout = "CHUNK=" + "x".join(map(str, (1, *data.shape[1:]))) if data.compression else "CONTI"
    repacked = path.with_name(f"{path.stem}-repacked{path.suffix}")
    command = ["h5repack", "-l", f"{name}:{layout}", str(path), str(repacked)]
    size = f"{cost / 2**20:.1f} MiB" if cost >= 1 << 20 else f"{cost / 2**10:.0f} KiB"
    return (
        f"a random sample of {name!r} ({sample_bytes} bytes) costs {size}: it spans "
        f"{number_of(touched, 'chunk')} of {data.chunks}; fix it with: {shlex.join(command)}"
    )
