"""What all containers share: the fields that hold images and labels, labels as classes, and samples at byte ranges."""

import math
import os
import threading
import time
from abc import ABC, abstractmethod
from array import array
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from storebench.arrays import ImageShape, ImageSize
from storebench.datasets.base import MOST_SAMPLES, Image
from storebench.datasets.image_folder import MOST_LABEL, ONE_CLASS
from storebench.datasets.images import MOST_FILE_BYTES
from storebench.datasets.sources import fingerprint, open_source, unreadable
from storebench.errors import CorruptDataError, DataNotFoundError, UnknownNameError, UsageError

# The usual names of the fields of a sample, in the order in which they are tried.
IMAGE_FIELDS = (
    *("image", "images", "img", "jpg", "jpeg", "png", "webp", "image/encoded", "image_bytes", "image_raw"),
    *("data", "x", "X"),
)
LABEL_FIELDS = ("label", "labels", "cls", "class", "target", "targets", "image/class/label", "y", "Y")

MOST_NAMED = 12  # most fields that a message lists


@dataclass(frozen=True)
class NamedFields:
    """The fields that ``PATH#IMAGE,LABEL`` names; "" for one that is found by its usual name."""

    image: str = ""
    label: str = ""


_LONGEST_LABEL = 1000
_OTHER_FIELD = "Name another field for the label with #IMAGE,LABEL."


@dataclass(frozen=True)
class Classes:
    labels: npt.NDArray[np.int64]  # the class of each sample, int64 [n]; -1 for a sample that has none
    names: tuple[str, ...]
    no_label: str = ""  # the number that stands for "no label", if samples have it

    def among(self, train: "Classes", where: Path) -> "Classes":
        """Return the same classes by their places among those of the train split."""
        place = {train.no_label: -1} | {name: number for number, name in enumerate(train.names)}
        lacking = next((name for name in self.names if name not in place), None)
        if lacking is not None:
            raise DataNotFoundError(
                f"the test split has a class {lacking!r}, which the train split lacks",
                where=where,
                hint="Use the train split only, or label both alike.",
            )
        places = np.array([*(place[name] for name in self.names), -1], np.int64)
        return Classes(places[self.labels], train.names, self.no_label or train.no_label)


class Labels:
    """Collect the labels of samples, numbers or texts, and make classes of them."""

    def __init__(self, where: str | Path, asked: NamedFields) -> None:
        self._where, self._asked = where, asked
        self._codes = array("q")  # the number of each sample's word; -1 without a label
        self._words: dict[str, int] = {}

    def add(self, value: Any, where: str | Path | None = None) -> None:
        """Append the label of the next sample, at the place `where`; None, NaN and an empty text are no label."""
        if isinstance(value, bytes | memoryview):
            value = bytes(value).decode("utf-8", "replace")
        elif isinstance(value, int) or (isinstance(value, float) and value.is_integer()):
            value = str(int(value))
        elif value is None or (isinstance(value, float) and math.isnan(value)):
            value = ""
        if isinstance(value, str) and len(value) <= _LONGEST_LABEL:
            word = value.strip()
            self._codes.append(self._words.setdefault(word, len(self._words)) if word else -1)
            return
        kind = f"{len(value):,} characters long" if isinstance(value, str) else f"a {type(value).__name__}"
        what = f"the label of sample {len(self)} is {kind}, not one whole number or text"
        raise UsageError(what, where=where or self._where, hint=_OTHER_FIELD)

    def skip(self, count: int) -> None:
        """Append samples that have no label."""
        if not 0 <= count <= MOST_SAMPLES:
            raise CorruptDataError(f"no file holds {count:,} samples", where=self._where)
        self._codes.extend(array("q", [-1]) * count)

    def __len__(self) -> int:
        return len(self._codes)

    def classes(self, names: Sequence[str] = ()) -> Classes:
        """Return a class per sample: small numbers as they are, if need be with `names`; others in ascending order."""
        words = list(self._words)
        no_label = _no_label(words, names)
        numbers = [int(word) for word in words if word.removeprefix("-").isdecimal()]
        keys: list[Any] = numbers if len(numbers) == len(words) else words
        used = [key for key, word in zip(keys, words, strict=True) if word != no_label]
        if not used:
            if self._asked.label and len(self):
                what = f"no sample has a label in {self._asked.label}"
                raise UsageError(what, where=self._where, hint=_OTHER_FIELD)
            return Classes(np.zeros(len(self), np.int64), (ONE_CLASS,))
        are_numbers = isinstance(used[0], int)
        if are_numbers and names and not 0 <= min(used) <= max(used) < len(names):
            what = f"labels {min(used)} to {max(used)}, but there are names of {len(names)} classes"
            raise CorruptDataError(what, where=self._where, hint="Write the labels again.")
        small = are_numbers and 0 <= min(used) <= max(used) <= MOST_LABEL
        order = list(range(max(used) + 1)) if small else sorted(set(used))
        class_names = tuple(names) if small and names else tuple(map(str, order))
        if len(order) > MOST_LABEL + 1:
            raise UsageError(
                f"{len(order):,} different labels, which are no classes", where=self._where, hint=_OTHER_FIELD
            )
        place = {key: number for number, key in enumerate(order)}
        ranks = np.array([*(place.get(key, -1) for key in keys), -1], np.int64)  # -1 is also the last place
        return Classes(ranks[np.array(self._codes)], class_names, no_label)


