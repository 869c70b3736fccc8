"""Image files that cannot be read: found by decoding each once, then counted and refused, or left out as asked."""

import dataclasses
import itertools
import json
import os
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from storebench.datasets.base import Dataset, DatasetSpec, Provenance
from storebench.datasets.derived import ChosenSamples, Grown, places_in, select
from storebench.datasets.listing import REFUSALS, Listings
from storebench.datasets.sources import Refusal, fingerprint
from storebench.errors import CorruptDataError, DataNotFoundError
from storebench.fileio.json_text import parse_json
from storebench.plain_text import plain
from storebench.progress import Progress, silent
from storebench.units import number_of

MOST_THREADS = 8
_AT_ONCE = 256
"""Files that wait to be decoded at a time."""

_NAMED = 5
"""Most files that are named where some are left out."""

_VERSION = 1
"""Part of the name of what was found out; increased whenever other files count as unreadable."""


@dataclass(frozen=True, kw_only=True)
class Unreadable:
    """An image file that cannot be read."""

    index: int  # the first sample that is made of it
    error: Refusal  # why, with the file's name


FindUnreadable = Callable[[Sequence[int]], list[Unreadable]]
"""Return the files that cannot be read among those of some samples."""


def find_unreadable(
    dataset: Dataset, indices: Collection[int], progress: Progress = silent
) -> list[Unreadable]:
    """Decode the files of some samples, each once, in several threads; return those that cannot be, in order."""

    def check(index: int) -> Unreadable | None:
        try:
            dataset.original(index)
        except (CorruptDataError, DataNotFoundError) as error:
            return Unreadable(index=index, error=error)
        return None

    files = _each_file(dataset, indices)
    unreadable: list[Unreadable] = []
    # Decoding releases the lock of the interpreter, so threads do.
    threads = min(MOST_THREADS, len(os.sched_getaffinity(0)))
    with progress(f"checking {dataset.info.name}") as advance, ThreadPoolExecutor(threads) as pool:
        for first in range(0, len(files), _AT_ONCE):
            if first:
                advance(first, len(files))
            unreadable += filter(None, pool.map(check, files[first : first + _AT_ONCE]))
    return unreadable


_ADVICE = "--skip-unreadable leaves such files out."


def refusal(unreadable: Sequence[Unreadable], files: int, advice: str = _ADVICE) -> Refusal:
    """Return the error for unreadable files: the first one, and how many there are."""
    first = unreadable[0].error
    count = (
        f"the first of {len(unreadable):,} unreadable files"
        if len(unreadable) > 1
        else "the only unreadable file"
    )
    return type(first)(
        f"{first.what}; {count} among {files:,}",
        where=first.where,
        hint=" ".join(filter(None, (first.hint, advice))),
    )


def counted(error: Refusal, dataset: Dataset, progress: Progress = silent) -> Refusal:
    """Return the error for a dataset one of whose samples could not be read, with the count of all such files."""
    if dataset.original_info is None:
        return error
    indices = range(len(dataset))
    unreadable = find_unreadable(dataset, indices, progress)
    return refusal(unreadable, len(_each_file(dataset, indices))) if unreadable else error


def _each_file(dataset: Dataset, indices: Collection[int]) -> list[int]:
    """Return the first sample of each file."""
    first: dict[str, int] = {}
    for index in indices:
        first.setdefault(dataset.locate(index), index)
    return list(first.values())


def select_readable(
    source: Dataset,
    spec: DatasetSpec,
    *,
    by_class: bool,
    listings: Listings | None = None,
    progress: Progress = silent,
) -> Dataset:
    """Apply ``spec.size`` and ``spec.limit`` to the image files that can be read, and leave out the others."""
    chosen = select(source, spec, by_class=by_class)
    if source.original_info is None:
        return chosen
    name = "unreadable-" + fingerprint(
        _VERSION, source.original_info.fingerprint, spec.size, spec.limit, by_class
    )
    known = None if listings is None else _read(listings, name, source)

    def check(indices: Sequence[int]) -> list[Unreadable]:
        if known is not None:
            return [known[index] for index in indices if index in known]
        errors = {
            source.locate(entry.index): entry.error for entry in find_unreadable(source, indices, progress)
        }
        if not errors:
            return []
        # A list may name a file twice.
        named = ((index, errors.get(source.locate(index))) for index in indices)
        return [Unreadable(index=index, error=error) for index, error in named if error is not None]

    places, unreadable = _readable_places(source, chosen, check)
    if listings is not None and known is None:
        listings.keep(name, _packed(unreadable))
    if not unreadable:
        return chosen
    if not places:
        raise refusal(unreadable, len(unreadable), advice="")
    whole = len(places) + len(unreadable) == len(source)
    readable = Readable(source, places, unreadable)
    return select(readable, spec, by_class=by_class) if whole else readable


