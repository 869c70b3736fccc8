"""Names of datasets, backends and settings, figures as text, and what has to be said beside figures; all plain text."""

import math
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from storebench.analysis.comparison import Estimate, Ratio, Verdict
from storebench.analysis.summary import EPOCHS, SETTING_COLUMNS, CellSummary, LoopWork, work_of
from storebench.datasets.base import PATH_PREFIXES
from storebench.datasets.images import resize_clause, served_note
from storebench.plain_text import plain
from storebench.record.schema import CacheVerdict, Cell
from storebench.run.matrix import MODEL_CROPS
from storebench.settings.backend import STREAM
from storebench.settings.loop_fields import SETTINGS
from storebench.settings.words import LOCAL, CacheState, ComputeKind, Place, Split
from storebench.units import format_bytes, number_of

ORIGINAL = "original"
DATASETS = {"mnist": "MNIST", "cifar10": "CIFAR-10", "imagenet": "ImageNet"}
MODELS = {
    "lenet": "LeNet",
    "caffenet": "CaffeNet",
    "resnet50": "ResNet-50",
    "tiny": "the tiny network",
}
FORMATS = {"hdf5": "HDF5", "leveldb": "LevelDB", "lmdb": "LMDB"}
BACKENDS = {
    "png": "PNG files",
    "jpeg": "JPEG files",
    "original": "original files",
    "files+raw": "raw files",
    "memory:python": "memory (Python)",
    "null": "null (no loading)",
}
# Codecs that are not written in capitals.
CODECS = {ORIGINAL: ORIGINAL, "webp": "WebP", "zstd": "zstd"}

_STATES = {
    CacheState.WARM: "in memory",
    CacheState.COLD: "from a cold start",
    CacheState.LIMITED: "larger than memory",
}

_SETTINGS = {row.name: row for row in SETTINGS}
_SINGULAR = {"epochs": "epoch", "steps": "step", "passes": "pass", "threads": "thread", "workers": "worker"}


def backend_label(backend: str) -> str:
    """Return a backend in words: "LMDB", "LMDB+PNG", "LMDB (direct)", "JPEG files (simplejpeg)"."""
    if backend in BACKENDS:
        return BACKENDS[backend]
    backend = plain(backend)
    body, _, options = backend.partition("?")
    body, *parts = body.split(":")
    container, _, codec = body.partition("+")
    codec = CODECS.get(codec, codec.upper())
    name = BACKENDS.get(body) or FORMATS.get(container, container) + (f"+{codec}" if codec else "")
    parts = ["own order" if part == STREAM else part for part in parts]
    details = ", ".join(part for part in (*parts, options.replace(",", ", ")) if part)
    return f"{name} ({details})" if details else name


def dataset_label(cell: CellSummary) -> str:
    """Return a dataset in words, "ImageNet, 4,000 images", and where it was read, if that varies."""
    data = cell.cell.data
    title = (
        Path(data.name).name if data.name.startswith(PATH_PREFIXES) else DATASETS.get(data.name, data.name)
    )
    # A limit may be larger than the dataset.
    counts = [count for count in (data.size, data.limit) if count]
    count = min([*counts, cell.fact("store_count") or math.inf]) if counts else 0
    split = data.split if data.split != Split.TRAIN else ""
    return plain(", ".join(filter(None, (title, f"{count:,} images" if count else "", split, cell.place))))


def dataset_slug(cell: CellSummary) -> str:
    """Return a dataset as part of a file name: "imagenet-4000"."""
    data = cell.cell.data
    parts = [Path(data.name).name] + [str(n) for n in (data.size, data.limit) if n]
    parts += ["synthetic"] if data.synthetic else []
    parts += [data.split] if data.split != Split.TRAIN else []
    parts += cell.place.removeprefix("on ").replace(",", "").split()
    return "-".join("".join(c if c.isalnum() else "_" for c in part) for part in parts)


def setting_label(cell: CellSummary, varying: Collection[str] = ()) -> str:
    """Return the conditions of a measurement in words: the usual ones, and the fields that vary."""
    fields = cell.cell
    named = {row.name for row in SETTINGS if row.told} | set(varying)
    shown = [name for name in (*SETTING_COLUMNS, EPOCHS) if name in named]
    if "cache" in shown:
        shown = [name for name in shown if name != "memory_bytes"]  # the state's label gives it
    words = [
        state_label(cell) if name == "cache" else setting_word(name, getattr(fields, name), fields)
        for name in shown
    ]
    return plain(", ".join(word for word in words if word))


def common_setting(cells: Sequence[CellSummary]) -> str:
    words = [setting_label(cell).split(", ") for cell in cells if not cell.is_null]
    shared = [word for word in words[0] if all(word in other for other in words)] if words else []
    return f"{dataset_label(cells[0])}: {', '.join(shared)}" if cells else ""


