"""The known datasets: where their files are searched, and when a stand-in replaces them."""

import functools
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from storebench.datasets import cifar10, imagenet, mnist
from storebench.datasets.base import (
    CONTAINER_PREFIX,
    FOLDER_PREFIX,
    LEAST_IMAGE_SIZE,
    MOST_IMAGE_SIZE,
    MOST_SAMPLES,
    PATH_PREFIXES,
    Dataset,
    DatasetSpec,
)
from storebench.datasets.containers import is_container, open_container
from storebench.datasets.derived import select
from storebench.datasets.image_folder import open_folder, open_list
from storebench.datasets.listing import Listings
from storebench.datasets.synthetic import SyntheticDataset
from storebench.datasets.unreadable import select_readable
from storebench.errors import DataNotFoundError, UnknownNameError, UsageError
from storebench.settings.loop_fields import MOST_SEED
from storebench.settings.words import Split
from storebench.system.progress import Progress, silent

DATA_ENV = "STOREBENCH_DATA"
DEFAULT_ROOT = Path("data")


@dataclass(frozen=True, kw_only=True)
class DatasetFiles:
    where: Path
    open: Callable[[Split, int | None, Listings | None], Dataset]


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One known dataset: the search for its files, and the advice on where to put them."""

    find: Callable[[Path], Any]  # searches a data folder; returns what `open` needs, or nothing
    open: Callable[..., Dataset]
    files: str  # sentence for messages that names the files and the folder to put them into
    image_files: bool = False  # whether its samples are files of images, sorted by class


_ENTRIES = {
    "mnist": Entry(
        find=mnist.find,
        open=mnist.open_mnist,
        files="Run 'storebench data fetch mnist', or put train-images-idx3-ubyte.gz, train-labels-idx1-ubyte.gz, "
        "t10k-images-idx3-ubyte.gz and t10k-labels-idx1-ubyte.gz into mnist/ there.",
    ),
    "cifar10": Entry(
        find=cifar10.find,
        open=cifar10.open_cifar10,
        files="Run 'storebench data fetch cifar10', or put cifar-10-binary.tar.gz (or cifar-10-batches-bin/) "
        "into cifar10/ there.",
    ),
    "imagenet": Entry(
        find=imagenet.find,
        open=imagenet.open_imagenet,
        files=f"Put {imagenet.TRAIN_TAR} (or one folder per class in train/) into imagenet/ there; "
        "it comes from image-net.org after registration.",
        image_files=True,
    ),
}

# The names of the known datasets; ``folder:PATH`` and the like are valid as well.
DATASETS = tuple(_ENTRIES)

KNOWN = (
    *DATASETS,
    "folder:PATH",
    "list:FILE",
    "container:PATH",
    "hf:FOLDER",
)  # the datasets as messages list them


def known_dataset(name: str) -> bool:
    """Whether `name` is a known dataset, a folder, a list or a container."""
    return name in _ENTRIES or name.startswith(PATH_PREFIXES)


def data_root() -> Path:
    """Return the data folder: STOREBENCH_DATA, or ./data."""
    return Path(os.environ.get(DATA_ENV) or DEFAULT_ROOT)


def search_roots(root: Path | None = None) -> list[Path]:
    """Return the folders to search, in order: `root` alone, or the data folder and then ./data."""
    first = root if root is not None else data_root()
    return [first] if root is not None or first == DEFAULT_ROOT else [first, DEFAULT_ROOT]


def find_files(name: str, root: Path | None = None) -> DatasetFiles | None:
    entry = _ENTRIES[name]
    for place in search_roots(root):
        if sources := entry.find(place):
            where = sources if isinstance(sources, Path) else sources.path
            return DatasetFiles(where=where, open=functools.partial(entry.open, sources))
    return None


def needed_files(name: str) -> str:
    return _ENTRIES[name].files


def open_dataset(
    spec: DatasetSpec,
    root: Path | None = None,
    *,
    listings: Listings | None = None,
    progress: Progress = silent,
) -> Dataset:
    """Open the samples that `spec` requests."""
    _check(spec)
    entry = _ENTRIES.get(spec.name)
    if spec.folder is not None:
        source = open_folder(spec.folder, spec.split, spec.image_size, listings)
    elif spec.file_list is not None:
        source = open_list(spec.file_list, spec.split, spec.image_size, listings)
    elif spec.container is not None:
        source = open_container(spec.container, spec.split, spec.image_size, listings)
    elif not spec.synthetic and (files := find_files(spec.name, root)) is not None:
        source = files.open(spec.split, spec.image_size, listings)
    else:
        places = " and ".join(map(str, search_roots(root)))
        if spec.synthetic is False:
            raise DataNotFoundError(f"no files of {spec.name}", where=places, hint=needed_files(spec.name))
        why = "asked for" if spec.synthetic else f"no files of {spec.name} in {places}"
        return SyntheticDataset(spec, why=why)
    by_class = spec.container is None and (entry is None or entry.image_files)
    if spec.skip_unreadable:
        return select_readable(source, spec, by_class=by_class, listings=listings, progress=progress)
    return select(source, spec, by_class=by_class)


def unknown_dataset(name: str) -> UnknownNameError:
    """Return the error for a name that no dataset has, with what was meant."""
    error = UnknownNameError.of("dataset", name, KNOWN)
    if is_container(name):
        return UnknownNameError(error.what, hint=f"Write {CONTAINER_PREFIX}{name} for the file or files.")
    if os.path.isdir(name):  # noqa: PTH112 - Path raises where the text cannot be a path
        return UnknownNameError(error.what, hint=f"Write {FOLDER_PREFIX}{name} for the folder of images.")
    return UnknownNameError(f"{error.what}, and there is no such folder", hint=error.hint)


def any_image_size(name: str) -> bool:
    """Whether a dataset has image files, which are resized to the size that is asked for."""
    return name not in _ENTRIES or _ENTRIES[name].image_files


def _check(spec: DatasetSpec) -> None:
    if not known_dataset(spec.name):
        raise unknown_dataset(spec.name)
    ranges = (
        ("--size", spec.size, 1, MOST_SAMPLES),
        ("--limit", spec.limit, 1, MOST_SAMPLES),
        ("--image-size", spec.image_size, LEAST_IMAGE_SIZE, MOST_IMAGE_SIZE),
        ("--seed", spec.seed, 0, MOST_SEED),
    )
    for option, value, least, most in ranges:
        if value is not None and not least <= value <= most:
            raise UsageError(f"must be {least:,} to {most:,}, not {value:,}", where=option)
    has_files = any_image_size(spec.name)
    refusals = {
        "--image-size": (spec.image_size is not None and not has_files, "its images have one size"),
        "--skip-unreadable": (spec.skip_unreadable and not has_files, "its samples are no image files"),
        "--synthetic": (spec.synthetic and spec.name not in _ENTRIES, "it has no synthetic stand-in"),
    }
    for option, (is_refused, why) in refusals.items():
        if is_refused:
            raise UsageError(why, where=spec.name, hint=f"Leave out {option}.")
