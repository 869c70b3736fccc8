"""A run that names no backend: what the samples and the machine are, and which stores, states and lengths follow.

How long a round takes is not predicted: the first rounds are timed, and as many follow as fit into `BUDGET`.
"""

import dataclasses
import math
import shutil
import time
import timeit
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import psutil

from storebench.codecs.decoders import DECODERS, DEFAULT_DECODER
from storebench.codecs.decoders import is_installed as is_decoder_installed
from storebench.datasets import DatasetSpec, open_dataset
from storebench.datasets.base import LEAST_IMAGE_SIZE
from storebench.datasets.files import Originals
from storebench.datasets.images import JPEG, SIDE, probed_headers
from storebench.datasets.listing import listings_in
from storebench.errors import StorebenchError, UsageError
from storebench.filesystem import nearest_folder
from storebench.formats.registry import is_installed, parse_backend
from storebench.probes.cgroup import memory_limit_bytes
from storebench.probes.machine import IN_MEMORY, mount_of, usable_cores
from storebench.record.steps import PREFETCHED_MOST_FRAC
from storebench.run.about import Whole
from storebench.run.matrix import NETWORK_SIDE
from storebench.settings.backend import STREAM
from storebench.settings.loop_fields import NO_MODEL
from storebench.settings.words import CacheState, ComputeKind
from storebench.stores.sample_costs import sample_costs
from storebench.system.progress import Progress, silent
from storebench.units import format_duration, number_of, rounded_bytes

# Name of the scenario.
NAME = "first"

# Rounds, and the time for converting and for them, so that the answer comes after about four minutes.
MOST_ROUNDS, BUDGET = 10, "225 s"

# Most seconds for decoding what is converted or for reading a container once, and for timing a part of either.
CONVERT_S, LOOK_S = 45.0, 0.5

# With fewer, a batch and an epoch are too short to be timed; of more than the second, a part is measured.
FEWEST_SAMPLES, ENOUGH_SAMPLES = 64, 2_000

# Most samples that are measured, if they are small, and their decoded bytes.
MOST_SAMPLES, WANTED_BYTES = 20_000, 256 << 20

# A smaller store is read ahead within a few steps, so it has no cold rate.
COLD_LEAST_BYTES = 64 << 20

# Share of memory that the page cache may take beside a training process.
FITS_FRAC = 0.7

# JPEGs of the smallest squares from which a network still crops its own.
SHRUNK = "lmdb+jpeg"

# Samples per batch if no number was asked for, and of images so slow that the fewest steps would last too long.
BATCH, LEAST_BATCH, LONGEST_S = 64, 8, 15.0

# Wanted length of the timed part of the slowest backend.
TIMED_S, FEWEST_STEPS, MOST_STEPS, WARMUP_STEPS = 2.0, 6, 200, 2

# Batches of an epoch per worker, at least: at the end of an epoch, workers have nothing left to do.
WAVES, MOST_WORKERS = 3, 8

# The emulated accelerator beside which the handoff is measured takes this many times as long as a batch, at least.
KEEP_UP, LEAST_PAUSE_S = 2.0, 0.01

# Times that raw pixels are copied between the page cache and the loop, at least.
COPIES = 6

# Batches that the DataLoader keeps on their way for each worker.
AHEAD = 2

# Bytes that are read at once where reading is timed.
_READ_BYTES = 4 << 20

# States in which an epoch may serve the samples more than once.
_SEVERAL_PASSES = (CacheState.WARM, CacheState.ANY)


