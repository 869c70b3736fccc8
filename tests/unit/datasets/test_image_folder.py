"""Folders as people have them: what a layout becomes, what is left out and said, and what is refused."""

import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image as PilImage

from storebench.datasets import Dataset, DatasetSpec, open_dataset
from storebench.errors import CorruptDataError, DataNotFoundError, StorebenchError
from storebench.formats import parse_backend
from storebench.settings.words import Split
from storebench.stores.convert import BuildOptions, ensure_store
from tests.support.dataset_files import digests, image_file
from tests.support.photo_folders import photo, photo_file

LATIN = os.fsdecode(b"\xe9")


def open_at(path: Path, **options: Any) -> Dataset:
    return open_dataset(DatasetSpec(name=f"folder:{path}", **options))


def write(path: Path, size: tuple[int, int] = (300, 280), number: int = 0, kind: str = "JPEG") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(photo_file(number, size, kind))
    return path


def lay_out(root: Path, text: str) -> Path:
    """Make the files and folders (with a slash at the end) of a layout; all but texts are JPEG files."""
    for number, name in enumerate(text.split()):
        path = root / name
        if name.endswith("/"):
            path.mkdir(parents=True, exist_ok=True)
        elif path.suffix in (".txt", ".xml", ".part") or path.name == "LICENSE":
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("no image")
        else:
            write(path, (40, 30), number)
    return root


def labels(dataset: Dataset) -> list[int]:
    return [dataset.sample(index)[1] for index in range(len(dataset))]


# Layout: classes and labels of the train split, labels of the test split (None without one), clauses of the note.
LAYOUTS: dict[str, tuple[str, str, list[int], list[int] | None, str]] = {
    "classes": ("zebra/1.jpg ant/a.JPG ant/deeper/b.jpg ant/n.txt", "ant zebra", [0, 0, 1], None, ""),
    "flat": ("1.jpg 2.jpg notes.txt", "images", [0, 0], None, "one class only, so every label is 0"),
    "other files": (
        "ant/1.jpg ant/LICENSE ant/c.part bee/2.jpg bee/sub/4.AVIF", "ant bee", [0, 1], None,
        "3 files that are no images, or of other formats, left out: .avif, .part, no ending",
    ),
    "loose": (
        "cat/1.jpg dog/2.jpg 3.jpg 4.jpg", "cat dog", [0, 1], None,
        "2 images beside the class folders left out: no class",
    ),
    "empty folders": (
        "cat/1.jpg fox/2.jpg dog/3.heic empty/", "cat fox", [0, 1], None,
        "2 folders without an image left out, no class: dog/, empty/",
    ),
    "hidden": ("cat/1.jpg dog/2.jpg .trash/3.jpg cat/.thumbnails/1.png cat/.4.jpg", "cat dog", [0, 1], None, ""),
    "of a system": ("cat/1.jpg dog/2.jpg @eaDir/1.jpg/thumb.jpg cat/#recycle/1.jpg", "cat dog", [0, 1], None, ""),
    "splits": ("train/a/1.jpg train/b/2.jpg train/b/3.jpg val/b/4.jpg", "a b", [0, 1, 1], [1], ""),
    "flat splits": ("Training/1.jpg Training/2.jpg VALID/3.jpg", "images", [0, 0], [0], "one class only"),
    "beside splits": (
        "train/cat/1.jpg test/cat/2.jpg val/cat/1.jpg train_masks/cat/1.jpg", "cat", [0], [0],
        "beside the splits, test/, train_masks/ left out",
    ),
    "two trains": ("train/cat/1.jpg training/cat/2.jpg", "cat", [0], None, "beside the splits, training/ left out"),
    "beside flat splits": ("train/1.jpg train_masks/2.jpg test/3.jpg", "images", [0], [0], "train_masks/ left out"),
    "missing classes": ("train/a/1.jpg val/a/1.jpg val/b/2.jpg", "a", [0], [0], "one class only"),
    "a class called train": ("bus/1.jpg car/1.jpg train/1.jpg", "bus car train", [0, 1, 2], None, ""),
    "no UTF-8": (f"train/z/1.jpg train/{LATIN}/2.jpg val/{LATIN}/3.jpg", r"z \xe9", [0, 1], [1], ""),
}  # fmt: skip


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_layout_becomes_classes_splits_and_notes(name: str, tmp_path: Path) -> None:
    layout, classes, train, test, note = LAYOUTS[name]
    dataset = open_at(lay_out(tmp_path, layout))
    assert dataset.info.class_names == tuple(classes.split())
    assert labels(dataset) == train
    assert note in dataset.layout_note
    assert dataset.info.provenance.note == dataset.layout_note
    if test is None:
        with pytest.raises(DataNotFoundError, match="no test split"):
            open_at(tmp_path, split=Split.TEST)
    else:
        assert labels(open_at(tmp_path, split=Split.TEST)) == test