def _readable_places(
    source: Dataset, chosen: Dataset, check: FindUnreadable
) -> tuple[list[int], list[Unreadable]]:
    """Return the files of the source to use, and the unreadable files among the checked ones."""
    count = len(source)
    places = [] if isinstance(chosen, Grown) else list(places_in(chosen, source))
    if not places or 2 * len(places) > count:
        unreadable = check(range(count))
        left_out = {entry.index for entry in unreadable}
        return [place for place in range(count) if place not in left_out], unreadable
    looked, taken = set(places), set(places)
    unreadable = bad = check(places)
    while bad:
        taken.difference_update(entry.index for entry in bad)
        substitutes = [place for entry in bad for place in _next(entry.index, count, looked)]
        taken.update(substitutes)
        bad = check(sorted(substitutes))
        unreadable = [*unreadable, *bad]
    return sorted(taken), sorted(unreadable, key=lambda entry: entry.index)


def _next(place: int, count: int, looked: set[int]) -> Iterator[int]:
    """Check the next unchecked place and yield it; yield nothing if all are checked."""
    around = itertools.chain(range(place + 1, count), range(place))
    for candidate in itertools.islice((candidate for candidate in around if candidate not in looked), 1):
        looked.add(candidate)
        yield candidate


class Readable(ChosenSamples):
    """Some samples of a dataset: those whose image files can be read."""

    def __init__(self, source: Dataset, places: Sequence[int], left_out: Sequence[Unreadable]) -> None:
        self._places = list(places)
        left_out = list({source.locate(entry.index): entry for entry in left_out}.values())
        self._skipped = len(left_out)
        self._note = f"{number_of(self._skipped, 'unreadable file')} left out"
        named = "; ".join(plain(f"{entry.error.where}: {entry.error.what}") for entry in left_out[:_NAMED])
        more = f"; and {self._skipped - _NAMED:,} more" if self._skipped > _NAMED else ""
        super().__init__(source, len(places), ("readable", self._places))
        self.skip_note = f"{self._note}: {named}{more}"

    def place(self, index: int) -> int:
        """Return the index in the source of sample `index`."""
        return self._places[index]

    def _provenance(self, old: Provenance, how: str) -> Provenance:  # noqa: ARG002 - no samples are added
        note = "; ".join(filter(None, (old.note, self._note)))
        return dataclasses.replace(old, note=note, skipped_files=self._skipped)


def _packed(unreadable: Sequence[Unreadable]) -> bytes:
    rows = [
        (entry.index, type(entry.error).__name__, entry.error.what, entry.error.hint) for entry in unreadable
    ]
    return json.dumps(rows).encode()


def _read(listings: Listings, name: str, source: Dataset) -> dict[int, Unreadable] | None:
    """Return the files that are known to be unreadable, by index; None if that is not known."""
    content = listings.get(name)
    if content is None:
        return None
    try:
        rows: list[tuple[int, str, str, Any]] = parse_json(content, name)
        known = {
            index: Unreadable(index=index, error=REFUSALS[kind](what, where=source.locate(index), hint=hint))
            for index, kind, what, hint in rows
        }
    except (CorruptDataError, ValueError, LookupError, TypeError):
        return None
    # Permissions and failing disks may have been fixed, which the samples' identity does not show.
    unopened = [index for index, entry in known.items() if isinstance(entry.error, DataNotFoundError)]
    still = {source.locate(entry.index) for entry in find_unreadable(source, unopened)} if unopened else set()
    return known if {source.locate(index) for index in unopened} == still else None
