"""Names of datasets and settings, and figures as text, for tables, plots and sentences; all of it is plain text."""

import math
import re
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from storebench.codecs import any_size
from storebench.datasets.base import FOLDER_PREFIX, LIST_PREFIX
from storebench.matrix import MODEL_CROPS
from storebench.plain_text import plain
from storebench.report.cells import (
    EPOCHS,
    SETTING_COLUMNS,
    CellSummary,
    LoopWork,
    work_of,
)
from storebench.report.intervals import Estimate
from storebench.report.panels import Panel
from storebench.results import Cell
from storebench.settings.backend import Backend
from storebench.settings.loop import SETTINGS
from storebench.settings.words import CacheState, Compute, ComputeKind, Split
from storebench.units import number_of

DATASETS = {"mnist": "MNIST", "cifar10": "CIFAR-10", "imagenet": "ImageNet"}
MODELS = {
    "lenet": "LeNet",
    "cifar10_quick": "cifar10_quick",
    "caffenet": "CaffeNet",
    "resnet50": "ResNet-50",
    "tiny": "the tiny network",
}
FORMATS = {
    "files": "files",
    "hdf5": "HDF5",
    "memory": "memory",
    "leveldb": "LevelDB",
    "lmdb": "LMDB",
    "null": "null",
}
BACKENDS = {
    "png": "PNG files",
    "jpeg": "JPEG files",
    "original": "original files",
    "files+raw": "raw files",
    "hdf5": "HDF5",
    "memory:python": "memory (Python)",
    "memory:native": "memory (native)",
    "leveldb": "LevelDB",
    "lmdb": "LMDB",
    "null": "null (no loading)",
}
"""Labels of backends; any other backend has its own name as its label."""

ORIGINAL = "original"
"""The codec of image files as they are."""

_SETTINGS = {row.name: row for row in SETTINGS}
_SINGULAR = {"epochs": "epoch", "steps": "step", "passes": "pass", "threads": "thread"}


def backend_label(backend: str) -> str:
    """Return a backend in words: "LMDB", "LMDB+PNG", "LMDB (direct)", "JPEG files (simplejpeg)"."""
    if backend in BACKENDS:
        return BACKENDS[backend]
    backend = plain(backend)
    body, _, options = backend.partition("?")
    body, *parts = body.split(":")
    container, _, codec = body.partition("+")
    codec = codec if codec == ORIGINAL else codec.upper()
    name = BACKENDS.get(body) or FORMATS.get(container, container) + (f"+{codec}" if codec else "")
    details = ", ".join(part for part in (*parts, options.replace(",", ", ")) if part)
    return f"{name} ({details})" if details else name


def store_label(cell: CellSummary, compared: Iterable[CellSummary]) -> str:
    """Return a cell's backend in words, "LMDB+JPEG (lossy)" where it stands beside a cell that loses no pixels."""
    mixed = cell.lossy and not all(other.lossy for other in compared)
    return backend_label(cell.backend) + (" (lossy)" if mixed else "")


def agreed(cell: CellSummary, singular: str, plural: str) -> str:
    """Return the form of a verb that agrees with a cell's backend: "LMDB loads", "PNG files load"."""
    return plural if backend_label(cell.backend).endswith("files") else singular


def listed(names: Sequence[str]) -> str:
    """Return "A, B and C"."""
    *others, last = names
    return f"{', '.join(others)} and {last}" if others else last


def codec_label(backend: Backend) -> str:
    """Return a backend's codec in words, with a decoder of choice: "JPEG", "JPEG (simplejpeg)", "original files"."""
    name = "original files" if backend.codec == ORIGINAL else backend.codec.upper()
    details = ", ".join(value for _, value in backend.codec_options)
    return plain(f"{name} ({details})" if details else name)


def dataset_label(cell: Cell | CellSummary) -> str:
    """Return a dataset in words, "ImageNet, 4,000 images"; for a summary also the place where it was read, if that varies."""
    fields, place = _fields(cell), cell.place if isinstance(cell, CellSummary) else ""
    name = fields.data.name
    title = Path(name).name if name.startswith((FOLDER_PREFIX, LIST_PREFIX)) else DATASETS.get(name, name)
    count = min((number for number in (fields.data.size, fields.data.limit) if number), default=None)
    if count and isinstance(cell, CellSummary):
        count = min(count, cell.fact("store_count") or count)  # a limit may be larger than the dataset
    words = [title] + ([f"{count:,} images"] if count else [])
    words += [fields.data.split] if fields.data.split != Split.TRAIN else []
    words += [place] if place else []
    return plain(", ".join(words))


