"""Folders as people have them: splits, flat folders, lists, and images that are small or of one size."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image as PilImage

from storebench.datasets import Dataset, DatasetSpec, open_dataset
from storebench.errors import CorruptDataError, DataNotFoundError, UsageError
from storebench.formats import parse_backend
from storebench.settings.words import Split
from storebench.stores.convert import BuildOptions, ensure_store
from tests.support.photo_folders import photo, photo_file


def open_at(path: Path, **options: Any) -> Dataset:
    return open_dataset(DatasetSpec(name=f"folder:{path}", **options))


def write(path: Path, size: tuple[int, int] = (300, 280), number: int = 0, kind: str = "JPEG") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(photo_file(number, size, kind))
    return path


@pytest.mark.parametrize("name", ["test", "Valid"])
def test_a_folder_with_a_test_split_only_is_no_training_data(name: str, tmp_path: Path) -> None:
    write(tmp_path / name / "cat" / "1.jpg")
    (tmp_path / "labels").mkdir()
    with pytest.raises(
        DataNotFoundError, match=rf"only a test split, {name}/, and no training images.*--split test"
    ):
        open_at(tmp_path)
    assert len(open_at(tmp_path, split=Split.TEST)) == 1
    assert open_at(tmp_path / name).info.class_names == ("cat",)


def test_images_without_class_folders_are_one_class_and_said_to_be(tmp_path: Path) -> None:
    for number in range(3):
        write(tmp_path / f"{number}.jpg", number=number)
    (tmp_path / "notes.txt").write_text("no image")
    dataset = open_at(tmp_path)
    assert [dataset.sample(index)[1] for index in range(3)] == [0, 0, 0]
    assert dataset.info.class_names == ("images",)
    assert dataset.info.provenance.source == "image files without class folders"
    assert dataset.info.provenance.note == "one class only, so every label is 0"


@pytest.mark.parametrize("backend", ["lmdb", "lmdb+original"])
def test_images_beside_class_folders_are_counted_and_said(backend: str, tmp_path: Path) -> None:
    photos, messages = tmp_path / "photos", list[str]()
    for name in ("cat/1.jpg", "dog/2.jpg", "3.jpg", "4.jpg"):
        write(photos / name)
    spec = DatasetSpec(name=f"folder:{photos}")
    options = BuildOptions(say=messages.append)
    store = ensure_store(spec, parse_backend(backend), tmp_path / "stores", options=options)
    note = "2 images beside the class folders left out: no class"
    assert (store.manifest.count, store.manifest.dataset.provenance.note) == (2, note)
    assert [message.partition(": ")[2] for message in messages] == [note]


def test_images_of_other_formats_are_counted_and_said(tmp_path: Path) -> None:
    for name in (
        "train/cat/1.jpg",
        "train/dog/2.JPG",
        "train/cat/3.HEIC",
        "train/dog/sub/4.avif",
        "val/cat/5.heic",
    ):
        write(tmp_path / name)
    write(tmp_path / "val" / "cat" / "6.jpg")
    (tmp_path / "train" / "cat" / "notes.txt").write_text("no image")
    note = "2 files in other image formats left out: .avif, .heic"
    assert open_at(tmp_path).layout_note == open_at(tmp_path).info.provenance.note == note


def test_flat_train_and_val_folders_are_splits(tmp_path: Path) -> None:
    write(tmp_path / "train" / "1.jpg")
    write(tmp_path / "train" / "2.jpg")
    write(tmp_path / "val" / "3.jpg")
    assert (len(open_at(tmp_path)), len(open_at(tmp_path, split=Split.TEST))) == (2, 1)


@pytest.mark.parametrize(
    ("train", "test"),
    [
        ("Train", "Val"),
        ("TRAIN", "TEST"),
        ("training", "validation"),
        ("Training", "Testing"),
        ("training_set", "test_set"),
        ("train-images", "valid"),
    ],
)
@pytest.mark.parametrize("classes", ["cat dog", ""])
def test_splits_are_found_as_people_spell_them(train: str, test: str, classes: str, tmp_path: Path) -> None:
    for number, name in enumerate(classes.split() or [""]):
        write(tmp_path / train / name / "1.jpg", number=number)
        write(tmp_path / test / name / "1.jpg", number=number + 2)
    (tmp_path / "Annotations").mkdir()
    (tmp_path / "Annotations" / "1.xml").write_text("no image")
    for split in Split:
        dataset = open_at(tmp_path, split=split)
        assert dataset.info.class_names == (tuple(classes.split()) or ("images",))


@pytest.mark.parametrize(("first", "second"), [("Train", "train"), ("train", "training"), ("Test", "test")])
def test_two_folders_for_one_split_are_refused(first: str, second: str, tmp_path: Path) -> None:
    for name in (first, second):
        write(tmp_path / name / "cat" / "1.jpg")
    with pytest.raises(CorruptDataError, match=rf"both {first}/ and {second}/ may be the t\w+ split.*Rename"):
        open_at(tmp_path)


@pytest.mark.parametrize("name", ["Train", "train", "val", "Testing"])
def test_a_split_beside_class_folders_is_refused(name: str, tmp_path: Path) -> None:
    write(tmp_path / name / "steam" / "1.jpg")
    write(tmp_path / "bus" / "1.jpg")
    with pytest.raises(
        CorruptDataError, match=rf"{name}/ has class folders .*bus/ .*a split or a class.*Name "
    ):
        open_at(tmp_path)
    assert open_at(tmp_path / name).info.class_names == ("steam",)


def test_images_beside_both_splits_are_no_reason_to_refuse(tmp_path: Path) -> None:
    for name in ("Train/cat", "Val/cat", "examples", "test", "lost+found"):
        write(tmp_path / name / "1.jpg")
    for split in Split:
        assert open_at(tmp_path, split=split).info.class_names == ("cat",)


@pytest.mark.parametrize("name", ["train", "Train", "training", "valid", "Test"])
def test_a_class_may_be_called_like_a_split(name: str, tmp_path: Path) -> None:
    names = sorted(["bus", "car", name])
    for each in names:
        write(tmp_path / each / "1.jpg")
    assert open_at(tmp_path).info.class_names == tuple(names)


def test_nested_folders_belong_to_the_class_at_the_top(tmp_path: Path) -> None:
    write(tmp_path / "trip" / "2019" / "05" / "1.jpg")
    write(tmp_path / "trip" / "2.jpg")
    dataset = open_at(tmp_path)
    assert (len(dataset), dataset.info.class_names) == (2, ("trip",))


def test_small_images_of_one_size_stay_as_they_are(tmp_path: Path) -> None:
    for number in range(4):
        write(tmp_path / f"class{number % 2}" / f"{number}.png", (32, 24), number, "PNG")
    dataset = open_at(tmp_path)
    assert dataset.info.image_shape == (24, 32, 3)
    assert dataset.info.provenance.note == ""
    np.testing.assert_array_equal(dataset.sample(0)[0], np.asarray(photo(0, (32, 24))))
    assert open_at(tmp_path, image_size=48).info.image_shape == (48, 48, 3)


@pytest.mark.parametrize("other", [(33, 24), (300, 200)])
def test_images_of_several_sizes_become_256(other: tuple[int, int], tmp_path: Path) -> None:
    write(tmp_path / "a" / "1.jpg", (32, 24))
    write(tmp_path / "a" / "2.jpg", other)
    assert open_at(tmp_path).info.image_shape == (256, 256, 3)


def test_a_large_resize_is_said_with_its_factor(tmp_path: Path) -> None:
    messages: list[str] = []
    for number in range(2):
        write(tmp_path / "photos" / "a" / f"{number}.jpg", (32, 32), number)
    spec = DatasetSpec(name=f"folder:{tmp_path / 'photos'}", image_size=256)
    store = ensure_store(
        spec, parse_backend("lmdb"), tmp_path / "stores", options=BuildOptions(say=messages.append)
    )
    clause = "images of 32 x 32 (median) become 256 x 256, 64 times the pixels"
    assert messages == ["lmdb+raw: one class only, so every label is 0", f"lmdb+raw: {clause}"]
    assert store.manifest.dataset.provenance.note == f"one class only, so every label is 0; {clause}"
    shrunk = open_at(tmp_path / "photos", image_size=8)
    assert shrunk.info.provenance.note.endswith("become 8 x 8, 1/16 of the pixels")
    assert open_at(tmp_path / "photos", image_size=4096).resize_note.endswith("16,384 times the pixels")
    assert shrunk.resize_note
    assert not open_at(tmp_path / "photos", image_size=64).resize_note


def test_an_image_size_is_part_of_the_samples(tmp_path: Path) -> None:
    write(tmp_path / "a" / "1.jpg")
    sizes = (None, 256, 64)
    infos = [open_at(tmp_path, image_size=size).info for size in sizes]
    assert infos[0].fingerprint == infos[1].fingerprint != infos[2].fingerprint
    assert len({DatasetSpec(name="folder:x", image_size=size).store_id for size in sizes}) == 3


@pytest.mark.parametrize(
    ("name", "size", "message"),
    [
        ("mnist", 64, "the images of mnist have one size"),
        ("imagenet", 5000, "no image size is 5000"),
        ("imagenet", 1024, "no images of 1024 x 1024"),
    ],
)
def test_an_impossible_image_size_is_refused(name: str, size: int, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        open_dataset(DatasetSpec(name=name, image_size=size, synthetic=True))


def test_the_stand_in_of_imagenet_has_the_size_that_is_asked_for() -> None:
    dataset = open_dataset(DatasetSpec(name="imagenet", image_size=64, synthetic=True, limit=2))
    assert dataset.sample(1)[0].shape == dataset.info.image_shape == (64, 64, 3)


def test_a_list_names_files_and_labels(tmp_path: Path) -> None:
    write(tmp_path / "pictures" / "a b.jpg", (300, 280), 1)
    outside = write(tmp_path / "elsewhere" / "2.jpg", (300, 280), 2)
    listed = tmp_path / "pictures" / "train.txt"
    listed.write_text(f"a b.jpg 2\n\n{outside} 0\n")
    spec = DatasetSpec(name=f"list:{listed}")
    dataset = open_dataset(spec)
    assert [dataset.sample(index)[1] for index in range(2)] == [2, 0]
    assert dataset.info.class_names == ("0", "1", "2")
    assert dataset.original(1)[0] == outside.read_bytes()
    assert spec.store_id.startswith("list-train.txt-")
    with pytest.raises(DataNotFoundError, match="no test split"):
        open_dataset(DatasetSpec(name=f"list:{listed}", split=Split.TEST))


@pytest.mark.parametrize("text", ["\ufeff{line} 1\r\n{line}\t2 \r\n", "{line}\t 1\n{line} \t2"])
def test_a_list_may_have_a_byte_order_mark_and_tabs(text: str, tmp_path: Path) -> None:
    write(tmp_path / "a b.jpg")
    (tmp_path / "train.txt").write_bytes(text.format(line="a b.jpg").encode())
    dataset = open_dataset(DatasetSpec(name=f"list:{tmp_path / 'train.txt'}"))
    assert [dataset.sample(index)[1] for index in range(len(dataset))] == [1, 2]
    assert dataset.layout_note == "1 file listed more than once, each time as a sample"


def test_a_list_with_one_label_is_said_to_have_one_class(tmp_path: Path) -> None:
    write(tmp_path / "1.jpg")
    (tmp_path / "train.txt").write_text("1.jpg 3\n./1.jpg 3\n")
    dataset = open_dataset(DatasetSpec(name=f"list:{tmp_path / 'train.txt'}"))
    note = "one class only, so every label is 3; 1 file listed more than once, each time as a sample"
    assert dataset.layout_note == dataset.info.provenance.note == note


@pytest.mark.parametrize(
    "line",
    ["photo.jpg", "photo.jpg -1", "photo.jpg one", "7", "photo.jpg 100000", "a.jpg ²", "a" * 5000 + " 1"],
)
def test_a_wrong_line_of_a_list_is_named(line: str, tmp_path: Path) -> None:
    listed = tmp_path / "train.txt"
    listed.write_text(f"fine.jpg 1\n{line}\n", encoding="utf-8")
    with pytest.raises(CorruptDataError, match=r"train\.txt:2: a line without a path and a label") as refused:
        open_dataset(DatasetSpec(name=f"list:{listed}"))
    assert len(str(refused.value)) < 500


def test_a_list_that_names_a_missing_file_is_refused(tmp_path: Path) -> None:
    listed = tmp_path / "train.txt"
    listed.write_text("gone.jpg 1\n")
    with pytest.raises(DataNotFoundError, match=r"gone\.jpg: cannot be read"):
        open_dataset(DatasetSpec(name=f"list:{listed}")).sample(0)
    listed.write_text("\n")
    with pytest.raises(CorruptDataError, match="a list without a line"):
        open_dataset(DatasetSpec(name=f"list:{listed}"))


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
    for name in ("photos", "mnist"):
        write(tmp_path / name / "a" / "1.jpg", (40, 40))
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


def test_a_network_that_crops_more_than_the_images_have_is_refused(
    cli: Callable[..., Any], tmp_path: Path
) -> None:
    for number in range(2):
        write(tmp_path / "photos" / "a" / f"{number}.png", (32, 32), number, "PNG")
    done = cli("run", "lmdb", "--dataset", "photos/", "--model", "caffenet", "--out", "run")
    assert done.returncode == 2
    assert "caffenet needs images of 227 x 227, and these are 32 x 32" in done.stderr
    assert not (tmp_path / "run" / "records.jsonl").exists()


@pytest.mark.parametrize("test", ["val", "test"])
def test_splits_in_the_only_folder_are_refused_and_named(test: str, tmp_path: Path) -> None:
    for split in ("train", test):
        for name in ("cat", "dog"):
            write(tmp_path / "photos" / "images" / split / name / "1.jpg")
    with pytest.raises(
        DataNotFoundError, match=f"its only folder, images/, holds train/ and {test}/"
    ) as caught:
        open_at(tmp_path / "photos")
    assert f"Name {tmp_path / 'photos' / 'images'}." in str(caught.value)


def test_every_ending_of_an_image_is_read(tmp_path: Path) -> None:
    names = ("ant/1.jpe", "bee/2.jfif", "cat/3.TIF", "dog/photo", "eel/5.jpg")
    for number, name in enumerate(names):
        write(tmp_path / name, number=number, kind="TIFF" if name.endswith("TIF") else "JPEG")
    (tmp_path / "dog" / "README").write_text("no image")
    dataset = open_at(tmp_path)
    assert [dataset.sample(index)[1] for index in range(len(dataset))] == [0, 1, 2, 3, 4]
    assert dataset.info.class_names == ("ant", "bee", "cat", "dog", "eel")


def test_folders_without_an_image_that_is_read_are_no_class_and_named(tmp_path: Path) -> None:
    write(tmp_path / "cat" / "1.jpg")
    write(tmp_path / "fox" / "2.jpg")
    write(tmp_path / "dog" / "3.heic")
    (tmp_path / "empty").mkdir()
    dataset = open_at(tmp_path)
    assert dataset.info.class_names == ("cat", "fox")
    note = "2 folders without an image that is read left out, no class: dog/ (.heic), empty/ (empty)"
    assert note in dataset.layout_note


@pytest.mark.parametrize("name", ["@eaDir", "#recycle", "$RECYCLE.BIN", "__MACOSX", "lost+found"])
@pytest.mark.parametrize("inside", ["", "cat"])
def test_folders_that_systems_make_are_left_out_and_named(name: str, inside: str, tmp_path: Path) -> None:
    write(tmp_path / "cat" / "1.jpg")
    write(tmp_path / "dog" / "2.jpg")
    write(tmp_path / inside / name / "1.jpg" / "thumb.jpg", (24, 24))
    dataset = open_at(tmp_path)
    assert (len(dataset), dataset.info.class_names) == (2, ("cat", "dog"))
    assert f"1 folder that a system made left out: {name}" in dataset.layout_note


@pytest.mark.parametrize(
    "names",
    [
        ("train/1.jpg", "test1/2.jpg"),
        ("train/1.jpg", "train_masks/2.jpg", "test/3.jpg"),
        ("train2017/1.jpg", "val2017/2.jpg"),
        ("train2017/cat/1.jpg", "val2017/cat/2.jpg"),
        ("trainA/1.jpg", "testA/2.jpg"),
        ("train/1.jpg", "unlabeled/2.jpg"),
        ("ILSVRC2012_img_train/a/1.jpg", "ILSVRC2012_img_val/a/2.jpg"),
    ],
)
def test_folders_that_look_like_splits_are_no_classes(names: tuple[str, ...], tmp_path: Path) -> None:
    for name in names:
        write(tmp_path / name)
    with pytest.raises(CorruptDataError, match="look like splits, not classes"):
        open_at(tmp_path)


def test_a_class_called_train_stays_a_class(tmp_path: Path) -> None:
    for name in ("bus", "car", "train"):
        write(tmp_path / name / "1.jpg")
    assert open_at(tmp_path).info.class_names == ("bus", "car", "train")


def test_folders_beside_the_splits_are_named(tmp_path: Path) -> None:
    for name in ("train", "val", "train_masks"):
        write(tmp_path / name / "cat" / "1.jpg")
    assert "beside the splits, train_masks/ left out" in open_at(tmp_path).layout_note


def test_large_images_whose_size_stands_at_their_end_count(tmp_path: Path) -> None:
    write(tmp_path / "a" / "1.png", (64, 64), kind="PNG")
    large = np.random.default_rng(7).integers(0, 256, (700, 700, 3), dtype=np.uint8)
    PilImage.fromarray(large).save(tmp_path / "a" / "2.tif", compression="tiff_lzw")
    assert open_at(tmp_path).info.image_shape == (256, 256, 3)


def test_a_jpeg_with_long_segments_before_its_size_counts(tmp_path: Path) -> None:
    write(tmp_path / "a" / "1.png", (64, 64), kind="PNG")
    segments = b"".join(b"\xff\xed" + (60_002).to_bytes(2, "big") + bytes(60_000) for _ in range(6))
    photograph = photo_file(3, (500, 400), "JPEG")
    (tmp_path / "a" / "3.jpg").write_bytes(photograph[:2] + segments + photograph[2:])
    assert open_at(tmp_path).info.image_shape == (256, 256, 3)


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
        (grey(np.arange(256), np.uint8), "png", 255),
    ],
)
def test_pixels_of_more_than_eight_bits_are_scaled_or_refused_by_name(
    image: PilImage.Image, ending: str, found: str | int, tmp_path: Path
) -> None:
    (tmp_path / "a").mkdir()
    image.save(tmp_path / "a" / f"1.{ending}")
    dataset = open_at(tmp_path)
    assert ("high byte" in dataset.info.provenance.note) == (image.mode == "I;16")
    for read in (dataset.sample, dataset.original):
        if isinstance(found, str):
            with pytest.raises(CorruptDataError, match=found):
                read(0)
        else:
            read(0)
    if isinstance(found, int):
        assert dataset.sample(0)[0].max() == found


@pytest.mark.parametrize("end", [0, -1])
def test_other_content_of_the_same_name_size_and_time_is_noticed(end: int, tmp_path: Path) -> None:
    content = bytearray(b"BM" + bytes(3_000_000))
    paths = [tmp_path / "cat" / f"{number}.bmp" for number in range(24)]
    paths[0].parent.mkdir()
    for path in paths:
        path.write_bytes(content)
        os.utime(path, (315_532_800, 315_532_800))
    before = open_at(tmp_path).info.fingerprint
    assert open_at(tmp_path).info.fingerprint == before
    content[end] ^= 1
    paths[17].write_bytes(content)
    os.utime(paths[17], (315_532_800, 315_532_800))
    assert open_at(tmp_path).info.fingerprint != before


@pytest.mark.parametrize(
    "names",
    [
        ("images/train/1.jpg", "images/val/2.jpg", "labels/train/1.txt"),
        ("cat/train/1.jpg", "cat/val/2.jpg", "dog/train/3.jpg", "dog/val/4.jpg"),
    ],
)
def test_splits_inside_a_class_are_refused(names: tuple[str, ...], tmp_path: Path) -> None:
    for name in names:
        write(tmp_path / name)
    with pytest.raises(CorruptDataError, match="holds folders of a train and of a test split"):
        open_at(tmp_path)


def test_deep_pixels_in_which_0_is_white_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    grey(np.arange(256) * 257, np.uint16).save(tmp_path / "a" / "1.tif", tiffinfo={262: 0})
    with pytest.raises(CorruptDataError, match="0 is white"):
        open_at(tmp_path).sample(0)
