"""Watch `storebench.Loader`, whose iterator is its own."""

import contextlib
from collections.abc import Iterator
from typing import Any

from storebench.loading.torch_loader import Loader
from storebench.profiling.loops import loops
from storebench.profiling.watch import asking


def _iterate_watched(loader: Loader) -> Iterator[Any]:
    recorder = None if asking.watches else loops.recorder_of(loader)
    with recorder.beginning() if recorder else contextlib.nullcontext():
        batches = _iterate(loader)
    return recorder.batches(batches) if recorder else batches


# This module is imported after the loader's.
_iterate = Loader.__iter__
Loader.__iter__ = _iterate_watched  # type: ignore[method-assign]