def state_label(cell: CellSummary) -> str:
    """Return the state of the page cache in words: "in memory", "larger than memory (400 MiB)"."""
    words = _STATES.get(cell.cell.cache, "cache as found")
    limit = f" ({size(cell.cell.memory_bytes)})" if cell.cell.cache == CacheState.LIMITED else ""
    return words + limit + (", not shown to be steady" if cell.whole_only else "")


def condition_label(cell: CellSummary) -> str:
    """Return the state of the store as a person would say it: "in memory", "larger than memory, read-ahead 128 KiB"."""
    words = _STATES.get(cell.cell.cache, "cache as found")
    if cell.cell.place.remote:
        words = place_words(cell.cell.place)
    elif cell.cell.place != LOCAL:
        words += f", {place_words(cell.cell.place)}"
    kib, tier = cell.cell.readahead_kib, cell.cell.tier
    words += "" if kib is None else f", read-ahead {format_bytes(1024 * kib)}"
    return words if tier is None else f"{words}, storage EMULATED as {tier}"


def setting_word(name: str, value: object, cell: Cell) -> str:
    """Return the value of a setting in words, "" if the cell does not use it."""
    if name == "store_memory_bytes":
        return f"at most {size(cell.store_memory_bytes)} per node" if cell.store_memory_bytes else ""
    if name == "batch_size" and cell.ranks > 1:
        return f"batch {value} per rank"
    if name == "sync" and (cell.ranks == cell.trainers or cell.compute.kind is ComputeKind.NONE):
        return ""
    if (label := _SETTINGS[name].labels.get(value)) is not None:
        return label
    if name == "model":
        return "" if cell.compute.kind is ComputeKind.NONE else MODELS.get(str(value), str(value))
    if name == "memory_bytes":
        return f"limited to {size(cell.memory_bytes)}" if cell.memory_bytes else ""
    if name == "place":
        return place_words(cell.place)
    if name == "compute":
        if cell.compute.kind is ComputeKind.EMULATED:
            return f"compute EMULATED by a sleep of {plain(cell.compute.duration)} ms"
        if work_of(cell) is LoopWork.AUGMENTING:
            return f"loader only, with {MODELS.get(cell.model, cell.model)}'s crop and mirror"
        return "reader and decoder alone" if work_of(cell) is LoopWork.READING else ""
    words = "" if value is None else _SETTINGS[name].label.format(value)
    return words if value != 1 else re.sub("|".join(_SINGULAR), lambda match: _SINGULAR[match[0]], words)


def machine_words(cell: CellSummary) -> str:
    """Return the machine of a cell as short words."""
    row = cell.rows[0]
    cpu = re.sub(r"\((R|TM)\)| CPU\b| Processor\b| \d+-Cores?\b| @.*", "", str(row.match("cpu")))
    return f"{row.match('accelerator') or cpu}, {number_of(int(row.match('cores') or 1), 'core')}"


def place_words(place: Place) -> str:
    """Return a place as short words; what is emulated says so."""
    if place == LOCAL:
        return ""
    if place.folder:
        return f"{'copied ' * (place != place.folder)}below {place.folder}"
    units = {
        "first-byte-ms": "first byte {:g} ms",
        "round-trip-ms": "round trip {:g} ms",
        "mb-s": "{:g} MB/s",
    }
    emulated = [units[name].format(value) for name, value in place.emulated.items()]
    title = {"s3": "object store", "nfs": "NFS", "ssh": "sshfs", "weed": "SeaweedFS mount"}[place.kind]
    where = f"{title} at {urlsplit(place.url).netloc}" if place.url else f"own {title}"
    where += f", EMULATED {', '.join(emulated)}" if emulated else ""
    return f"copied from {where}" if place.copies else where


def caveats(cells: Iterable[CellSummary]) -> list[str]:
    noted: dict[str, None] = {}
    for cell in cells:
        if origin := origin_words(cell):
            noted[origin] = None
        for clause in (resize_clause(cell.fact("store_provenance_note") or ""), _served_clause(cell)):
            if clause:
                noted[f"RESIZED images: {clause}"] = None
        if cell.cell.tier is not None:
            noted[f"EMULATED storage: reads limited as by {cell.cell.tier}"] = None
        if skipped := cell.fact("store_skipped_files"):
            noted[f"SKIPPED files: {number_of(int(skipped), 'unreadable file')} left out"] = None
        if place := next((row.record.place for row in cell.rows if row.record.place), None):
            emulated = ", not the network of a data centre" if place.title != place.server else ""
            achieved = f"; {place.achieved}" if place.achieved else ""
            noted[f"SERVED BY {place.title}{emulated}{achieved}"] = None
        if cell.held_elsewhere:
            noted[f"HELD ELSEWHERE: {backend_label(cell.backend)} read fewer bytes than it served"] = None
    return list(noted)


