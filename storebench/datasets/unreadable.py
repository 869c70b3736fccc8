"""Image files that cannot be read: found by decoding each once, then counted and refused, or left out as asked."""

import dataclasses
import os
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from storebench.datasets.base import Dataset, DatasetSpec, Provenance
from storebench.datasets.derived import ChosenSamples, Grown, places_in, select
from storebench.datasets.listing import Listings
from storebench.datasets.sources import Refusal, fingerprint
from storebench.errors import CorruptDataError, DataNotFoundError
from storebench.plain_text import plain
from storebench.system.progress import Progress, silent
from storebench.units import number_of

MOST_THREADS = 8
_AT_ONCE = 256  # files that wait to be decoded at a time
_NAMED = 5  # most files that are named where some are left out
_VERSION = 2  # part of the name of what was found out; increased whenever other files count as unreadable


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
    """Apply ``spec.size`` and ``spec.limit``, and leave out the image files that cannot be read."""
    chosen = select(source, spec, by_class=by_class)
    if source.original_info is None:
        return chosen
    name = "unreadable-" + fingerprint(
        _VERSION, source.original_info.fingerprint, spec.size, spec.limit, by_class
    )
    places = range(len(source)) if isinstance(chosen, Grown) else places_in(chosen, source)
    unreadable: dict[int, Refusal] | None = None if listings is None else listings.get(name)
    # Permissions and failing disks may have been fixed, which the samples' identity does not show.
    unopened = [index for index, error in (unreadable or {}).items() if isinstance(error, DataNotFoundError)]
    if unreadable is None or len(find_unreadable(source, unopened)) < len(unopened):
        unreadable = find_unreadable(source, places, progress)
        if listings is not None:
            listings.keep(name, unreadable)
    if not unreadable:
        return chosen
    errors = {source.locate(index): error for index, error in unreadable.items()}
    # By file, because a list may name one twice.
    readable = [place for place in places if source.locate(place) not in errors]
    if not readable:
        raise refusal(unreadable, len(unreadable), advice="")
    kept = _readable(source, readable, list(errors.values()))
    return select(kept, spec, by_class=by_class) if isinstance(chosen, Grown) else kept


def _readable(source: Dataset, places: Sequence[int], left_out: Sequence[Refusal]) -> Dataset:
    """Return some samples of a dataset: those whose image files can be read."""
    skipped = len(left_out)
    words = f"{number_of(skipped, 'unreadable file')} left out"

    def note(old: Provenance, _: str) -> Provenance:
        return dataclasses.replace(old.noted(words), skipped_files=skipped)

    chosen = ChosenSamples(source, places, ("readable", places), note)
    named = "; ".join(plain(f"{error.where}: {error.what}") for error in left_out[:_NAMED])
    more = f"; and {skipped - _NAMED:,} more" if skipped > _NAMED else ""
    chosen.skip_note = f"{words}: {named}{more}"
    return chosen
