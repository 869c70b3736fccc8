"""Record sets drawn at random, by a seed: what anybody may have measured, for tests of what a page says of it.

Each set has a leading trait, so that all traits occur equally often, and some others that are drawn. Rates vary from round
to round by a lognormal factor; whatever else a record holds follows from the planted times.
"""

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from storebench.formats.lmdb.direct import RUNGS
from storebench.results import Record, Status
from storebench.runs.conversions import CONVERSIONS_NAME
from tests.support.planted import ENVIRONMENT, make_conversion, make_record

TRAITS = (
    "undecided", "decided", "mixed", "equal", "one round", "failed", "synthetic", "two machines", "lossy", "loader only",
    "workers", "limited", "cold start", "conversions", "hidden", "few steps", "fed", "invalid", "emulated", "own images",
    "ladder", "only lossy", "two datasets",
)  # fmt: skip

_SPREADS = {
    "hidden": 0.01,
    "conversions": 0.03,
    "undecided": 0.6,
    "decided": 0.01,
    "equal": 0.002,
    "fed": 0.01,
}
"""Trait -> how much waits vary; the first one that a set has counts."""
_STORES = ("png", "hdf5", "lmdb", "leveldb", "files+raw", "lmdb+png", "lmdb:direct")
_LOSSY = ("jpeg", "lmdb+jpeg")
_LADDER = ("plain", "page", "map", "prov", "dio", "coal", "stag")
"""The rungs that are drawn; "lmm" counts the time of loading, which a planted record does not have."""

_LIMIT = {"cache": "limited", "memory_bytes": 1 << 27, "compute": "none", "model": "none"}
_CONVERTED = ("lmdb", "hdf5", "jpeg")

Setting = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class DrawnSet:
    """The records of one page.

    Attributes
    ----------
    number
        The seed.
    traits
        What is special about it.
    records
        All replicates of all cells.
    invalid
        The cells that do not validate.
    conversions
        Backend -> seconds of each measured conversion of PNG files into its store.
    """

    number: int
    traits: frozenset[str]
    records: tuple[Record, ...]
    invalid: frozenset[str]
    conversions: Mapping[str, Sequence[float]]

    def write(self, run: Path) -> None:
        """Write the conversions into a run's folder, and nothing else."""
        if self.conversions:
            run.mkdir(parents=True)
            made = (
                make_conversion(backend, replicate, seconds)
                for backend, found in self.conversions.items()
                for replicate, seconds in enumerate(found)
            )
            lines = (json.dumps(dataclasses.asdict(one)) + "\n" for one in made)
            (run / CONVERSIONS_NAME).write_text("".join(lines), encoding="utf-8")


def traits_of(number: int) -> frozenset[str]:
    """Return the traits of the set of a seed."""
    rng = np.random.default_rng((number, 1))
    others = rng.choice(TRAITS, size=int(rng.integers(0, 4)), replace=False)
    return frozenset({TRAITS[number % len(TRAITS)], *map(str, others)})


def drawn_set(number: int) -> DrawnSet:
    """Return the record set of a seed."""
    rng, traits = np.random.default_rng(number), traits_of(number)
    backends, settings = _backends(traits, rng), list(_settings(traits, rng))
    if "two machines" in traits:
        settings += [
            setting | {"environment": dataclasses.replace(ENVIRONMENT, key="e2")} for setting in settings
        ]
    records = [one for setting in settings for one in _cells(setting, backends, traits, rng)]
    if "ladder" in traits:
        records += list(_ladder(traits, rng))
    conversions = _conversions(rng) if traits & {"conversions", "hidden"} else {}
    names = sorted({record.cell.cell_id for record in records})
    wrong = {str(rng.choice(names))} if "invalid" in traits else set()
    return DrawnSet(
        number=number,
        traits=traits,
        records=tuple(records),
        invalid=frozenset(wrong),
        conversions=conversions,
    )


def _backends(traits: frozenset[str], rng: np.random.Generator) -> list[str]:
    if "only lossy" in traits:
        return ["png", *_LOSSY] if rng.random() < 0.5 else list(_LOSSY)
    count = int(rng.integers(2, 5))
    found = [str(name) for name in rng.choice(_STORES, size=count, replace=False)]
    found += [name for name in ("png", "lmdb") if name not in found and rng.random() < 0.7]
    found += ["png"] if traits & {"conversions", "hidden"} and "png" not in found else []
    found += ["lmdb"] if traits & {"conversions", "hidden"} and "lmdb" not in found else []
    found += list(_LOSSY) if "lossy" in traits else []
    return found + (["memory:native"] if rng.random() < 0.3 else [])


