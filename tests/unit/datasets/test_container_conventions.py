"""Conventions of a container's library and its users: planes, axes, missing labels, files beside the data."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from storebench.datasets import Dataset, DatasetSpec, open_dataset
from storebench.errors import CorruptDataError, MissingDependencyError, StorebenchError, UsageError
from tests.support.container_files import example, mds, record, write_tar
from tests.support.dataset_files import pixels
from tests.support.foreign_files import datum, numbered, write_lmdb
from tests.support.photo_folders import photo_file

Write = Callable[[Path], str]
Cli = Callable[..., Any]
JPEG, BMP = photo_file(0, (40, 30)), photo_file(0, (8, 8), "BMP")
RAW = pixels(5, 20, 30, 3)


def opened(text: str | Path, **options: Any) -> Dataset:
    return open_dataset(DatasetSpec(name=f"container:{text}", **options))


def labels(dataset: Dataset) -> list[int]:
    return [dataset.sample(index)[1] for index in range(len(dataset))]


def assert_images(dataset: Dataset, images: np.ndarray) -> None:
    assert len(dataset) == len(images)
    for index, image in enumerate(images):
        np.testing.assert_array_equal(dataset.sample(index)[0], image)


# Caffe's planes.


def _planes(folder: Path, images: np.ndarray) -> Path:
    planar = images.transpose(0, 3, 1, 2)
    values = [datum(data=image.tobytes(), label=1, shape=image.shape) for image in planar]
    return write_lmdb(folder, numbered(values))


def test_planes_of_caffe_are_blue_green_red_and_the_line_says_so(tmp_path: Path) -> None:
    dataset = opened(_planes(tmp_path / "colour", RAW[..., ::-1]))
    assert_images(dataset, RAW)
    assert "each Datum taken as blue, green, red" in dataset.layout_note
    assert dataset.original_info is None
    with pytest.raises(UsageError, match="pixels of one size"):
        opened(tmp_path / "colour", image_size=64)
    grey = opened(_planes(tmp_path / "grey", RAW[..., :1]))
    assert_images(grey, RAW[..., :1])
    encoded = opened(write_lmdb(tmp_path / "encoded", numbered([datum(data=JPEG, label=1)])))
    assert encoded.original(0)[0] == JPEG
    assert "Datum" not in grey.layout_note + encoded.layout_note


TWO_BYTES = [b"BM", b"\xff\xd8", *(b"P%d" % number for number in range(1, 7))]


@pytest.mark.parametrize("first", range(len(TWO_BYTES)))
def test_pixels_of_known_sides_are_pixels_whatever_they_begin_with(first: int, tmp_path: Path) -> None:
    images = RAW.copy()
    images[1].flat[:2] = images[0].flat[:2] = np.frombuffer(TWO_BYTES[first], np.uint8)
    sides = {"image/height": 20, "image/width": 30, "image/channels": 3, "label": 0}
    records = [record(example({"image_raw": image.tobytes(), **sides})) for image in images]
    (tmp_path / "a.tfrecord").write_bytes(b"".join(records))
    assert_images(opened(tmp_path / "a.tfrecord"), images)
    rows = [(np.array([30, 20, 3], "<u4").tobytes() + b"RGB" + image.tobytes(), 0) for image in images]
    index = Path(mds(tmp_path / "mds", rows)) / "index.json"
    index.write_text(index.read_text().replace('"jpeg"', '"pil"'))
    assert_images(opened(index.parent), images)
    values = [datum(data=image.tobytes(), label=1, shape=(3, 20, 30)) for image in images]
    expected = images.reshape(5, 3, 20, 30).transpose(0, 2, 3, 1)[..., ::-1]
    assert_images(opened(write_lmdb(tmp_path / "lmdb", numbered(values))), expected)


# The axes of HDF5.

MATLAB = {"MATLAB_class": np.bytes_("uint8")}


def _h5(path: Path, images: np.ndarray, classes: Any = None, matlab: Any = None) -> Path:
    with h5py.File(path, "w", userblock_size=512 if matlab else 0) as file:
        file["X"] = images
        if classes is not None:
            file["y"] = classes
        for item in file.values() if matlab else ():
            item.attrs.update(matlab)
    return path


N = np.arange(5)
THIN = pixels(5, 3, 40, 3)  # its second axis could be channels, too
AXES: dict[str, tuple[np.ndarray, np.ndarray, dict[str, Any], str]] = {
    "N x H x W x C": (RAW, RAW, {"classes": N}, ""),
    "N x C x H x W": (RAW.transpose(0, 3, 1, 2), RAW, {"classes": N}, ""),
    "H x W x C x N": (RAW.transpose(1, 2, 3, 0), RAW, {"classes": N.reshape(1, 5)}, ""),
    "H x W x 3 x 3": (RAW[:3].transpose(1, 2, 3, 0), RAW[:3], {"classes": N[:3]}, ""),
    "both, last axis first": (THIN, THIN, {"classes": N}, "X taken as N x H x W x C"),
    "grey": (RAW[..., 0], RAW[..., :1], {"classes": N.reshape(5, 1)}, ""),
    "a single image": (RAW[0], RAW[:1], {"classes": [0]}, ""),
    "MATLAB": (
        RAW.transpose(0, 3, 2, 1), RAW, {"classes": N.reshape(5, 1), "matlab": MATLAB}, "MATLAB's H x W x C x N"
    ),
    "MATLAB, grey": (RAW[..., 0].transpose(0, 2, 1), RAW[..., :1], {"matlab": MATLAB}, "MATLAB's H x W x N"),
}  # fmt: skip


@pytest.mark.parametrize("case", AXES)
def test_images_are_upright_whatever_the_order_of_their_axes(case: str, tmp_path: Path) -> None:
    stored, images, options, note = AXES[case]
    dataset = opened(_h5(tmp_path / "a", stored, **options))
    assert_images(dataset, images)
    if "classes" in options:
        assert labels(dataset) == list(range(len(images)))
    assert note in dataset.layout_note
    assert bool(note) == ("taken as" in dataset.layout_note)


# Arrays of HDF5 that are not whole in their file, and filters that are not installed.


def _virtual(path: Path) -> Path:
    with h5py.File(path, "w") as file:
        file["part"] = RAW
        layout = h5py.VirtualLayout(RAW.shape, "u1")
        layout[:] = h5py.VirtualSource(".", "part", RAW.shape)
        file.create_virtual_dataset("images", layout)
    return path


def _linked(path: Path, link: Any, name: str = "images") -> Path:
    with h5py.File(path.with_name("other.h5"), "w") as other, h5py.File(path, "w") as file:
        other["values"] = RAW
        file["images" if name != "images" else "labels"] = RAW if name != "images" else np.arange(5)
        file[name] = link
    return path


def _raw_file(path: Path) -> Path:
    path.with_name("pixels.bin").write_bytes(RAW.tobytes())
    with h5py.File(path, "w") as file:
        file.create_dataset("images", RAW.shape, "u1", external=[("pixels.bin", 0, RAW.nbytes)])
    return path


def _filtered(path: Path, code: int) -> Path:
    with h5py.File(path, "w") as file:
        settings = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        settings.set_chunk((1, *RAW.shape[1:]))
        settings.set_filter(code, h5py.h5z.FLAG_OPTIONAL, (2, 2, 1, 1440, 5, 1, 0))
        space = h5py.h5s.create_simple(RAW.shape)
        h5py.h5d.create(file.id, b"images", h5py.h5t.NATIVE_UINT8, space, settings)
    return path


def _object(path: Path, kind: str, **attributes: Any) -> Path:
    values = np.arange(5, dtype=np.uint16).reshape(1, 5)
    _h5(path, RAW.transpose(0, 3, 2, 1), values, matlab=MATLAB)
    with h5py.File(path, "a") as file:
        file["y"].attrs.update({"MATLAB_class": np.bytes_(kind), **attributes})
    return path


NOT_WHOLE: dict[str, tuple[Write, type[StorebenchError], str]] = {
    "virtual": (lambda path: str(_virtual(path)), UsageError, "images is a virtual data set, which is not read"),
    "external link": (
        lambda path: str(_linked(path, h5py.ExternalLink("other.h5", "values"))), UsageError,
        "images is a link to other.h5, which is not read",
    ),
    "broken link": (lambda path: str(_linked(path, h5py.SoftLink("/gone"))), UsageError, "a link to /gone"),
    "raw file": (lambda path: str(_raw_file(path)), UsageError, "images is in the file .*pixels.bin"),
    "Blosc": (
        lambda path: str(_filtered(path, 32001)), MissingDependencyError,
        r"needs the filter 32001 of HDF5, which is not installed\. Run: pip install hdf5plugin",
    ),
    "a cell": (lambda path: str(_object(path, "cell")), UsageError, "y is a cell of MATLAB"),
}  # fmt: skip


@pytest.mark.parametrize("case", NOT_WHOLE)
def test_an_array_that_cannot_be_read_is_named_and_not_called_damaged(case: str, tmp_path: Path) -> None:
    write, kind, says = NOT_WHOLE[case]
    with pytest.raises(kind, match=says) as refused:
        opened(write(tmp_path / "a.h5"))
    assert "again" not in str(refused.value)


# Samples without a label.


def _tar(path: Path, classes: Sequence[Any]) -> str:
    members: dict[str, bytes] = {}
    for at, label in enumerate(classes):
        members[f"{at}.jpg"] = JPEG
        if label is not None:
            members[f"{at}.cls"] = str(label).encode()
    return str(write_tar(path, members))


def _parquet(path: Path, classes: Sequence[Any], names: Sequence[str] = ()) -> str:
    rows = pa.table({"image": [JPEG] * len(classes), "label": classes})
    if names:
        about = {"info": {"features": {"label": {"names": names}}}}
        rows = rows.replace_schema_metadata({"huggingface": json.dumps(about)})
    pq.write_table(rows, path)
    return str(path)


def _tfrecord(path: Path, classes: Sequence[Any]) -> str:
    features = [{"image": JPEG} | ({} if label is None else {"label": label % 2**64}) for label in classes]
    path.write_bytes(b"".join(record(example(dict(values))) for values in features))
    return str(path)


def _caffe(path: Path, classes: Sequence[Any]) -> str:
    return str(write_lmdb(path, numbered([datum(data=JPEG, label=label % 2**64) for label in classes])))


def _mds(path: Path, classes: Sequence[Any]) -> str:
    return mds(path, [(JPEG, label) for label in classes])


def _hdf5(path: Path, classes: Sequence[Any]) -> str:
    return str(_h5(path, pixels(len(classes), 20, 30, 3), np.array(classes)))


def _paired(path: Path, classes: Sequence[Any]) -> str:
    """Write images and labels under keys of the same number."""
    texts = [(b"label-%d" % at, b"%d" % label) for at, label in enumerate(classes) if label is not None]
    return str(write_lmdb(path, [*numbered([JPEG] * len(classes), b"image-%d"), *texts]))


KINDS: dict[str, Callable[[Path, Sequence[Any]], str]] = {
    "tar": _tar, "Parquet": _parquet, "TFRecord": _tfrecord, "Caffe": _caffe, "LMDB": _paired, "MDS": _mds,
    "HDF5": _hdf5,
}  # fmt: skip
TEN = [0, 1, -1, 2, -1, 0]


@pytest.mark.parametrize("kind", KINDS)
def test_samples_whose_label_is_minus_one_are_left_out_and_counted(kind: str, tmp_path: Path) -> None:
    dataset = opened(KINDS[kind](tmp_path / "a", TEN))
    assert (labels(dataset), dataset.info.class_names) == ([0, 1, 2, 0], ("0", "1", "2"))
    assert dataset.layout_note.count("2 samples without a label (-1) left out") == 1
    nothing = opened(KINDS[kind](tmp_path / "b", [-1, -1]))
    assert (labels(nothing), nothing.info.class_names) == ([0, 0], ("images",))
    assert "no label found, so every label is 0" in nothing.layout_note


@pytest.mark.parametrize("kind", ["tar", "Parquet", "TFRecord", "LMDB"])
def test_samples_without_a_label_are_left_out_and_counted(kind: str, tmp_path: Path) -> None:
    for name, classes in (("a", [None, 1, 0]), ("b", [1, 0, None])):
        dataset = opened(KINDS[kind](tmp_path / name, classes))
        assert (labels(dataset), dataset.info.class_names) == ([1, 0], ("0", "1"))
        assert "1 sample without a label left out" in dataset.layout_note


UNLABELLED: dict[str, tuple[Sequence[Any], Sequence[str], list[int], Sequence[str], str]] = {
    "names": ([0, 1, -1, 1], ("cat", "dog"), [0, 1, 1], ("cat", "dog"), "1 sample without a label (-1)"),
    "not a number": ([1.0, float("nan"), 0.0], (), [1, 0], ("0", "1"), "1 sample without a label left out"),
    "signs": ([1, -1, 1], (), [1, 0, 1], ("-1", "1"), ""),
}


@pytest.mark.parametrize("case", UNLABELLED)
def test_no_label_is_never_a_class_that_moves_the_others(case: str, tmp_path: Path) -> None:
    classes, names, expected, kept, note = UNLABELLED[case]
    dataset = opened(_parquet(tmp_path / "a", classes, names))
    assert (labels(dataset), dataset.info.class_names) == (expected, tuple(kept))
    assert note in dataset.layout_note
    assert ("without a label" in dataset.layout_note) == bool(note)


def test_two_negative_labels_beside_names_and_a_field_without_labels_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CorruptDataError, match="there are names of 2 classes"):
        opened(_parquet(tmp_path / "a", [0, 1, -1, -2], ("cat", "dog")))
    with pytest.raises(UsageError, match="no sample has a label in label"):
        opened(_parquet(tmp_path / "b", [-1, -1]) + "#image,label")


# Types of Arrow, and files beside the data.

FILES = [BMP, BMP[:-1] + b"\x07"] * 3
ENDS = pa.array(range(1, 7), pa.int32())
TYPES: dict[str, Any] = {
    "binary_view": pa.array(FILES, pa.binary_view()),
    "dictionary": pa.array(FILES).dictionary_encode(),
    "struct": pa.StructArray.from_arrays([pa.array(FILES, pa.binary_view())], ["bytes"]),
}
TEXTS = pa.array(["cat", "dog"] * 3)
NAMES = [TEXTS, TEXTS.cast(pa.string_view()), TEXTS.cast(pa.large_string()), TEXTS.dictionary_encode()]


def _write_rows(path: Path, rows: pa.Table, *, stream: bool = True) -> Path:
    kind = pa.ipc.new_stream if stream else pa.ipc.new_file
    with pa.OSFile(str(path), "wb") as sink, kind(sink, rows.schema) as writer:
        writer.write_table(rows)
    return path


@pytest.mark.parametrize("kind", TYPES)
def test_images_and_labels_are_read_from_every_type_of_bytes(kind: str, tmp_path: Path) -> None:
    digests = pa.array([bytes(16)] * 6, pa.binary(16))
    for number, names in enumerate(NAMES):
        rows = pa.table({"photo": TYPES[kind], "label": names, "md5": digests})
        paths = [_write_rows(tmp_path / f"{number}-{way}.arrow", rows, stream=way) for way in (False, True)]
        pq.write_table(rows, tmp_path / f"{number}.parquet")
        for path in (*paths, tmp_path / f"{number}.parquet"):
            dataset = opened(path)
            assert [dataset.original(index) for index in range(6)] == list(
                zip(FILES, [0, 1] * 3, strict=True)
            )
            assert dataset.info.class_names == ("cat", "dog")


ROWS = pa.table({"image": FILES, "label": [0, 1] * 3})


def _cached(folder: Path, *beside: str) -> Path:
    """Write a prepared dataset, and beside it results of other commands of Hugging Face."""
    folder.mkdir(parents=True)
    _write_rows(folder / "photos-train.arrow", ROWS)
    (folder / "dataset_info.json").write_text("{}")
    for name in beside:
        _write_rows(folder / name, ROWS if "x" in name else pa.table({"indices": [3, 1]}))
    return folder


CACHES = (
    "cache-0a1b2c3dx.arrow",
    "cache-1122334455667788.arrow",
    "cache-x_00001_of_00002.arrow",
    "tmpab1_x9yz",
)


def test_caches_beside_the_data_are_left_out(tmp_path: Path) -> None:
    folder = _cached(tmp_path / "a", *CACHES, "photos-x.arrow.incomplete")
    for text in (str(folder), f"{folder}/*"):
        (folder / "dataset_info.json").unlink(missing_ok=True)  # which a pattern would name
        dataset = opened(text)
        assert labels(dataset) == [0, 1] * 3
        assert "cache" not in dataset.layout_note
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": "photos-train.arrow"}]}))
    assert labels(opened(folder)) == [0, 1] * 3
    with_test = _cached(tmp_path / "c", *CACHES)
    _write_rows(with_test / "photos-test.arrow", ROWS)
    assert labels(opened(with_test)) == [0, 1] * 3


SELECTIONS: list[dict[str, Any]] = [
    {"_indices_files": [{"filename": "indices.arrow"}]},
    {"_indices_data_files": [{"filename": "indices.arrow"}]},
    {"_data_files": [{"filename": "photos-train.arrow", "skip": 2, "take": 3}]},
]


@pytest.mark.parametrize("state", SELECTIONS)
def test_a_selection_is_refused_by_name(state: dict[str, Any], cli: Cli, tmp_path: Path) -> None:
    folder = _cached(tmp_path / "a")
    about = {"_data_files": [{"filename": "photos-train.arrow"}], "_indices_files": None} | state
    (folder / "state.json").write_text(json.dumps(about))
    done = cli("convert", "lmdb", "--dataset", f"hf:{folder}")
    assert done.returncode == 2
    assert "a selection of the rows" in done.stderr
    assert "flatten_indices() and save the dataset again" in done.stderr


def test_shards_that_the_index_does_not_list_are_counted(tmp_path: Path) -> None:
    name = Path(mds(tmp_path / "a", [(BMP, 0), (BMP, 1)]))
    (tmp_path / "a" / "shard.00009.mds").write_bytes(b"more")
    assert "1 shard that the index does not list left out" in opened(name).layout_note