LIKE = "may be splits or classes.*Name .* to use it alone"
BOTH = "holds folders of a train and of a test split"

REFUSED: dict[str, tuple[str, type[StorebenchError], str]] = {
    "missing/": ("", DataNotFoundError, "no such folder"),
    "": ("", DataNotFoundError, "no images in it"),
    "empty class": ("a/", DataNotFoundError, "only 1 folder without images in it"),
    "test only": (
        "test/cat/1.jpg labels/", DataNotFoundError,
        "only a test split, test/, and no training images.*--split test",
    ),
    "split or class": ("val/steam/1.jpg bus/1.jpg", CorruptDataError, LIKE),
    "splits below": ("images/train/cat/1.jpg images/val/cat/2.jpg", CorruptDataError, BOTH),
    "test1": ("train/1.jpg test1/2.jpg", CorruptDataError, LIKE),
    "years": ("train2017/cat/1.jpg val2017/cat/2.jpg", CorruptDataError, LIKE),
    "sets": ("training_set/cat/1.jpg test_set/cat/2.jpg", CorruptDataError, LIKE),
    "unlabeled": ("train/1.jpg unlabeled/2.jpg", CorruptDataError, LIKE),
    "splits in classes": ("cat/train/1.jpg cat/val/2.jpg dog/train/3.jpg dog/val/4.jpg", CorruptDataError, BOTH),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_layout_of_unclear_meaning_is_refused(name: str, tmp_path: Path) -> None:
    layout, kind, says = REFUSED[name]
    lay_out(tmp_path, layout)
    with pytest.raises(kind, match=says):
        open_at(tmp_path / name if name.endswith("/") else tmp_path)


def _cut(path: Path) -> None:
    path.write_bytes(image_file()[:200])


def _fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (_cut, r"a/1\.jpg: a JPEG that is cut short"),
        (Path.unlink, r"a/1\.jpg: cannot be read"),
        (_fifo, r"a/1\.jpg: not a regular file"),
    ],
)
def test_an_image_that_cannot_be_read_is_named(
    damage: Callable[[Path], None], says: str, tmp_path: Path
) -> None:
    dataset = open_at(lay_out(tmp_path, "a/1.jpg a/2.jpg"))
    damage(tmp_path / "a" / "1.jpg")
    dataset.sample(1)
    with pytest.raises((CorruptDataError, DataNotFoundError), match=says):
        dataset.sample(0)


def test_the_fingerprint_follows_names_and_content_not_place_or_time(tmp_path: Path) -> None:
    for name in ("one", "two", "three"):
        lay_out(tmp_path / name, f"a/1.jpg b/2{LATIN}.jpg")
    write(tmp_path / "two" / "a" / "1.jpg", number=7)
    third = tmp_path / "three" / "b" / f"2{LATIN}.jpg"
    third.rename(third.with_name(os.fsdecode(b"2\xe8.jpg")))
    one, two, three = (open_at(tmp_path / name) for name in ("one", "two", "three"))
    os.utime(tmp_path / "one" / "a" / "1.jpg", (5, 5))
    assert open_at(tmp_path / "one").info.fingerprint == one.info.fingerprint
    assert len({one.info.fingerprint, two.info.fingerprint, three.info.fingerprint}) == 3
    assert digests(pickle.loads(pickle.dumps(three))) == digests(three) == digests(one)


# The size of the samples.


