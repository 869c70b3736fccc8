"""Settings that change the cost of a random sample, each tried on the file itself or on a copy of a part of it."""

import itertools
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from storebench.stores.random_reads import Source, Trial, TriedSetting, evicted

READ_S = 0.25  # of one reading
ROUNDS, ENOUGH_S = 3, 3.0  # no round of a setting begins later
MOST_S = 15.0  # no setting is tried later than this
COPY_BYTES, COPY_ROWS = 32 << 20, 5_000  # most of a file that is copied
BATCH = 64


def tried(settings: Iterable[TriedSetting | Trial]) -> list[Trial]:
    """Try each setting until `MOST_S` have passed; a cold one is left out where the file cannot be evicted."""
    deadline, trials = time.perf_counter() + MOST_S, list[Trial]()
    for setting in settings:
        if isinstance(setting, Trial):
            trials.append(setting)
            continue
        pairs, started = list[tuple[float, float]](), time.perf_counter()
        while len(pairs) < ROUNDS and time.perf_counter() < started + ENOUGH_S:
            pairs.append((_rate(setting.now, setting.cold), _rate(setting.tried, setting.cold)))
        now, new = (max(rates) for rates in zip(*pairs, strict=True))
        if now and new:
            trial = Trial(
                setting=setting.name,
                now=setting.now.value,
                tried=setting.tried.value,
                factor=new / now,
                gain=f"as fast, {'cold' if setting.cold else 'warm'}",
            )
            trials.append(trial)
        if time.perf_counter() > deadline:
            break
    return trials


def _rate(source: Source, cold: bool) -> float:
    """Return samples per second; 0 if the page cache cannot be brought into the state of the setting."""
    if cold and evicted(source.path)[1]:
        return 0.0
    with source.open() as prepare:
        started, done = time.perf_counter(), 0
        for item in source.items if cold else itertools.cycle(source.items):
            prepare(item)()
            done += source.batch
            if time.perf_counter() - started > READ_S:
                break
        return done / (time.perf_counter() - started)


def in_batches(source: Source, size: int) -> Iterator[TriedSetting]:
    """Yield the setting of a call for several samples; its items are lists."""
    items = [source.items[at : at + size] for at in range(0, len(source.items) - size + 1, size)]
    if items:
        several = replace(source, value=f"{size}", items=items, batch=size)
        yield TriedSetting(name="samples per call", now=replace(source, value="1"), tried=several)


def in_sequence(source: Source, ordered: Sequence[Any]) -> Iterator[TriedSetting]:
    """Yield the setting of the order: at random, or one after another."""
    following = replace(source, value="one after another", items=ordered[: len(source.items)])
    yield TriedSetting(name="order", now=replace(source, value="random"), tried=following, cold=True)