def dataset_slug(cell: Cell | CellSummary) -> str:
    """Return a dataset as part of a file name: "imagenet-4000"; for a summary also its place, if that varies."""
    fields, place = _fields(cell), cell.place if isinstance(cell, CellSummary) else ""
    parts = [Path(fields.data.name).name] + [
        str(number) for number in (fields.data.size, fields.data.limit) if number
    ]
    parts += ["synthetic"] if fields.data.synthetic else []
    parts += [fields.data.split] if fields.data.split != Split.TRAIN else []
    parts += place.removeprefix("on ").replace(",", "").split()
    return "-".join("".join(c if c.isalnum() else "_" for c in part) for part in parts)


def file_name(text: str) -> str:
    """Return text as part of a file name: letters, digits and "-" stay."""
    return "".join(c if c.isalnum() or c == "-" else "_" for c in text)


def _fields(cell: Cell | CellSummary) -> Cell:
    return cell.cell if isinstance(cell, CellSummary) else cell


def setting_slug(cell: Cell, varying: Collection[str]) -> str:
    """Return the fields that vary as part of a file name: "-workers-2-compute-none", or ""."""
    shown = [name for name in (*SETTING_COLUMNS, EPOCHS) if name in varying]
    parts = [f"-{name.replace('_', '-')}-{getattr(cell, name)}" for name in shown]
    return file_name("".join(parts)).lower()


def setting_label(
    cell: Cell | CellSummary, varying: Collection[str] = (), *, without: Collection[str] = ()
) -> str:
    """Return the conditions of a measurement in words: the usual ones, and the fields that vary.

    `without` names fields to leave out. The cache state of a summary is the one that its
    records prove (`state_label`).
    """
    fields = _fields(cell)
    named = {row.name for row in SETTINGS if row.always} | set(varying)
    shown = [name for name in (*SETTING_COLUMNS, EPOCHS) if name in named and name not in without]
    if "cache" in shown:
        shown = [name for name in shown if name != "memory_bytes"]  # the state's label gives it
    words = [
        (state_label(cell) if name == "cache" else _setting_word(name, getattr(fields, name), fields))
        for name in shown
    ]
    return plain(", ".join(word for word in words if word))


def setting_words(cell: Cell, varying: Collection[str]) -> str:
    """Return only the fields that vary, in words; a read-ahead that was not set is called the disk's own."""
    usual = {row.name for row in SETTINGS if row.always}
    words = setting_label(cell, varying, without=usual.difference(varying))
    own = "the disk's own read-ahead" if "readahead_kib" in varying and cell.readahead_kib is None else ""
    return ", ".join(filter(None, (words, own)))


def device_words(cell: CellSummary) -> str:
    """Return where a network was trained: "this CPU" or "this GPU"."""
    return "this CPU" if cell.cell.device == "cpu" else "this GPU"


def network_name(cell: CellSummary) -> str:
    """Return the name of a cell's network: "ResNet-50"."""
    return MODELS.get(cell.cell.model, cell.cell.model)


def workers_words(cell: Cell) -> str:
    """Return the number of producers beside the loop in words."""
    return number_of(cell.workers, "worker") if cell.workers else "without workers"


def batch_words(cells: Sequence[CellSummary]) -> str:
    """Return the samples per batch and the size of the images that cells serve: "batches of 16 images of 224 x 224"."""
    batches = sorted({cell.cell.batch_size for cell in cells})
    sizes = sorted({size for cell in cells if (size := _served_size(cell))})
    of = f" of {' or '.join(sizes)}" if sizes else ""
    return f"batches of {' or '.join(map(str, batches))} images{of}"


def _served_size(cell: CellSummary) -> str:
    """Return the size of the images that a cell serves, "224 x 224"; "" if it is unknown."""
    side = cell.cell.data.image_size
    if side is None and any_size(cell.cell.backend.codec):
        side = MODEL_CROPS.get(cell.cell.model)
    if side is not None:
        return f"{side} x {side}"
    high, wide, *_ = [*str(cell.fact("store_image_shape") or "").split("x"), ""]
    return f"{wide} x {high}" if wide else ""


