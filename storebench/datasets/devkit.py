"""The classes of ImageNet's validation images, from Caffe's val.txt or the ILSVRC2012 devkit.

The devkit numbers the classes in its own order and stores the key in a MATLAB
file, which needs SciPy. ``val.txt``, from Caffe's caffe_ilsvrc12 archive, needs
nothing else.
"""

import codecs
import gzip
import io
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path

from storebench.datasets import tars
from storebench.datasets.matfile import check_mat
from storebench.datasets.sources import read_file
from storebench.errors import CorruptDataError, DataNotFoundError, MissingDependencyError

ARCHIVE = "ILSVRC2012_devkit_t12.tar.gz"
FOLDER = "ILSVRC2012_devkit_t12"
CAFFE_LIST = "val.txt"

_GROUND_TRUTH = "data/ILSVRC2012_validation_ground_truth.txt"
_META = "data/meta.mat"
_NO_MAT = (
    ValueError,
    TypeError,
    LookupError,
    ArithmeticError,
    AttributeError,
    MemoryError,
    NotImplementedError,
    OSError,
    struct.error,
    zlib.error,
)
"""Errors that SciPy, and the check before it, raise for bytes that are not a list of classes."""

_ARCHIVE_BYTES_MAX = 64 << 20
_FILE_BYTES_MAX = 16 << 20
"""Bound on the devkit's lists and Caffe's val.txt, which have less than 2 MB."""

MOST_CLASSES = 1_000_000


def validation_classes(folder: Path, names: Sequence[str], classes: Sequence[str] | None) -> list[str]:
    """Return the class (WordNet id) of every validation image.

    Parameters
    ----------
    folder
        Folder of val.txt or of the devkit (unpacked or not).
    names
        The images' file names, sorted.
    classes
        The classes of the train split, if known. val.txt numbers all 1,000 of
        them in sorted order, so it needs them.

    Raises
    ------
    DataNotFoundError
        There is neither val.txt nor a devkit.
    CorruptDataError
        The lists do not fit the images.
    MissingDependencyError
        The devkit is there but SciPy is not.
    """
    if (folder / CAFFE_LIST).is_file():
        return _from_caffe_list(folder / CAFFE_LIST, names, classes)
    truth, meta = _devkit_files(folder)
    numbers = _integers(truth, folder / _GROUND_TRUTH)
    if len(numbers) != len(names):
        raise CorruptDataError(
            f"{len(numbers)} lines of ground truth for {len(names)} images", where=folder / _GROUND_TRUTH
        )
    wnids = _read_meta(meta, folder / _META)
    try:
        return [wnids[number] for number in numbers]
    except KeyError as error:
        raise CorruptDataError(f"class {error} is not in {_META}", where=folder / _GROUND_TRUTH) from error


def _from_caffe_list(path: Path, names: Sequence[str], classes: Sequence[str] | None) -> list[str]:
    text = read_file(path, most_bytes=_FILE_BYTES_MAX).decode("utf-8-sig", "surrogateescape")
    pairs = dict(line.rsplit(maxsplit=1) for line in text.splitlines() if len(line.split()) == 2)
    missing = next((name for name in names if name not in pairs), None)
    if missing is not None:
        raise CorruptDataError(f"has no line for {missing}", where=path)
    numbers = _integers("\n".join(pairs[name] for name in names).encode(), path)
    if not 0 <= min(numbers) <= max(numbers) < MOST_CLASSES:
        raise CorruptDataError(
            f"holds a number that is not a class from 0 to {MOST_CLASSES - 1:,}", where=path
        )
    width = max(4, len(str(max(numbers))))
    known = classes or [f"class{number:0{width}d}" for number in range(max(numbers) + 1)]
    if max(numbers) >= len(known):
        raise CorruptDataError(
            f"counts {max(numbers) + 1} classes, the train split has {len(known)}",
            where=path,
            hint=f"Use {ARCHIVE} instead, which names them.",
        )
    return [known[number] for number in numbers]


def _integers(raw: bytes, where: Path) -> list[int]:
    try:
        return [int(word) for word in raw.removeprefix(codecs.BOM_UTF8).split()]
    except ValueError as error:
        raise CorruptDataError("holds something other than class numbers", where=where) from error


def _devkit_files(folder: Path) -> tuple[bytes, bytes]:
    """Return the bytes of the ground truth and of meta.mat."""
    for root in (folder / FOLDER, folder):
        if (root / _GROUND_TRUTH).is_file():
            truth, meta = (
                read_file(root / name, most_bytes=_FILE_BYTES_MAX) for name in (_GROUND_TRUTH, _META)
            )
            return truth, meta
    path = folder / ARCHIVE
    if not path.is_file():
        raise DataNotFoundError(
            "the classes of the validation images are not here",
            where=folder,
            hint=f"Put {ARCHIVE} there (or Caffe's {CAFFE_LIST}).",
        )
    return _from_archive(path)


def _from_archive(path: Path) -> tuple[bytes, bytes]:
    try:
        with gzip.open(path) as unzipped:
            data = unzipped.read(_ARCHIVE_BYTES_MAX + 1)
    except (EOFError, zlib.error, OSError) as error:
        raise CorruptDataError(f"a damaged gzip file ({error})", where=path) from error
    if len(data) > _ARCHIVE_BYTES_MAX:
        raise CorruptDataError("unpacks to far more than the devkit holds", where=path)
    lists = {}
    for member in tars.members(io.BytesIO(data), str(path)):
        name = member.name.removeprefix("./").removeprefix(f"{FOLDER}/")
        if name in (_GROUND_TRUTH, _META) and member.size > _FILE_BYTES_MAX:
            raise CorruptDataError(f"{member.size:,} bytes of {name}", where=path)
        lists[name] = data[member.offset : member.offset + member.size]
    try:
        return lists[_GROUND_TRUTH], lists[_META]
    except KeyError as error:
        raise CorruptDataError(f"lacks {error}", where=path) from error


def _read_meta(raw: bytes, where: Path) -> dict[int, str]:
    """Return the mapping from ILSVRC2012_ID to WordNet id for classes that have images of their own."""
    try:
        from scipy.io import loadmat  # type: ignore[import-untyped, unused-ignore]
    except ModuleNotFoundError as error:
        raise MissingDependencyError(
            "the devkit's meta.mat is a MATLAB file, and SciPy is not installed",
            where=where,
            hint=f"Run: pip install scipy. Or put Caffe's {CAFFE_LIST} beside the archive.",
        ) from error
    try:
        check_mat(raw)
        synsets = loadmat(io.BytesIO(raw), squeeze_me=True)["synsets"]
        return {int(row["ILSVRC2012_ID"]): str(row["WNID"]) for row in synsets if not row["num_children"]}
    except _NO_MAT as error:
        raise CorruptDataError(f"not the devkit's list of classes ({error})", where=where) from error
