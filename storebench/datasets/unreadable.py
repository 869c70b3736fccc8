"""Image files that cannot be read: found by decoding each once, then counted and refused, or left out as asked."""

import dataclasses
import itertools
import json
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from storebench.datasets.base import Dataset, DatasetSpec, Provenance
from storebench.datasets.derived import ChosenSamples, Grown, places_in, select
from storebench.datasets.listing import Listings, packed_refusals, unpacked_refusals
from storebench.datasets.sources import Refusal, fingerprint
from storebench.errors import CorruptDataError, DataNotFoundError
from storebench.fileio.json_text import parse_json
from storebench.plain_text import plain
from storebench.progress import Progress, silent
from storebench.units import number_of

MOST_THREADS = 8
_AT_ONCE = 256  # files that wait to be decoded at a time
_NAMED = 5  # most files that are named where some are left out
_VERSION = 1  # part of the name of what was found out; increased whenever other files count as unreadable


def find_unreadable(
    dataset: Dataset, indices: Collection[int], progress: Progress = silent
) -> dict[int, Refusal]:
    """Decode the files of some samples, each once, in several threads; return why files cannot be, by sample."""

    def check(index: int) -> Refusal | None:
        try:
            dataset.original(index)
        except (CorruptDataError, DataNotFoundError) as error:
            return error
        return None

    files = _each_file(dataset, indices)
    unreadable: dict[int, Refusal] = {}
    # Decoding releases the lock of the interpreter, so threads do.
    threads = min(MOST_THREADS, len(os.sched_getaffinity(0)))
    with progress(f"checking {dataset.info.name}") as advance, ThreadPoolExecutor(threads) as pool:
        for first in range(0, len(files), _AT_ONCE):
            if first:
                advance(first, len(files))
            some = files[first : first + _AT_ONCE]
            errors = zip(some, pool.map(check, some), strict=True)
            unreadable |= {index: error for index, error in errors if error is not None}
    return unreadable


def refusal(
    unreadable: Mapping[int, Refusal], files: int, advice: str = "--skip-unreadable leaves such files out."
) -> Refusal:
    """Return the error for unreadable files: the first one, and how many there are."""
    first, count = next(iter(unreadable.values())), "the only unreadable file"
    if len(unreadable) > 1:
        count = f"the first of {len(unreadable):,} unreadable files"
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

    def check(indices: Sequence[int]) -> dict[int, Refusal]:
        if known is not None:
            return {index: known[index] for index in indices if index in known}
        found = find_unreadable(source, indices, progress)
        errors = {source.locate(index): error for index, error in found.items()}
        # A list may name a file twice.
        named = ((index, errors.get(source.locate(index))) for index in (indices if errors else ()))
        return {index: error for index, error in named if error is not None}

    places, unreadable = _readable_places(source, chosen, check)
    if listings is not None and known is None:
        listings.keep(name, json.dumps(packed_refusals(unreadable)).encode())
    if not unreadable:
        return chosen
    if not places:
        raise refusal(unreadable, len(unreadable), advice="")
    whole = len(places) + len(unreadable) == len(source)
    readable = Readable(source, places, unreadable)
    return select(readable, spec, by_class=by_class) if whole else readable


def _readable_places(
    source: Dataset, chosen: Dataset, check: Callable[[Sequence[int]], dict[int, Refusal]]
) -> tuple[list[int], dict[int, Refusal]]:
    """Return the files of the source to use, and the unreadable files among the checked ones."""
    count = len(source)
    places = [] if isinstance(chosen, Grown) else list(places_in(chosen, source))
    if not places or 2 * len(places) > count:
        unreadable = check(range(count))
        return [place for place in range(count) if place not in unreadable], unreadable
    looked, taken = set(places), set(places)
    unreadable = bad = check(places)
    while bad:
        taken -= bad.keys()
        substitutes = []
        for place in bad:
            around = itertools.chain(range(place + 1, count), range(place))
            substitutes += list(itertools.islice((other for other in around if other not in looked), 1))
            looked.update(substitutes)
        taken.update(substitutes)
        bad = check(sorted(substitutes))
        unreadable = unreadable | bad
    return sorted(taken), dict(sorted(unreadable.items()))


class Readable(ChosenSamples):
    """Some samples of a dataset: those whose image files can be read."""

    def __init__(self, source: Dataset, places: Sequence[int], unreadable: Mapping[int, Refusal]) -> None:
        self._places = list(places)
        left_out = list({source.locate(index): error for index, error in unreadable.items()}.values())
        self._skipped = len(left_out)
        self._note = f"{number_of(self._skipped, 'unreadable file')} left out"
        named = "; ".join(plain(f"{error.where}: {error.what}") for error in left_out[:_NAMED])
        more = f"; and {self._skipped - _NAMED:,} more" if self._skipped > _NAMED else ""
        super().__init__(source, len(places), ("readable", self._places))
        self.skip_note = f"{self._note}: {named}{more}"

    def place(self, index: int) -> int:
        return self._places[index]

    def _provenance(self, old: Provenance, how: str) -> Provenance:  # noqa: ARG002 - no samples are added
        return dataclasses.replace(old.noted(self._note), skipped_files=self._skipped)


def _read(listings: Listings, name: str, source: Dataset) -> dict[int, Refusal] | None:
    """Return the files that are known to be unreadable, by index; None if that is not known."""
    content = listings.get(name)
    if content is None:
        return None
    try:
        known = unpacked_refusals(parse_json(content, name), source.locate)
    except (CorruptDataError, ValueError, LookupError, TypeError):
        return None
    # Permissions and failing disks may have been fixed, which the samples' identity does not show.
    unopened = [index for index, error in known.items() if isinstance(error, DataNotFoundError)]
    still = {source.locate(index) for index in find_unreadable(source, unopened)} if unopened else set()
    return known if {source.locate(index) for index in unopened} == still else None