@dataclass(frozen=True, kw_only=True)
class Samples:
    """The samples of a dataset; `are_files` if they are image files, which can be stored as they are."""

    count: int
    are_files: bool
    side: int | None
    """Side of the squares that every store serves; None for images of one size, which keep it."""
    raw_bytes: int
    file_bytes: float  # Mean bytes of the image files; of a few PNGs where the samples are no files.
    read_s: float  # Seconds in one thread to make a sample of such a file.
    copy_s: float = 0.0  # Seconds to bring a sample of raw pixels to the loop.
    kind: str = ""
    """Format of the image files, such as "JPEG"; "" for several, and where the samples are no files."""
    container: str = ""
    """The backend that reads them where they are; "" if they are in no container, or cannot be."""
    container_note: str = ""  # Why a container cannot be read where it is.
    container_bytes: int = 0
    container_s: float = 0.0  # Seconds to read its files once.
    short_side: int = 0
    """Shorter side of the image files, the median of a few; 0 where the samples are no files."""

    @property
    def crop_side(self) -> int:
        """Side of squares from which a network still crops its own: 256 pixels for 224."""
        return (self.side or 0) * 8 // 7

    @property
    def total_bytes(self) -> int:
        return round(self.count * self.file_bytes)


@dataclass(frozen=True, kw_only=True)
class Machine:
    """The cores and the memory that this process may use, and the file system of the stores."""

    cores: int
    memory_bytes: int
    free_bytes: int
    evicts: bool  # Whether that file system keeps files outside memory, so that there is a cold state.
    decoders: tuple[str, ...] = ()  # Installed decoders beside the default.

    def fits(self, size: float) -> bool:
        """Whether this many bytes stay in the page cache."""
        return size <= FITS_FRAC * self.memory_bytes


def look_at(spec: DatasetSpec, stores: Path, progress: Progress = silent) -> Samples:
    """Return the facts about samples that the choice depends on; refuse fewer than `FEWEST_SAMPLES`."""
    dataset = open_dataset(spec, listings=listings_in(stores), progress=progress)
    if len(dataset) < FEWEST_SAMPLES:
        verb = "is" if len(dataset) == 1 else "are"
        raise UsageError(
            f"{number_of(len(dataset), 'image')} {verb} too few to time anything; at least {FEWEST_SAMPLES} are needed",
            where=spec.name,
            hint=f"Name a folder with more images, or repeat these with --size {ENOUGH_SAMPLES}.",
        )
    files, side = dataset.original_info, spec.image_size
    height, width, _ = dataset.info.image_shape if files is None else files.image_shape
    headers = (
        () if files is None else probed_headers(lambda index, _: dataset.original(index)[0], len(dataset))
    )
    kinds = {header.kind for header in headers}
    shorter = int(median(min(header.width, header.height) for header in headers)) if headers else 0
    if side is None and files is not None and (height != width or height >= SIDE):
        # That of a network, or of the images where they are smaller; small squares of one size keep theirs.
        side = max(LEAST_IMAGE_SIZE, min(NETWORK_SIDE, shorter))
    container, container_note = "", ""
    files_in_place: tuple[Path, ...] = ()
    if spec.container is not None:
        from storebench.formats.peers.container import backend_in_place  # imports large libraries

        try:
            container, files_in_place = backend_in_place(
                dataset if files is None else Originals(dataset),
                may_stream=spec.size is None and not spec.skip_unreadable,
            )
        except StorebenchError as error:
            container_note = f"the container as it is is left out: {error.what}"
    base = parse_backend("files+png" if files is None else "files+original")
    costs = sample_costs(dataset, base, side, limit_s=LOOK_S)
    raw_bytes = dataset.info.image_bytes if side is None else side * side * 3
    copy = np.ones(raw_bytes, np.uint8).copy
    return Samples(
        count=len(dataset),
        are_files=files is not None,
        side=side,
        raw_bytes=raw_bytes,
        file_bytes=costs.payload_bytes,
        read_s=costs.decode_s,
        copy_s=COPIES * min(timeit.repeat(copy, number=10, repeat=5)) / 10,
        kind=kinds.pop() if len(kinds) == 1 else "",
        container=container,
        container_note=container_note,
        container_bytes=sum(path.stat().st_size for path in files_in_place),
        container_s=_reading_s(files_in_place),
        short_side=shorter,
    )