def _no_label(words: Sequence[str], names: Sequence[str]) -> str:
    """Return the negative number that stands for "no label", as -1 does for Hugging Face; "" for none."""
    negative = [word for word in words if word.startswith("-") and word[1:].isdecimal()]
    others = [word for word in words if word not in negative]
    if len(negative) != 1 or (set(words) == {"-1", "1"} and not names):  # two classes with these signs
        return ""
    are_large = any(word.isdecimal() and int(word) > MOST_LABEL for word in others)
    return "" if are_large else negative[0]


_OPENING = threading.RLock()


class _Last(threading.local):
    key: Any = None


class Container(ABC):
    """The samples in files of one kind, found by a scan; picklable, and read by several threads at a time."""

    classes: Classes
    notes: Sequence[str] = ()  # clauses on samples that were left out
    beside: Sequence[str] = ()  # names of files and folders beside the splits, of none
    ignored: Sequence[str] = ()  # fields beside the images where none was found to be the label
    deadline: float = math.inf  # of `time.perf_counter`: a scan of one file may end early then
    ended_early: bool = False  # whether it did, so that there are more samples
    digest: str  # identifies its files
    sizes: Sequence[ImageSize] = ()  # of some images
    shape: ImageShape  # of all samples
    are_files: bool = True  # whether samples are image files, and not pixels

    def __init__(self, kind: str, files: Sequence[Path], asked: NamedFields) -> None:
        self.kind = kind  # in words
        self.files = files  # what is read; the samples are known by these files
        self.asked = asked

    @abstractmethod
    def scan(self) -> None:
        """Find the samples and their classes."""

    def is_late(self) -> bool:
        """Whether the scan has to end after this sample."""
        self.ended_early = time.perf_counter() > self.deadline
        return self.ended_early

    def _open(self) -> Any:
        """Return the handle that a process opens once and keeps, if any."""
        return None

    @property
    def identity(self) -> tuple[object, ...]:
        """What tells its samples from others."""
        labels = fingerprint(self.classes.labels.tobytes())
        return self.asked, labels, self.classes.names, self.digest

    @property
    def handle(self) -> Any:
        with _OPENING:
            if "_handle" not in self.__dict__:
                self._handle = self._open()
            return self._handle

    @property
    def last(self) -> Any:
        """What each thread has read last, for a `key`."""
        return self.__dict__.setdefault("_last", _Last())

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("_handle", "_last")}

    @abstractmethod
    def read(self, index: int) -> bytes | Image:
        """Return the bytes of the image file that a sample holds, or its pixels if it holds those."""

    def served(self, index: int) -> bytes | Image:
        """Return a sample, which has to be of the same kind as the first one."""
        image = self.read(index)
        shape = None if isinstance(image, bytes) else image.shape
        if shape == (None if self.are_files else self.shape):
            return image
        what = f"pixels of shape {shape}" if shape else "an image file"
        raise CorruptDataError(
            f"{what}, unlike the first sample",
            where=self.locate(index),
            hint="Resize the images to one size, or store all as image files.",
        )

    def read_many(self, indices: Sequence[int]) -> list[bytes | Image]:
        return [self.read(index) for index in indices]

    def files_of(self, indices: Iterable[int]) -> list[Path]:  # noqa: ARG002 - for samples in several files
        """Return the files that hold some of the samples, in the order of all files."""
        return list(self.files)

    def file_sizes(self) -> npt.NDArray[np.int64] | None:
        """Return the bytes of each image file; None if they are known only by reading it."""
        return None

    def name(self, index: int) -> str:
        """Return the key of a sample; its number in a container without keys."""
        return str(index)

    @abstractmethod
    def locate(self, index: int) -> str: ...

    def image_field(self, fields: Iterable[str], where: str | Path, holding: Sequence[str] = ()) -> str:
        """Return the field of the images: as asked, the only one `holding` some, or the first with a usual name."""
        if self.asked.image:
            return _known(self.asked.image, sorted(fields), where)
        if len(holding) == 1:
            return holding[0]
        names = sorted(holding or fields)
        usual = next((name for name in IMAGE_FIELDS if name in names), None)
        if usual is None:
            raise UsageError(
                f"no field with a usual name for images among {listed(names)}",
                where=where,
                hint="Name the one that holds all images: write #IMAGE,LABEL behind the path.",
            )
        return usual

    def label_field(self, fields: Iterable[str], where: str | Path, image: str = "") -> str:
        """Return the field of the labels; "" if no field beside that of the images has a usual name."""
        names = sorted(fields)
        if self.asked.label:
            return _known(self.asked.label, names, where)
        self.ignored = [name for name in names if name != image]
        return next((name for name in LABEL_FIELDS if name in names), "")


