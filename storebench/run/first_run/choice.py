"""Which backends, states and lengths a run measures that names no backend: a pure function of samples and machine.

How long a round takes is not predicted: the first rounds are timed, and as many follow as fit into `BUDGET`.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from storebench.codecs.decoders import DECODERS
from storebench.datasets.images import JPEG
from storebench.formats.registry import is_installed
from storebench.record.steps import PREFETCHED_MOST_FRAC
from storebench.run.about import CHOSEN_BACKENDS, Whole
from storebench.run.first_run.facts import ENOUGH_SAMPLES, FEWEST_SAMPLES, SHRUNK, Machine, Samples
from storebench.settings.backend import STREAM
from storebench.settings.loop import NO_MODEL
from storebench.settings.words import CacheState, ComputeKind
from storebench.units import rounded_bytes

# Name of the scenario, by which a run is known to have chosen its backends itself.
NAME = CHOSEN_BACKENDS

# Rounds, and the time for converting and for them, so that the answer comes after about four minutes.
MOST_ROUNDS, BUDGET = 10, "225 s"

# Most seconds for decoding what is converted.
CONVERT_S = 45.0

# Most samples that are measured, if they are small.
MOST_SAMPLES = 20_000

# Decoded bytes of the measured samples, as far as their number allows.
WANTED_BYTES = 256 << 20

# A smaller store is read ahead within a few steps, so it has no cold rate.
COLD_LEAST_BYTES = 64 << 20

# A larger container would not be read as a whole in the time of the run.
IN_PLACE_MOST_BYTES = 16 << 30

# Samples per batch if no number was asked for; fewer than the first only for slow images.
BATCH, LEAST_BATCH = 64, 8

# Most seconds for the fewest steps of the slowest backend, unless a batch size was asked for.
LONGEST_S = 15.0

# Wanted length of the timed part of the slowest backend.
TIMED_S = 2.0

# Batches of an epoch per worker, at least: at the end of an epoch, workers have nothing left to do.
WAVES = 3

FEWEST_STEPS, MOST_STEPS = 6, 200
WARMUP_STEPS = 2

# Shortest step of the emulated accelerator beside which the handoff is measured.
LEAST_PAUSE_S = 0.01

# Its step takes this many times as long as producers are expected to need for a batch, so that a batch is ready.
KEEP_UP = 2.0

# Times that raw pixels are copied between the page cache and the loop, at least.
COPIES = 6

# Batches that the DataLoader keeps on their way for each worker.
AHEAD = 2

# A reader that keeps decoded pixels is found by comparing passes.
FEWEST_PASSES = 2

FEWEST_STORES = 3
MOST_WORKERS = 8


@dataclass(frozen=True, kw_only=True)
class FirstRun:
    """What a run measures: the table of its scenario, not validated yet, and the whole dataset."""

    scenario: dict[str, Any]
    notes: tuple[str, ...]
    """Clauses for the user: what is left out, and why."""
    whole: Whole


def asked_matrix(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of a matrix that were asked for; nothing is computed unless a network or its training was."""
    trains = asked.get("model", NO_MODEL) != NO_MODEL
    computes = asked.get("compute", [str(ComputeKind.REAL if trains else ComputeKind.NONE)])
    if str(ComputeKind.REAL) in computes:
        return dict(asked)
    return {"model": NO_MODEL, "compute": computes} | dict(asked)


