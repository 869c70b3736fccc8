"""The disk of every emulated node: a file system with the stores of some scenarios, and a file for measuring its rate."""

import os
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path

from benchmarks.nodes.node import PROBE, STORES
from storebench.probes.loop_mount import BLOCK_BYTES, fill_image, make_image
from storebench.runner import Silent, prepare
from storebench.scenario import load_scenario

IMAGE = "disk.img"

_PROBE_BYTES = 16 << 20
_SLACK_BYTES = 32 << 20
_SLACK_FRAC = 0.05
_SPARE_FILES = 1000
"""Room for files that cells may add: indexes and locks."""


def disk_image(scratch: Path, scenarios: Sequence[Path]) -> Path:
    """Return the image of a disk, made in `scratch`, with the stores of all cells of the scenarios.

    Raises
    ------
    StorebenchError
        A store cannot be built, or the image cannot be written.
    """
    content = scratch / "content"
    (content / STORES).mkdir(parents=True)
    (content / PROBE).write_bytes(os.urandom(_PROBE_BYTES))
    for path in scenarios:
        scenario = load_scenario(path)
        prepare(dict.fromkeys(scenario.cells()), scenario, content / STORES, Silent())
    image, point = scratch / IMAGE, scratch / "mount"
    point.mkdir()
    paths = list(content.rglob("*"))
    make_image(image, _size(paths), files=len(paths) + _SPARE_FILES)
    fill_image(image, point, content)
    shutil.rmtree(content)
    return image


def _size(paths: Iterable[Path]) -> int:
    """Return the size of a file system that holds copies of some files and folders, in bytes."""
    content = sum(path.stat().st_size + BLOCK_BYTES for path in paths)
    return -(-int(content * (1 + _SLACK_FRAC) + _SLACK_BYTES) // BLOCK_BYTES) * BLOCK_BYTES