def _reading_s(files: Sequence[Path]) -> float:
    """Return the seconds that files take to be read once, from a part of the largest, beyond its header."""
    if not files:
        return 0.0
    sizes = {path: path.stat().st_size for path in files}
    largest = max(files, key=sizes.__getitem__)
    with largest.open("rb", buffering=0) as file:
        start = file.seek(sizes[largest] // 2)
        began = time.perf_counter()
        while file.read(_READ_BYTES) and time.perf_counter() - began < LOOK_S:
            pass
        took_s = time.perf_counter() - began
        return took_s * sum(sizes.values()) / max(1, file.tell() - start)


def machine_for(stores: Path) -> Machine:
    """Return the facts about this machine that the choice depends on."""
    folder = nearest_folder(stores)
    able = (
        name
        for name, decoder in DECODERS.items()
        if name != DEFAULT_DECODER and is_decoder_installed(decoder)
    )
    return Machine(
        cores=usable_cores(),
        memory_bytes=min(filter(None, (psutil.virtual_memory().total, memory_limit_bytes()))),
        free_bytes=shutil.disk_usage(folder).free,
        evicts=mount_of(folder).fstype not in IN_MEMORY,
        decoders=tuple(able),
    )


@dataclass(frozen=True, kw_only=True)
class FirstRun:
    """What a run measures: the table of its scenario, not validated yet, and the whole dataset."""

    scenario: dict[str, Any]
    notes: tuple[str, ...]  # Clauses for the user: what is left out, and why.
    whole: Whole


def asked_matrix(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of a matrix that were asked for; nothing is computed unless a network or its training was."""
    trains = asked.get("model", NO_MODEL) != NO_MODEL
    computes = asked.get("compute", [str(ComputeKind.REAL if trains else ComputeKind.NONE)])
    if str(ComputeKind.REAL) in computes:
        return dict(asked)
    return {"model": NO_MODEL, "compute": computes} | dict(asked)


def choose(
    samples: Samples, machine: Machine, asked: Mapping[str, Any], rounds: int | None = None
) -> FirstRun:
    """Return the run for these samples; `asked` (keys of a matrix) and `rounds` replace what is chosen."""
    is_divided = samples.container.endswith(STREAM) and max(asked.get("workers", [1])) > 1
    if is_divided:
        samples = dataclasses.replace(samples, container=samples.container.removesuffix(f":{STREAM}"))
    no_raw, not_in_place = _raw_refusal(samples, machine), _in_place_refusal(samples, machine)
    stores = _stores(samples, machine, raw=not no_raw)
    backends = [samples.container, *stores] if samples.container and not not_in_place else stores
    decodings = 2 + sum(name == SHRUNK or not _is_encoded(name) for name in backends)
    in_time = int(CONVERT_S * machine.cores / (decodings * samples.read_s))
    wanted = min(max(ENOUGH_SAMPLES, WANTED_BYTES // samples.raw_bytes), MOST_SAMPLES)
    count = min(samples.count, wanted, max(FEWEST_SAMPLES, in_time))
    size, no_cold = round(count * samples.file_bytes), ""
    if "cache" not in asked and not machine.evicts:
        no_cold = "cold is left out: the stores' file system is in memory"
    elif "cache" not in asked and size < COLD_LEAST_BYTES:
        no_cold = (
            f"cold is left out: read-ahead would cache all {rounded_bytes(size)} within a few steps; "
            f"it needs {rounded_bytes(COLD_LEAST_BYTES)} of images"
        )
    chosen = [CacheState.WARM, *([] if no_cold else [CacheState.COLD])]
    states = [CacheState(word) for word in asked.get("cache", chosen)]
    streams = any(name.endswith(STREAM) for name in backends)
    workers = list(asked.get("workers", [1 if streams else min(machine.cores, MOST_WORKERS)]))
    lengths = _Lengths(samples, count, workers, machine.cores, asked)
    part = {"limit": count} if count < samples.count else {}
    matrices: list[dict[str, Any]] = []
    for state in states:
        side = {} if samples.side is None else {"image_size": samples.side}
        matrix = {"threads": 1, "workers": workers, "batch_size": [lengths.batch], **lengths.of_epoch(state)}
        matrix |= {**asked, "cache": [str(state)], **part}
        matrices.append(matrix | side | {"backends": [name for name in backends if name != SHRUNK]})
        # Small squares are read ahead within a few steps.
        if SHRUNK in backends and ("cache" in asked or state is not CacheState.COLD):
            matrices.append(matrix | {"backends": [SHRUNK], "image_size": samples.crop_side})
    only_loads = [asked.get(key) for key in ("model", "compute")] == [NO_MODEL, [ComputeKind.NONE]]
    if only_loads and states[0] in _SEVERAL_PASSES and any(workers):
        # One store measures a loader's handoff for all: raw pixels where there are any.
        handing = next((name for name in stores if not _is_encoded(name)), stores[1])
        matrices.append(
            {key: value for key, value in matrices[0].items() if key != "passes"}
            | lengths.of_handoff(is_encoded=_is_encoded(handing))
            | {"workers": [number for number in workers if number], "backends": [handing]}
        )
    rule = {"replicates": MOST_ROUNDS, "budget": BUDGET} if rounds is None else {"replicates": rounds}
    which = (
        "the first ones" if samples.container or samples.container_note else "spread evenly over all of them"
    )
    notes = [
        f"{count:,} of the {samples.count:,} images are measured, {which}" if part else "",
        not_in_place,
        "the container is read in any order: one stream has at most one worker" if is_divided else "",
        no_raw,
        "no other decoder of JPEG is installed: pip install simplejpeg to have it measured"
        if samples.kind == JPEG and not any(JPEG in DECODERS[name].kinds for name in machine.decoders)
        else "",
        no_cold,
    ]
    return FirstRun(
        scenario={
            "name": NAME,
            "question": "Is it worth converting these images?",
            "test_limit": 0,
            "repeat_disturbed": True,
            **rule,
            "matrix": matrices,
        },
        notes=tuple(filter(None, notes)),
        whole=Whole(
            count=samples.count,
            total_bytes=samples.total_bytes,
            memory_bytes=machine.memory_bytes,
            fits=machine.fits(samples.total_bytes),
        ),
    )


def _stores(samples: Samples, machine: Machine, *, raw: bool) -> list[str]:
    """Return the choices to measure, the most important ones first: files, the same files in LMDB, raw pixels, ..."""
    codec = "original" if samples.are_files else "png"

    def reader(size: float) -> str:
        return "" if machine.fits(size) else ":direct"

    stores = [codec, f"lmdb+{codec}{reader(samples.total_bytes)}"]
    stores += [f"lmdb{reader(samples.count * samples.raw_bytes)}"] if raw else []
    stores += [SHRUNK] if 0 < samples.crop_side < samples.short_side else []
    # The fastest decoder here, where it is faster than the default.
    able = next((name for name in machine.decoders if samples.kind in DECODERS[name].kinds), "")
    halved = samples.kind == JPEG and 0 < 2 * samples.crop_side <= samples.short_side
    if able or halved:
        stores.append("original" + (f":{able}" if able else "") + ("?scale=dct" if halved else ""))
    return stores if len(stores) > 2 and is_installed("lmdb") else [*stores, f"hdf5+{codec}"]


def _raw_refusal(samples: Samples, machine: Machine) -> str:
    """Return the reason not to measure raw pixels; "" if they fit on the disk, and into memory if the files do."""
    whole = samples.count * samples.raw_bytes
    named = f"raw pixels are left out: all images would take {rounded_bytes(whole)}"
    if whole > machine.free_bytes:
        return f"{named}, and {rounded_bytes(machine.free_bytes)} are free"
    if machine.fits(samples.total_bytes) and not machine.fits(whole):
        memory = rounded_bytes(machine.memory_bytes)
        return f"{named}, more than memory holds beside training ({memory} in all)"
    return ""


def _in_place_refusal(samples: Samples, machine: Machine) -> str:
    """Return the reason why a container is not measured as it is; "" if it is, and for other datasets."""
    fits, reading_s = machine.fits(samples.container_bytes), samples.container_s
    if samples.container_note or (fits and reading_s <= CONVERT_S):
        return samples.container_note
    slow, large = (
        f"take {format_duration(reading_s)} to be read",
        "are more than memory holds beside training",
    )
    return (
        f"the container as it is is left out: its {rounded_bytes(samples.container_bytes)} {slow if fits else large}; "
        f"name the backend {samples.container} to measure it"
    )


def _is_encoded(backend: str) -> bool:
    """Whether a store holds image files, which producers decode."""
    return (
        "original" in backend or "png" in backend or backend in (SHRUNK, "container", f"container:{STREAM}")
    )


class _Lengths:
    """Batches, and steps of an epoch: enough for a rate, and short enough for several rounds."""

    def __init__(
        self, samples: Samples, count: int, workers: Sequence[int], cores: int, asked: Mapping[str, Any]
    ) -> None:
        self._samples, self._asked = samples, asked
        # Without workers, the loop itself decodes; the fewest are the slowest.
        self._file_s = samples.read_s / max(1, min(cores, *workers)) + samples.copy_s
        # Batches that the most workers have begun beyond the one that the loop asks for.
        self._in_flight = AHEAD * max(workers)
        self._fewest = max(FEWEST_STEPS, WAVES * max(workers)) + WARMUP_STEPS
        is_slow = self._fewest * BATCH * self._file_s > LONGEST_S
        self.batch = int(max(asked.get("batch_size", [LEAST_BATCH if is_slow else BATCH])))
        self._most = math.ceil(count / self.batch)  # serve every sample once

    def of_epoch(self, state: CacheState) -> dict[str, Any]:
        """Return the keys of a matrix for the length of an epoch in a state."""
        if "max_steps" in self._asked:
            return {}
        batch_s = self._file_s * self.batch
        wanted = min(MOST_STEPS, math.ceil(TIMED_S / batch_s)) + WARMUP_STEPS
        if (steady := self._with_rate(WARMUP_STEPS)) * batch_s <= 2 * TIMED_S:
            wanted = max(wanted, steady + WARMUP_STEPS)
        steps = max(self._fewest, wanted)
        if state not in _SEVERAL_PASSES:
            return {"max_steps": min(steps, self._most)}
        return self._of_steps(steps, WARMUP_STEPS)

    def of_handoff(self, *, is_encoded: bool) -> dict[str, Any]:
        """Return the keys of a matrix beside an accelerator so slow that a batch is ready after the first ones."""
        batch_s = self.batch * (self._file_s if is_encoded else self._samples.copy_s)
        pause_ms = math.ceil(1000 * max(LEAST_PAUSE_S, KEEP_UP * batch_s))
        keys: dict[str, Any] = {"compute": [f"{ComputeKind.EMULATED}:{pause_ms}"]}
        if "max_steps" in self._asked:
            return keys
        return keys | self._of_steps(self._with_rate(self._in_flight), self._in_flight)

    def _of_steps(self, steps: int, warmup_steps: int) -> dict[str, Any]:
        """Return the keys of a matrix for at least so many steps, in several passes where one has fewer."""
        keys = {"max_steps": min(steps, self._most), "warmup_steps": warmup_steps}
        return keys | ({"passes": math.ceil(steps / self._most)} if steps > self._most else {})

    def _with_rate(self, warmup_steps: int) -> int:
        """Return the fewest steps of which enough are timed after the batches that were begun during the warm-up."""
        return warmup_steps + self._in_flight + math.ceil(self._in_flight / PREFETCHED_MOST_FRAC) + 1