def _noise(path: Path) -> None:
    large = np.random.default_rng(7).integers(0, 256, (700, 700, 3), dtype=np.uint8)
    PilImage.fromarray(large).save(path.with_suffix(".tif"), compression="tiff_lzw")


def _long_segments(path: Path) -> None:
    segments = b"".join(b"\xff\xed" + (60_002).to_bytes(2, "big") + bytes(60_000) for _ in range(6))
    content = photo_file(3, (500, 400), "JPEG")
    path.write_bytes(content[:2] + segments + content[2:])


@pytest.mark.parametrize(
    ("second", "shape"),
    [
        (lambda path: write(path, (64, 48)), (48, 64, 3)),
        (lambda path: write(path, (65, 48)), (256, 256, 3)),
        (lambda path: write(path, (300, 200)), (256, 256, 3)),
        (_noise, (256, 256, 3)),  # its size stands at its end
        (_long_segments, (256, 256, 3)),
    ],
)
def test_small_images_of_one_size_stay_and_others_become_256(
    second: Callable[[Path], object], shape: tuple[int, int, int], tmp_path: Path
) -> None:
    write(tmp_path / "a" / "1.png", (64, 48), kind="PNG")
    second(tmp_path / "a" / "2.jpg")
    dataset = open_at(tmp_path)
    assert dataset.info.image_shape == shape
    if shape == (48, 64, 3):
        np.testing.assert_array_equal(dataset.sample(0)[0], np.asarray(photo(0, (64, 48))))
    assert open_at(tmp_path, image_size=32).info.image_shape == (32, 32, 3)


def test_a_large_resize_is_said_with_its_factor(tmp_path: Path) -> None:
    messages: list[str] = []
    photos = tmp_path / "photos"
    for number in range(2):
        write(photos / "a" / f"{number}.jpg", (32, 32), number)
    spec, options = DatasetSpec(name=f"folder:{photos}", image_size=256), BuildOptions(say=messages.append)
    store = ensure_store(spec, parse_backend("lmdb"), tmp_path / "stores", options=options)
    clause = "images of 32 x 32 (median) become 256 x 256, 64 times the pixels"
    assert messages == ["lmdb+raw: one class only, so every label is 0", f"lmdb+raw: {clause}"]
    assert store.manifest.dataset.provenance.note == f"one class only, so every label is 0; {clause}"
    assert open_at(photos, image_size=8).resize_note.endswith("become 8 x 8, 1/16 of the pixels")
    assert open_at(photos, image_size=4096).resize_note.endswith("16,384 times the pixels")
    assert not open_at(photos, image_size=64).resize_note
    prints = [open_at(photos, image_size=size).info.fingerprint for size in (None, 32, 64)]
    assert prints[0] == prints[1] != prints[2]
    assert len({DatasetSpec(name="folder:x", image_size=size).store_id for size in (None, 256, 64)}) == 3


def grey(values: Any, dtype: Any) -> PilImage.Image:
    return PilImage.fromarray(np.asarray(values, dtype).reshape(16, 16))


@pytest.mark.parametrize(
    ("image", "ending", "found"),
    [
        (grey(np.linspace(0, 1, 256), np.float32), "tif", "floating-point pixels"),
        (grey(np.arange(256), np.int32), "tif", "signed or 32-bit pixels"),
        (grey(np.arange(256) * 257, np.uint16), "png", 255),
        (grey(np.arange(256) * 257, np.uint16), "tif", 255),
        (grey(np.arange(256), np.uint16), "png", "12 bits or fewer"),
        (grey(np.arange(256) * 15, np.uint16), "tif", "12 bits or fewer"),
        (grey(np.arange(256) * 257, np.uint16), "white.tif", "0 is white"),
        (grey(np.arange(256), np.uint8), "png", 255),
    ],
)
def test_pixels_of_more_than_eight_bits_are_scaled_or_refused(
    image: PilImage.Image, ending: str, found: str | int, tmp_path: Path
) -> None:
    (tmp_path / "a").mkdir()
    if "white" in ending:
        image.save(tmp_path / "a" / f"1.{ending}", tiffinfo={262: 0})
    else:
        image.save(tmp_path / "a" / f"1.{ending}")
    dataset = open_at(tmp_path)
    assert ("high byte" in dataset.info.provenance.note) == (image.mode == "I;16" and "white" not in ending)
    for read in (dataset.sample, dataset.original):
        if isinstance(found, str):
            with pytest.raises(CorruptDataError, match=found):
                read(0)
        else:
            read(0)
    if isinstance(found, int):
        assert dataset.sample(0)[0].max() == found