def choose(
    samples: Samples, machine: Machine, matrix: Mapping[str, Any], rounds: int | None = None
) -> FirstRun:
    """Return the run for these samples; `matrix` and `rounds` replace what is chosen."""
    is_divided = samples.container.endswith(STREAM) and max(matrix.get("workers", [1])) > 1
    if is_divided:
        samples = replace(samples, container=samples.container.removesuffix(f":{STREAM}"))
    no_raw, not_in_place = _raw_refusal(samples, machine), _in_place_refusal(samples, machine)
    backends = _backends(samples, machine, raw=not no_raw)
    if samples.container and not not_in_place:
        backends = [samples.container, *backends]
    decodings = 2 + sum(name == SHRUNK or not _is_encoded(name) for name in backends)
    in_time = int(CONVERT_S * machine.cores / (decodings * samples.read_s))
    wanted = min(max(ENOUGH_SAMPLES, WANTED_BYTES // samples.raw_bytes), MOST_SAMPLES)
    count = min(samples.count, wanted, max(FEWEST_SAMPLES, in_time))
    states = [CacheState(word) for word in matrix.get("cache", ())]
    size, no_cold = round(count * samples.file_bytes), ""
    if not states and not machine.evicts:
        no_cold = "cold is left out: the stores' file system is in memory"
    elif not states and size < COLD_LEAST_BYTES:
        no_cold = (
            f"cold is left out: read-ahead would cache all {rounded_bytes(size)} within a few steps; "
            f"it needs {rounded_bytes(COLD_LEAST_BYTES)} of images"
        )
    chosen = _Choice(
        samples=samples,
        machine=machine,
        count=count,
        states=states or [CacheState.WARM, *([] if no_cold else [CacheState.COLD])],
        backends=backends,
        rounds=rounds,
        asked=matrix,
    )
    in_container = samples.container or samples.container_note
    which = "the first ones" if in_container else "spread evenly over all of them"
    notes = [
        f"{count:,} of the {samples.count:,} images are measured, {which}" if count < samples.count else "",
        not_in_place,
        "the container is read in any order: one stream has at most one worker" if is_divided else "",
        no_raw,
        "no other decoder of JPEG is installed: pip install simplejpeg to have it measured"
        if samples.kind == JPEG and not any(JPEG in DECODERS[name].kinds for name in machine.decoders)
        else "",
        no_cold,
    ]
    return FirstRun(
        scenario=chosen.scenario(),
        notes=tuple(filter(None, notes)),
        whole=Whole(
            count=samples.count,
            total_bytes=samples.total_bytes,
            memory_bytes=machine.memory_bytes,
            fits=machine.fits(samples.total_bytes),
        ),
    )


def _backends(samples: Samples, machine: Machine, *, raw: bool) -> list[str]:
    """Return the choices to measure, the most important ones first: files, the same files in LMDB, raw pixels, ..."""
    codec = "original" if samples.are_files else "png"
    raw_bytes = samples.count * samples.raw_bytes
    backends = [
        codec,
        f"lmdb+{codec}{_reader(machine, samples.total_bytes)}",
        *([f"lmdb{_reader(machine, raw_bytes)}"] if raw else []),
        *([SHRUNK] if samples.shrunk_bytes else []),
        *filter(None, [_decoding(samples, machine)]),
    ]
    enough = len(backends) >= FEWEST_STORES and is_installed("lmdb")
    return backends if enough else [*backends, f"hdf5+{codec}"]


def _reader(machine: Machine, size: float) -> str:
    """Return the reader of an LMDB store: planned reads where the page cache cannot hold it."""
    return "" if machine.fits(size) else ":direct"


def _decoding(samples: Samples, machine: Machine) -> str:
    """Return the backend that reads the files by the fastest decoder here; "" if none is faster than the default."""
    able = next((name for name in machine.decoders if samples.kind in DECODERS[name].kinds), "")
    halved = samples.kind == JPEG and 0 < 2 * samples.crop_side <= samples.short_side
    if not able and not halved:
        return ""
    return "original" + (f":{able}" if able else "") + ("?scale=dct" if halved else "")


def _raw_refusal(samples: Samples, machine: Machine) -> str:
    """Return the reason not to measure raw pixels; "" if they fit on the disk, and into memory if the files do."""
    whole = samples.count * samples.raw_bytes
    named = f"raw pixels are left out: all images would take {rounded_bytes(whole)}"
    if whole > machine.free_bytes:
        return f"{named}, and {rounded_bytes(machine.free_bytes)} are free"
    if machine.fits(samples.total_bytes) and not machine.fits(whole):
        return (
            f"{named}, more than memory holds beside training ({rounded_bytes(machine.memory_bytes)} in all)"
        )
    return ""


def _in_place_refusal(samples: Samples, machine: Machine) -> str:
    """Return the reason why a container is not measured as it is; "" if it is, and for other datasets."""
    if samples.container_note:
        return samples.container_note
    nbytes = samples.container_bytes
    if not machine.fits(nbytes) or nbytes > IN_PLACE_MOST_BYTES:
        return (
            f"the container as it is is left out: its files have {rounded_bytes(nbytes)}; "
            f"name the backend {samples.container} to measure it"
        )
    return ""


@dataclass(frozen=True, kw_only=True)
class _Choice:
    """What is measured, beside what was asked for."""

    samples: Samples
    machine: Machine
    count: int
    states: Sequence[CacheState]
    backends: Sequence[str]
    rounds: int | None
    asked: Mapping[str, Any]

    @property
    def workers(self) -> list[int]:
        """Numbers of producers: those that were asked for, or one per core; one beside a stream."""
        streams = any(name.endswith(STREAM) for name in self.backends)
        return list(self.asked.get("workers", [1 if streams else min(self.machine.cores, MOST_WORKERS)]))

    @property
    def measures_handoff(self) -> bool:
        """Whether a loader's handoff is measured beside an emulated accelerator; one store measures it for all."""
        only_loads = [self.asked.get(key) for key in ("model", "compute")] == [NO_MODEL, [ComputeKind.NONE]]
        return only_loads and self.states[0] in _SEVERAL_PASSES and any(self.workers)

    @property
    def handing_store(self) -> str:
        """The store of those cells: raw pixels where there are any."""
        stores = [name for name in self.backends if name != self.samples.container]
        return next((name for name in stores if not _is_encoded(name)), stores[1])

    @property
    def in_flight(self) -> int:
        """Batches that the most workers have begun beyond the one that the loop asks for."""
        return AHEAD * max(self.workers)

    @property
    def handing_steps(self) -> int:
        """Steps of an epoch of those cells, of which the first find no batch ready."""
        return _steps_with_rate(self.in_flight, self.in_flight)

    @property
    def pause_s(self) -> float:
        """Seconds that the emulated accelerator takes per batch, in whole milliseconds."""
        batch_s = self.batch * (self.slow_s if _is_encoded(self.handing_store) else self.fast_s)
        return math.ceil(1000 * max(LEAST_PAUSE_S, KEEP_UP * batch_s)) / 1000

    @property
    def slow_s(self) -> float:
        """Seconds per sample of an image file, with the fewest workers."""
        # Without workers, the loop itself decodes.
        return self.samples.read_s / max(1, min(self.machine.cores, *self.workers)) + self.fast_s

    @property
    def fast_s(self) -> float:
        """Seconds per sample of raw pixels."""
        return COPIES * self.samples.raw_bytes / self.machine.copied_bytes_per_s

    @property
    def batch(self) -> int:
        """Samples per batch, the most that were asked for."""
        if "batch_size" in self.asked:
            return int(max(self.asked["batch_size"]))
        batch = BATCH
        while batch > LEAST_BATCH and self.fewest_steps * batch * self.slow_s > LONGEST_S:
            batch //= 2
        return batch

    @property
    def fewest_steps(self) -> int:
        """Steps of an epoch, at least."""
        return max(FEWEST_STEPS, WAVES * max(self.workers)) + WARMUP_STEPS

    @property
    def steps(self) -> int:
        batch_s = self.slow_s * self.batch
        wanted = min(MOST_STEPS, math.ceil(TIMED_S / batch_s))
        steady = _steps_with_rate(WARMUP_STEPS, self.in_flight)
        if steady * batch_s <= 2 * TIMED_S:
            wanted = max(wanted, steady)
        return max(self.fewest_steps, wanted + WARMUP_STEPS)

    @property
    def most_steps(self) -> int:
        """Steps that serve every sample once."""
        return math.ceil(self.count / self.batch)

    @property
    def steps_per_pass(self) -> int:
        return min(self.most_steps, math.ceil(self.steps / FEWEST_PASSES))

    @property
    def passes(self) -> int:
        return math.ceil(self.steps / self.steps_per_pass)

    def stored_bytes(self, backend: str) -> float:
        """Return the bytes of a sample in a store."""
        if backend == SHRUNK:
            return self.samples.shrunk_bytes
        return self.samples.file_bytes if _is_encoded(backend) else self.samples.raw_bytes

    def measured_in(self, state: CacheState) -> list[str]:
        """Return the stores to measure in a state: those that are too small for a cold one only if it was asked for."""
        if state is not CacheState.COLD or "cache" in self.asked:
            return list(self.backends)
        return [name for name in self.backends if self.count * self.stored_bytes(name) >= COLD_LEAST_BYTES]

    def scenario(self) -> dict[str, Any]:
        """Return the table of the scenario, with what was asked for in place of what was chosen."""
        rule: dict[str, Any] = {"replicates": self.rounds}
        if self.rounds is None:
            rule = {"replicates": MOST_ROUNDS, "budget": BUDGET}
        return {
            "name": NAME,
            "question": "Is it worth converting these images?",
            "test_limit": 0,
            "repeat_disturbed": True,
            **rule,
            "matrix": [
                *map(self._matrix, self.states),
                *(
                    self._matrix(state) | {"backends": [SHRUNK], "image_size": self.samples.crop_side}
                    for state in self.states
                    if SHRUNK in self.measured_in(state)
                ),
                *([self._handing_matrix()] if self.measures_handoff else []),
            ],
        }

    def _matrix(self, state: CacheState) -> dict[str, Any]:
        chosen = {
            "threads": 1,
            "workers": self.workers,
            "batch_size": [self.batch],
            "backends": [name for name in self.measured_in(state) if name != SHRUNK],
        }
        part = {"limit": self.count} if self.count < self.samples.count else {}
        side = {} if self.samples.side is None else {"image_size": self.samples.side}
        length = {"max_steps": min(self.steps, self.most_steps)}
        if state in _SEVERAL_PASSES:
            length = {"max_steps": self.steps_per_pass, "warmup_steps": WARMUP_STEPS, "passes": self.passes}
        length = {} if "max_steps" in self.asked else length
        return chosen | length | dict(self.asked) | {"cache": [str(state)]} | side | part

    def _handing_matrix(self) -> dict[str, Any]:
        length = {"max_steps": min(self.handing_steps, self.most_steps), "warmup_steps": self.in_flight}
        if self.handing_steps > self.most_steps:
            length["passes"] = math.ceil(self.handing_steps / self.most_steps)
        return (
            {name: value for name, value in self._matrix(self.states[0]).items() if name != "passes"}
            | ({} if "max_steps" in self.asked else length)
            | {
                "compute": [f"{ComputeKind.EMULATED}:{round(1000 * self.pause_s)}"],
                "workers": [count for count in self.workers if count],
                "backends": [self.handing_store],
            }
        )


def _steps_with_rate(warmup_steps: int, in_flight: int) -> int:
    """Return the fewest steps of which enough are timed after the batches that were begun during the warm-up."""
    return warmup_steps + in_flight + math.ceil(in_flight / PREFETCHED_MOST_FRAC) + 1


def _is_encoded(backend: str) -> bool:
    """Whether a store holds image files, which producers decode."""
    return (
        "original" in backend or "png" in backend or backend in (SHRUNK, "container", f"container:{STREAM}")
    )


# States in which an epoch may serve the samples more than once.
_SEVERAL_PASSES = (CacheState.WARM, CacheState.ANY)
