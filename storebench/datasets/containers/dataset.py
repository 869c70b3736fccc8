"""The datasets that serve the samples of a container: image files as they are, or pixels."""

import functools
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from storebench.datasets import images
from storebench.datasets.base import CONTAINER_PREFIX, Dataset, DatasetInfo, Image, Origin, Provenance
from storebench.datasets.containers.base import Container, listed
from storebench.datasets.containers.recognize import find_container
from storebench.datasets.derived import ChosenSamples, Grown, places_in
from storebench.datasets.files import ImageFiles, Originals
from storebench.datasets.image_folder import ONE_CLASS
from storebench.datasets.listing import Listings
from storebench.datasets.sources import check_index, files_digest, fingerprint, unreadable
from storebench.errors import DataNotFoundError, UsageError
from storebench.plain_text import text_of_name
from storebench.settings.words import Split
from storebench.system.isolated import run_isolated
from storebench.units import number_of

_SCAN_VERSION = 12  # increased whenever a scan would find something else
LIMIT_S, MEMORY_BYTES = 24 * 3600.0, 8 << 30


def scanned(container: Container, listings: Listings | None) -> Container:
    """Return the container with its samples, as it was kept or is found now."""
    container.digest = files_digest(container.files)
    identity = (container.kind, container.asked, container.digest, *container.files)
    name = f"container-{fingerprint(_SCAN_VERSION, *identity)}"
    kept: Container | None = None if listings is None else listings.get(name)
    if kept is not None:
        return kept
    result = run_isolated(  # libraries may crash on a damaged file
        functools.partial(_scanned, container),
        doing=f"reading {container.kind}",
        where=container.files[0],
        limit_s=LIMIT_S,
        memory_bytes=MEMORY_BYTES,
    )
    if listings is not None:
        listings.keep(name, result)
    return result


def _scanned(container: Container) -> Container:
    try:
        container.scan()
    except OSError as error:
        raise unreadable(container.files[0], error) from error
    count = len(container.classes.labels)
    if not count:
        raise DataNotFoundError("holds no samples", where=container.files[0], hint="Name another file.")
    first = container.read(0)
    if not isinstance(first, bytes):
        height, width, channels = first.shape
        container.shape, container.are_files = (height, width, channels), False
        return container

    def start(index: int, most: int) -> bytes:
        image = container.read(index)
        return image[:most] if isinstance(image, bytes) else b""

    container.sizes = images.sizes_of(images.probed_headers(start, count))
    container.shape = images.common_small_shape(start, count) or images.square(None)
    return container


def open_container(
    text: str, split: Split, image_size: int | None = None, listings: Listings | None = None
) -> Dataset:
    """Open ``container:PATH``: its samples are in the order of its files, and of each file."""
    place = find_container(text, split)
    container = scanned(place, listings)
    if split == Split.TEST:
        train = scanned(find_container(text, Split.TRAIN), listings).classes
        container.classes = container.classes.among(train, container.files[0])
    classes, notes = container.classes, [*container.notes]
    if place.beside:
        notes.append(f"beside the splits, {listed(place.beside)} left out")
    labelled = np.flatnonzero(classes.labels >= 0)
    if (unlabelled := len(classes.labels) - len(labelled)) > 0:
        number = f" ({classes.no_label})" if classes.no_label else ""
        notes.append(f"{number_of(unlabelled, 'sample')} without a label{number} left out")
    if classes.names == (ONE_CLASS,):
        others = f" (#IMAGE,LABEL names one of {listed(container.ignored)})" if container.ignored else ""
        notes.append(f"no label found, so every label is 0{others}")
    elif len(classes.names) == 1:
        notes.append("one class only, so every label is 0")
    source = f"{container.kind} ({number_of(len(container.files), 'file')})"
    info = DatasetInfo(
        name=CONTAINER_PREFIX + text_of_name(text),
        split=split,
        count=len(classes.labels),
        image_shape=container.shape,
        class_names=classes.names,
        provenance=Provenance(origin=Origin.REAL, source=source).noted(*notes),
        fingerprint=fingerprint("pixels", container.shape, *container.identity),
    )
    if image_size is not None and not container.are_files:
        raise UsageError(
            f"the samples of {container.kind} are pixels of one size, so none can be asked for",
            where=container.files[0],
            hint="Leave out --image-size.",
        )
    samples: Dataset = ContainerPixels(info, container)
    if container.are_files:
        samples = ContainerImages(info, container, image_size)
    return ChosenSamples(samples, labelled.tolist(), ("labelled",)) if unlabelled else samples


def in_place(dataset: Dataset) -> tuple[Container, Sequence[int]] | None:
    """Return the container of a dataset and the number in it of each sample; None if the dataset has none."""
    chosen = source = dataset.source if isinstance(dataset, Originals) else dataset
    while isinstance(source, ChosenSamples):
        source = source.source
    if not isinstance(source, ContainerImages | ContainerPixels):
        return None
    if isinstance(source, ContainerPixels) and isinstance(chosen, Grown):
        raise UsageError("samples that are derived from others are in no container", hint="Leave out --size.")
    return source.container, places_in(chosen, source)


class ContainerImages(ImageFiles):
    """Serve the image files that a container holds."""

    def __init__(self, info: DatasetInfo, container: Container, image_size: int | None) -> None:
        self.container = container
        self.labels = container.classes.labels
        self.layout_note = info.provenance.note
        self.describe("container", info, container.sizes, image_size, *container.identity)

    def name(self, index: int) -> str:
        return self.container.name(index)

    def locate(self, index: int) -> str:
        return self.container.locate(index)

    def file_sizes(self) -> npt.NDArray[np.int64] | None:
        return self.container.file_sizes()

    def _read(self, index: int) -> bytes:
        image = self.container.served(index)
        assert isinstance(image, bytes)
        return image


class ContainerPixels(Dataset):
    """Serve the pixels that a container holds, uint8 of one shape."""

    def __init__(self, info: DatasetInfo, container: Container) -> None:
        self.container, self._info = container, info
        self.layout_note = info.provenance.note

    def name(self, index: int) -> str:
        return self.container.name(index)

    def locate(self, index: int) -> str:
        return self.container.locate(index)

    def sample(self, index: int) -> tuple[Image, int]:
        check_index(index, len(self))
        image = self.container.served(index)
        assert not isinstance(image, bytes)
        return image, int(self.container.classes.labels[index])