def state_label(cell: Cell | CellSummary) -> str:
    """Return the state of the page cache in words: "cold start", "warm", "limited to 400 MiB", "cache as found".

    For a limited cell whose records have no steady steps, that is said.
    """
    fields = _fields(cell)
    whole = isinstance(cell, CellSummary) and cell.whole_only
    if fields.cache == CacheState.COLD:
        return "cold start"
    if fields.cache == CacheState.LIMITED:
        return f"limited to {size(fields.memory_bytes)}" + (", not shown to be steady" if whole else "")
    return "cache as found" if fields.cache == CacheState.ANY else plain(fields.cache)


def panel_label(panel: Panel, varying: Collection[str] = ()) -> str:
    """Return the conditions that the cells of a panel share; its cache state is proven if one cell's is."""
    return setting_label(panel.speaker, varying)


def panel_state(cells: Sequence[CellSummary]) -> str:
    """Return the dataset and the conditions of cells of one panel, with the cache state that is proven."""
    panel = Panel(cells=tuple(cells), null=None)
    return f"{dataset_label(panel.first)}: {panel_label(panel)}"


def common_setting(cells: Sequence[CellSummary]) -> str:
    """Return the dataset, and the part of the setting that all these cells share."""
    words = [setting_label(cell).split(", ") for cell in cells if not cell.is_null]
    shared = [word for word in words[0] if all(word in other for other in words)] if words else []
    return f"{dataset_label(cells[0])}: {', '.join(shared)}" if cells else ""


def _setting_word(name: str, value: object, cell: Cell) -> str:
    known = _rank_word(name, value, cell)
    known = _SETTINGS[name].labels.get(value) if known is None else known
    if known is not None:
        return known
    if name == "model":
        if cell.compute.kind is ComputeKind.NONE:
            return ""
        return MODELS.get(str(value), str(value))
    if name == "memory_bytes":
        return f"limited to {size(cell.memory_bytes)}" if cell.memory_bytes else ""
    if name == "compute":
        return compute_label(cell.compute) or loading_label(cell)
    words = "" if value is None else _SETTINGS[name].label.format(value)
    return words if value != 1 else re.sub("|".join(_SINGULAR), lambda match: _SINGULAR[match[0]], words)


def _rank_word(name: str, value: object, cell: Cell) -> str | None:
    """Return the word for a setting that depends on the number of ranks; None for any other setting."""
    if name == "store_memory_bytes":
        return f"at most {size(cell.store_memory_bytes)} per node" if cell.store_memory_bytes else ""
    if name == "batch_size" and cell.ranks > 1:
        return f"batch {value} per rank"
    if name == "sync" and (cell.ranks == cell.trainers or cell.compute.kind is ComputeKind.NONE):
        return ""
    return None


def loading_label(cell: Cell) -> str:
    """Return words for the measured work if nothing is computed; "" otherwise."""
    work = work_of(cell)
    if work is LoopWork.AUGMENTING:
        return f"loader only, with {MODELS.get(cell.model, cell.model)}'s crop and mirror"
    return "reader and decoder alone" if work is LoopWork.READING else ""


def compute_label(compute: Compute) -> str:
    """Return emulated compute in words; "" if compute is real or none."""
    emulated = compute.kind is ComputeKind.EMULATED
    return f"compute EMULATED by a sleep of {plain(compute.duration)} ms" if emulated else ""


_MOST_ZEROS = 12
"""A figure that ends in more zeros is given as a power of ten."""

_UNKNOWN = " [too few rounds]"
"""In place of an interval whose ends do not even tell the order of magnitude."""

_NEAR_ONE = 2.0
"""A ratio within this factor of 1 is given in three digits: two would make 1.1 times [1.1, 1.1] of it."""


def number(value: float | None, digits: int = 3) -> str:
    """Return a figure to some significant digits, without an exponent: "1,230", "0.0123"."""
    if value is None:
        return ""
    if value == 0:
        return "0"
    if not math.isfinite(value):
        return str(value)
    decimals = _decimals(value, digits)
    if decimals > digits + 3 or decimals < -_MOST_ZEROS:
        return f"{value:.{digits - 1}e}"
    return f"{round(value, decimals):,.{max(decimals, 0)}f}"


def _decimals(value: float, digits: int) -> int:
    """Return the decimals that show `digits` significant ones; 0.997 to two digits is 1.0, and has one."""
    return digits - 1 - int(f"{value:.{digits - 1}e}".partition("e")[2])