def _known(asked: str, names: Sequence[str], where: str | Path) -> str:
    if asked not in names:
        raise UnknownNameError.of("field", asked, names[:MOST_NAMED], where=str(where))
    return asked


def listed(names: Sequence[str]) -> str:
    more = len(names) - MOST_NAMED
    return (", ".join(names[:MOST_NAMED]) or "none") + (f" and {more} more" if more > 0 else "")


class ByteSpans:
    """Byte ranges of files, 20 bytes each in memory: appended by a scan, then read from any thread."""

    def __init__(self, files: Sequence[Path]) -> None:
        self._files = files
        self._shards, self._offsets, self._sizes = array("i"), array("q"), array("q")

    def append(self, shard: int, offset: int, size: int) -> None:
        self._shards.append(shard)
        self._offsets.append(offset)
        self._sizes.append(size)

    def place(self, index: int) -> tuple[Path, int, int]:
        """Return file, offset and size."""
        return self._files[self._shards[index]], self._offsets[index], self._sizes[index]

    def shard(self, index: int) -> int:
        return self._shards[index]

    def read(self, index: int, *, behind: int = 0) -> bytes:
        """Return a range, with some bytes behind it."""
        path, offset, size = self.place(index)
        return read_at(path, offset, min(size + behind, MOST_FILE_BYTES))

    def sizes(self) -> npt.NDArray[np.int64]:
        return np.array(self._sizes, np.int64)

    def __len__(self) -> int:
        return len(self._shards)


def read_at(path: Path, offset: int, size: int) -> bytes:
    """Return `size` bytes of a file."""
    with open_source(path) as stream:
        try:
            content = os.pread(stream.fileno(), size, offset)
        except OSError as error:
            raise unreadable(path, error) from error
    if len(content) < size:
        raise cut_short(path, offset)
    return content


# Errors of libraries for a file that is whole, but of a kind or size that they do not read.
_WHOLE = (NotImplementedError, MemoryError, TypeError)


@contextmanager
def reading_file(
    path: Path, *, what: str, errors: tuple[type[Exception], ...], whole: tuple[type[Exception], ...] = ()
) -> Iterator[None]:
    """Turn what a library raises for a file into one line; `whole` are its errors for files without damage."""
    try:
        yield
    except errors as error:
        reason = " ".join(str(error).split())[:200] or "fewer rows than it says"
        hint = "Write it in another way." if isinstance(error, (*_WHOLE, *whole)) else "Copy the file again."
        raise CorruptDataError(f"{what} ({reason})", where=path, hint=hint) from error


def cut_short(path: Path, offset: int) -> CorruptDataError:
    return CorruptDataError(
        f"cut short: the sample at byte {offset:,} is not all there", where=path, hint="Copy the file again."
    )


class Ranges(Container):
    """Samples at byte ranges, which the scan finds."""

    spans: ByteSpans

    def files_of(self, indices: Iterable[int]) -> list[Path]:
        return list(dict.fromkeys(self.spans.place(index)[0] for index in indices))

    def file_sizes(self) -> npt.NDArray[np.int64]:
        return self.spans.sizes()

    def locate(self, index: int) -> str:
        path, offset, _ = self.spans.place(index)
        return f"{path}: sample at byte {offset:,}"