def origin_words(cell: CellSummary) -> str:
    """Return the difference of a cell's images from those of the dataset, or ""."""
    origin = cell.fact("store_origin") or ("synthetic" if cell.cell.data.synthetic else "real")
    if origin == "derived":
        share = percent(cell.fact("store_derived_frac"))
        return f"DERIVED images: {share} are crops, flips and brightness changes"
    return "SYNTHETIC images, a stand-in" if origin == "synthetic" else ""


def _served_clause(cell: CellSummary) -> str:
    if cell.cell.backend.codec != ORIGINAL:
        return ""
    height, width, *_ = map(int, str(cell.fact("store_image_shape") or "0x0").split("x"))
    return served_note((height, width), cell.cell.data.image_size or MODEL_CROPS.get(cell.cell.model))


def not_held(cells: Iterable[CellSummary]) -> list[str]:
    return [f"{backend_label(cell.backend)}, {held_words(cell)}." for cell in cells if cell.not_held]


def held_words(cell: CellSummary) -> str:
    """Return the number of replicates that held a cell's state, and the reason of the others; "" if all did."""
    if not cell.not_held:
        return ""
    share = f"{len(cell.sound)} of {number_of(len(cell.replicates), 'replicate')} held"
    reason = next(iter(cell.not_held.values()))
    return (
        f"{state_label(cell)}: {'no rate: ' * cell.too_few}{share}; {len(cell.not_held)} left out: {reason}"
    )


def mark(cell: CellSummary) -> str:
    """Return the reason why a cell must not be read like the others, or ""."""
    if cell.failure:
        return f"FAILED: {cell.failure}"
    if cell.invalid:
        return f"INVALID: {cell.invalid}"
    if cell.not_held:
        return held_words(cell)
    if cell.cell.cache != CacheState.ANY and any(
        not row.record.cache or row.record.cache.verdict is not CacheVerdict.VERIFIED for row in cell.usable
    ):
        return "cache state not verified"
    moving, of = cell.unsteady_replicates
    return f"{moving} of {number_of(of, 'replicate')} not steady" if moving else ""


def verdict_words(ratio: Ratio | None, cell: CellSummary, base: CellSummary) -> str:
    if ratio is None:
        return "not compared"
    if ratio.verdict is not Verdict.UNDECIDED:
        return str(ratio.verdict)
    reason = cell.doubt or base.doubt or ("at most" if cell.at_most or base.at_most else "")
    return f"undecided ({reason})" if reason else "undecided"


def number(value: float | None, digits: int = 3) -> str:
    """Return a figure to some significant digits, without an exponent: "1,230", "0.0123"."""
    if value is None:
        return ""
    if value == 0:
        return "0"
    if not math.isfinite(value):
        return str(value)
    decimals = digits - 1 - int(f"{value:.{digits - 1}e}".partition("e")[2])
    return f"{round(value, decimals):,.{max(decimals, 0)}f}"


def with_interval(figure: Estimate | Ratio | None) -> str:
    """Return "3.10 [2.91, 3.32]"; the figure alone without an interval, or with that of two rounds."""
    if figure is None or figure.mid is None:
        return ""
    if figure.low is None or figure.high is None or (isinstance(figure, Ratio) and figure.rounds < 3):
        return number(figure.mid)
    return f"{number(figure.mid)} [{number(figure.low)}, {number(figure.high)}]"


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
    for limit, factor, unit in ((1e-6, 1e9, "ns"), (1e-3, 1e6, "µs"), (1.0, 1e3, "ms"), (600.0, 1.0, "s")):
        if abs(seconds) < limit:
            return f"{number(seconds * factor)} {unit}"
    return f"{number(seconds / 60)} min"


def percent(value: float | None) -> str:
    """Return a share in percent, with one decimal below 10%; zero has no sign."""
    if value is None:
        return ""
    text = f"{value:.0%}" if abs(value) >= 0.0995 or value == 0 else f"{value:.1%}"
    return text.replace("-0.0%", "0.0%")


def rate_words(cell: CellSummary, shown: Callable[[Estimate], str] = lambda rate: number(rate.mid)) -> str:
    """Return a cell's rate as text, or in a few words why it has none."""
    rate = cell.interval("samples_per_s")
    if rate is not None:
        return f"at most {shown(rate)}" if cell.at_most else shown(rate)
    if not cell.usable:
        return "failed" if cell.failure else "no rate"
    return "not steady" if cell.whole_only else "too short"