def between(mid: float, lo: float | None, hi: float | None, digits: int = 3) -> tuple[str, str]:
    """Return a figure and its interval " [lo, hi]" with equal decimals; "" instead of an interval if there is none.

    If an end is below a power of ten and the figure above it, all three get one decimal more: 1.00 [0.96, 1.04].
    """
    if lo is None or hi is None:
        return number(mid, digits), ""
    known = [_decimals(value, digits) for value in (mid, lo, hi) if value and math.isfinite(value)]
    own = known[0] if mid and known else 0
    decimals = min(own + 1, max(known, default=0))
    figure, low, high = (_aligned(value, decimals, digits) for value in (mid, lo, hi))
    return figure, f" [{low}, {high}]"


def _aligned(value: float, decimals: int, digits: int) -> str:
    if not 0 < decimals <= digits + 3 or not math.isfinite(value) or (value and not round(value, decimals)):
        return number(value, digits)
    return f"{value:,.{decimals}f}"


def with_interval(interval: Estimate | None, suffix: str = "") -> str:
    """Return "3.10 [2.91, 3.32]"; the figure alone if there is no interval, "3.10 [too few rounds]" if it says nothing."""
    if interval is None:
        return ""
    mid, ends = _told(interval, 3)
    return f"{mid}{suffix}{ends}"


def times(interval: Estimate | None) -> str:
    """Return a ratio in words: "3.1 times [2.9, 3.3]"; one that is close to 1 has three digits: "1.10 times [1.07, 1.12]"."""
    if interval is None:
        return ""
    mid, ends = _told(interval, 3 if 1 / _NEAR_ONE < interval.mid < _NEAR_ONE else 2)
    return f"{mid} times{ends}"


def _told(interval: Estimate, digits: int) -> tuple[str, str]:
    """Return a figure and its interval as `between` does; " [too few rounds]" for one that says nothing."""
    if interval.lo is None or interval.hi is None or interval.known:
        return between(interval.mid, interval.lo, interval.hi, digits)
    return number(interval.mid, digits), _UNKNOWN


SINGLE, SIMULTANEOUS = "single 95%", "simultaneous 95%"
"""Families of intervals: one that holds by itself, and one that holds together with all others of its page."""

BRACKETS = (
    "Brackets hold 95% intervals. Ratios are taken within each round, so they are not the quotients of the rates beside them."
    " Their intervals are simultaneous: all of this page hold at once. The same ratio has a narrower interval on a page with fewer"
    " comparisons, and if it stands alone. Intervals of rates are single: each holds by itself."
)


def with_family(head: str, texts: Iterable[str], family: str) -> str:
    """Return the head of a column of `texts`, with the family of the intervals that it shows: "samples/s [single 95%]"."""
    return f"{head} [{family}]" if any("[" in text for text in texts) else head


def here(cells: Iterable[CellSummary]) -> str:
    """Return where cells were measured: "on this machine", or "on these 4 nodes" if jobs ran there."""
    nodes = sorted({int(cell.fact("job_nodes") or 1) for cell in cells})
    if not nodes or nodes[-1] == 1:
        return "on this machine"
    return f"on these {nodes[-1]} nodes" if len(nodes) == 1 else f"on up to {nodes[-1]} nodes"


_SIZES = {30: "GiB", 20: "MiB", 10: "KiB", 0: "bytes"}


def size(value: float | None) -> str:
    """Return bytes in binary units: "786 MiB"."""
    if value is None:
        return ""
    unit = next(step for step in _SIZES if abs(value) >= 2**step or step == 0)
    return f"{number(value / 2**unit)} {_SIZES[unit]}"


def duration(seconds: float | None) -> str:
    """Return seconds in a suitable unit: "12.3 ms", "4.1 s", "3 min"."""
    if seconds is None:
        return ""
    steps = ((1e-6, 1e9, "ns"), (1e-3, 1e6, "µs"), (1.0, 1e3, "ms"), (600.0, 1.0, "s"))
    for limit, factor, unit in steps:
        if abs(seconds) < limit:
            return f"{number(seconds * factor)} {unit}"
    return f"{number(seconds / 60)} min"


def percent(value: float | None) -> str:
    """Return a share in percent, with one decimal below 10%; zero has no sign."""
    if value is None:
        return ""
    text = f"{value:.0%}" if abs(value) >= 0.0995 or value == 0 else f"{value:.1%}"
    return text.replace("-0.0%", "0.0%")