# Lists.


def open_list(path: Path, content: bytes, **options: Any) -> Dataset:
    (path / "train.txt").write_bytes(content)
    return open_dataset(DatasetSpec(name=f"list:{path / 'train.txt'}", **options))


def test_a_list_names_files_and_labels(tmp_path: Path) -> None:
    folder = write(tmp_path / "pictures" / "a b.jpg", number=1).parent
    outside = write(tmp_path / "elsewhere" / "2.jpg", number=2)
    dataset = open_list(folder, f"a b.jpg 2\n\n{outside} 0\n".encode())
    assert (labels(dataset), dataset.info.class_names) == ([2, 0], ("0", "1", "2"))
    assert dataset.original(1)[0] == outside.read_bytes()
    assert DatasetSpec(name=dataset.info.name).store_id.startswith("list-train.txt-")
    for text in ("\ufeffa b.jpg 1\r\na b.jpg\t2 \r\n", "a b.jpg\t 1\na b.jpg \t2"):
        dataset = open_list(folder, text.encode())
        assert labels(dataset) == [1, 2]
    one = open_list(folder, b"a b.jpg 3\n./a b.jpg 3\n")
    assert one.layout_note == "one class only, so every label is 3"


@pytest.mark.parametrize(
    "line",
    ["photo.jpg", "photo.jpg -1", "photo.jpg one", "7", "photo.jpg 100000", "a.jpg ²"],
)
def test_a_wrong_line_of_a_list_is_named(line: str, tmp_path: Path) -> None:
    with pytest.raises(CorruptDataError, match=r"train\.txt:2: a line without a path and a label") as refused:
        open_list(tmp_path, f"fine.jpg 1\n{line}\n".encode())
    assert len(str(refused.value)) < 500


def test_a_list_without_lines_files_or_test_split_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataNotFoundError, match=r"gone\.jpg: cannot be read"):
        open_list(tmp_path, b"gone.jpg 1\n").sample(0)
    with pytest.raises(CorruptDataError, match="a list without a line"):
        open_list(tmp_path, b"\n")
    with pytest.raises(DataNotFoundError, match="no test split"):
        open_list(tmp_path, b"gone.jpg 1\n", split=Split.TEST)


# The command line.


@pytest.mark.parametrize("words", [("convert", "original"), ("run", "original", "--compute", "none")])
def test_stores_among_the_images_are_refused(
    words: tuple[str, ...], cli: Callable[..., Any], tmp_path: Path
) -> None:
    write(tmp_path / "a" / "1.jpg")
    done = cli(*words, "--dataset", ".")  # whose stores would be in ./stores
    assert done.returncode == 2
    assert "the stores would be written among the images of ., and later be taken for images" in done.stderr
    assert not (tmp_path / "stores").exists()
    place = "--out" if words[0] == "convert" else "--stores"
    assert cli(*words, "--dataset", ".", place, ".cache/stores").returncode == 0


def test_a_path_is_a_folder_unless_a_dataset_has_its_name(cli: Callable[..., Any], tmp_path: Path) -> None:
    lay_out(tmp_path, "photos/a/1.jpg mnist/a/1.jpg")
    asked = ("convert", "lmdb", "--limit", "2", "--dataset")
    for text in ("photos", "./photos", str(tmp_path / "photos")):
        done = cli(*asked, text)
        assert done.returncode == 0, done.stderr
        assert f"--dataset {text}: read as the folder of images folder:{text}" in done.stderr
    known = cli(*asked, "mnist", "--synthetic")
    assert known.returncode == 0, known.stderr
    assert "the dataset of that name; write folder:mnist for the folder" in known.stderr
    assert cli(*asked, "./nowhere").returncode == 2
    assert cli(*asked, "mnits").returncode == 2
