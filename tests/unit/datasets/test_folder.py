"""Any folder of class folders: sorted, named errors, and never a stand-in."""

import os
import pickle
from pathlib import Path
from typing import Any

import pytest

from storebench.datasets import Dataset, DatasetSpec, open_dataset
from storebench.errors import CorruptDataError, DataNotFoundError, UsageError
from tests.support.dataset_files import digests, image_file, write_class_folders


def open_at(path: Path, **options: Any) -> Dataset:
    return open_dataset(DatasetSpec(name=f"folder:{path}", **options))


def test_classes_and_files_are_sorted_and_other_files_ignored(tmp_path: Path) -> None:
    write_class_folders(tmp_path, {"zebra": 2, "ant": 1})
    (tmp_path / "ant" / "a.PNG").write_bytes(image_file(kind="PNG", seed=9))
    (tmp_path / "ant" / "deeper").mkdir()
    (tmp_path / "ant" / "deeper" / "b.jpg").write_bytes(image_file())
    (tmp_path / "ant" / "notes.txt").write_text("no image")
    (tmp_path / "ant" / ".hidden.jpg").write_text("no image")
    (tmp_path / ".git").mkdir()
    (tmp_path / "empty").mkdir()
    dataset = open_at(tmp_path)
    assert dataset.info.class_names == ("ant", "zebra")
    assert [dataset.sample(index)[1] for index in range(len(dataset))] == [0, 0, 0, 1, 1]


def test_train_and_validation_folders_are_splits(tmp_path: Path) -> None:
    write_class_folders(tmp_path / "train", {"a": 1, "b": 2})
    write_class_folders(tmp_path / "validation", {"b": 1})
    assert len(open_at(tmp_path)) == 3
    test = open_at(tmp_path, split="test")
    assert (len(test), test.sample(0)[1]) == (1, 1)


def test_without_split_folders_all_is_training_data(tmp_path: Path) -> None:
    write_class_folders(tmp_path, {"a": 1, "b": 1})
    assert len(open_at(tmp_path)) == 2
    with pytest.raises(DataNotFoundError, match="no test split"):
        open_at(tmp_path, split="test")


def test_missing_and_empty_folders_are_refused_and_never_replaced(tmp_path: Path) -> None:
    with pytest.raises(DataNotFoundError, match="no such folder"):
        open_at(tmp_path / "missing")
    with pytest.raises(DataNotFoundError, match="no images in it"):
        open_at(tmp_path)
    (tmp_path / "a").mkdir()
    with pytest.raises(DataNotFoundError, match="only 1 folder without images in it"):
        open_at(tmp_path)
    with pytest.raises(UsageError, match="no synthetic stand-in"):
        open_at(tmp_path, synthetic=True)


def test_an_image_that_does_not_decode_is_named(tmp_path: Path) -> None:
    write_class_folders(tmp_path, {"a": 2})
    (tmp_path / "a" / "a_1.JPEG").write_bytes(image_file()[:200])
    dataset = open_at(tmp_path)
    dataset.sample(0)
    with pytest.raises(CorruptDataError, match=r"a/a_1\.JPEG: a JPEG that is cut short"):
        dataset.sample(1)


def test_an_image_that_has_gone_is_named(tmp_path: Path) -> None:
    write_class_folders(tmp_path, {"a": 1})
    dataset = open_at(tmp_path)
    (tmp_path / "a" / "a_0.JPEG").unlink()
    with pytest.raises(DataNotFoundError, match=r"a_0\.JPEG: cannot be read"):
        dataset.sample(0)


def test_the_fingerprint_follows_the_content_not_the_place_or_time(tmp_path: Path) -> None:
    for name in ("one", "two"):
        write_class_folders(tmp_path / name, {"a": 2, "b": 1})
    one, two = open_at(tmp_path / "one"), open_at(tmp_path / "two")
    assert one.info.fingerprint == two.info.fingerprint
    (tmp_path / "two" / "a" / "a_0.JPEG").write_bytes(image_file(seed=77))
    assert open_at(tmp_path / "two").info.fingerprint != one.info.fingerprint
    assert digests(pickle.loads(pickle.dumps(one))) == digests(one)


def test_a_limit_reaches_every_class(tmp_path: Path) -> None:
    write_class_folders(tmp_path, {"a": 3, "b": 3, "c": 3})
    limited = open_at(tmp_path, limit=3)
    assert [limited.sample(index)[1] for index in range(3)] == [0, 1, 2]


def test_more_files_than_a_dataset_may_have_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_class_folders(tmp_path, {"a": 3, "b": 3})
    assert len(open_at(tmp_path)) == 6
    monkeypatch.setattr("storebench.datasets.walk.MOST_ENTRIES", 7)
    with pytest.raises(CorruptDataError, match="more than 7 files and folders"):
        open_at(tmp_path)


def test_an_image_that_becomes_a_fifo_does_not_hang(tmp_path: Path) -> None:
    write_class_folders(tmp_path, {"a": 1})
    dataset = open_at(tmp_path)
    (tmp_path / "a" / "a_0.JPEG").unlink()
    os.mkfifo(tmp_path / "a" / "a_0.JPEG")
    with pytest.raises(CorruptDataError, match=r"a_0\.JPEG: a FIFO"):
        dataset.sample(0)


def test_hidden_files_and_folders_are_left_out(tmp_path: Path) -> None:
    write_class_folders(tmp_path, {"a": 1, ".trash": 1, "lost+found": 1})
    (tmp_path / "a" / ".thumbnails").mkdir()
    (tmp_path / "a" / ".thumbnails" / "1.png").write_bytes(image_file(kind="PNG"))
    assert len(open_at(tmp_path)) == 1


def test_classes_of_both_splits_agree_where_names_are_no_utf8(tmp_path: Path) -> None:
    latin = os.fsdecode(b"\xe9")
    write_class_folders(tmp_path / "train", {"z": 1, latin: 1})
    write_class_folders(tmp_path / "val", {latin: 2})
    test = open_at(tmp_path, split="test")
    assert test.info.class_names == ("z", r"\xe9")
    assert [test.sample(index)[1] for index in range(2)] == [1, 1]


def test_names_that_differ_in_bytes_that_are_no_utf8_are_told_apart(tmp_path: Path) -> None:
    for folder, name in (("one", b"\xe9"), ("two", b"\xe8")):
        write_class_folders(tmp_path / folder, {"a": 1})
        path = tmp_path / folder / "a" / "a_0.JPEG"
        path.rename(path.with_name(os.fsdecode(name + b".JPEG")))
    one, two = open_at(tmp_path / "one"), open_at(tmp_path / "two")
    assert one.info.fingerprint != two.info.fingerprint
    assert digests(pickle.loads(pickle.dumps(one))) == digests(two)