def _settings(traits: frozenset[str], rng: np.random.Generator) -> Iterator[Setting]:
    """Yield the settings of a page: warm, of any state or both, trained, and what its traits add."""
    states = [["warm"], ["any"], ["warm", "any"]][int(rng.integers(0, 3))]
    states = [*states, "warm"] if traits & {"conversions", "hidden"} and "warm" not in states else states
    states = [*states, "cold"] if "cold start" in traits and "cold" not in states else states
    dataset: Setting = {"dataset": "folder:/photographs/mine", "size": None} if "own images" in traits else {}
    if "two datasets" in traits:
        yield {"dataset": "mnist", "size": None, "model": "lenet", "cache": "warm"}
    for state in states:
        base = dataset | {"cache": state}
        if not {"loader only", "limited"} & traits or rng.random() < 0.5:
            yield base
            if "workers" in traits:
                yield base | {"workers": 2}
        if traits & {"loader only", "hidden"}:
            yield base | {"compute": "none"}
            yield base | {"compute": "none", "model": "none"}
        if "emulated" in traits:
            yield base | {"compute": "emulated:20"}
    if traits & {"limited", "hidden"}:
        yield dataset | _LIMIT | {"readahead_kib": 128}
        yield dataset | _LIMIT | {"readahead_kib": 8192}


def _cells(
    setting: Setting, backends: Sequence[str], traits: frozenset[str], rng: np.random.Generator
) -> Iterator[Record]:
    """Yield the replicates of every backend under one setting, and of the null cell beside training."""
    real = setting.get("compute", "real") == "real"
    rounds = 1 if "one round" in traits else int(rng.integers(2, 7)) if rng.random() < 0.2 else 4
    compute_ms = 0.0 if setting.get("compute") == "none" else 20.0
    compute_ms = 1000.0 if real and "hidden" in traits else compute_ms
    for backend in [*backends, *(["null"] if real and rng.random() < 0.5 else [])]:
        wait_ms, spread = _wait(setting, backend, traits, rng), _spread(traits, rng)
        failed = int(rng.integers(0, rounds)) if "failed" in traits and rng.random() < 0.4 else -1
        for number in range(rounds):
            drawn = wait_ms * float(np.exp(spread * rng.standard_normal()))
            record = _record(setting, backend, number, drawn, compute_ms, traits, rng)
            if number <= failed:
                record = dataclasses.replace(
                    record, status=Status.FAILED, failure="12% resident", samples_per_s=0.0
                )
            yield record


def _wait(setting: Setting, backend: str, traits: frozenset[str], rng: np.random.Generator) -> float:
    """Return the true wait of a step, in milliseconds."""
    if backend == "null":
        return 0.1
    if "hidden" in traits:
        return 60.0 if backend == "png" else 6.0
    if "conversions" in traits and backend == "png":
        return 150.0
    if "fed" in traits and setting.get("compute", "real") == "real":
        return float(rng.uniform(0.2, 0.8))
    if "equal" in traits:
        return 30.0
    warm = 0.3 if setting.get("cache") == "warm" else 1.0
    return warm * float(10 ** rng.uniform(0.6, 2.2))


def _spread(traits: frozenset[str], rng: np.random.Generator) -> float:
    """Return the standard deviation of the logarithm of a wait, from round to round."""
    for trait, spread in _SPREADS.items():
        if trait in traits:
            return spread
    return float(rng.choice([0.01, 0.05, 0.5]))


def _record(
    setting: Setting,
    backend: str,
    number: int,
    wait_ms: float,
    compute_ms: float,
    traits: frozenset[str],
    rng: np.random.Generator,
) -> Record:
    encoded = backend.endswith(("png", "jpeg"))
    decode_ms = 0.7 * wait_ms if encoded else 0.0
    return make_record(
        backend,
        replicate=number,
        wait_ms=wait_ms,
        compute_ms=compute_ms,
        decode_ms=decode_ms,
        fetch_ms=0.2 * wait_ms,
        prep_ms=0.05 * wait_ms,
        steps=4 if "few steps" in traits else 100,
        origin="synthetic" if "synthetic" in traits else "real",
        bytes_on_disk=(300_000_000 if encoded else 800_000_000) + 1000 * len(backend),
        amplification=float(rng.uniform(0.9, 6.0)),
        **setting,
    )


def _ladder(traits: frozenset[str], rng: np.random.Generator) -> Iterator[Record]:
    """Yield rungs of LMDBIO's ladder, with one and with four reader processes."""
    rungs = [rung for rung in RUNGS if rung.key in _LADDER]
    for workers in (1, 4):
        for rung in rungs:
            backend, options = rung.backend.partition("?")[0], tuple(sorted(rung.options.items()))
            wait_ms, spread = float(10 ** rng.uniform(0.3, 2.2)), _spread(traits, rng)
            for number in range(1 if "one round" in traits else 5):
                drawn = wait_ms * float(np.exp(spread * rng.standard_normal()))
                setting = {"compute": "none", "workers": workers, "reader_options": options}
                yield _record(setting, backend, number, drawn, 0.0, traits, rng)


def _conversions(rng: np.random.Generator) -> dict[str, list[float]]:
    """Return seconds of conversions; some vary so much that nothing follows from them."""
    spread = float(rng.choice([0.01, 0.6]))
    count = int(rng.choice([1, 4, 6]))
    return {
        name: [float(one) for one in 12.0 * np.exp(spread * rng.standard_normal(count))]
        for name in _CONVERTED
    }
