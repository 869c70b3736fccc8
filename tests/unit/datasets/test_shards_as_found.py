"""Containers in practice: links, several archives in one file, empty shards, patterns, and files beside them."""

import gzip
import io
import os
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from storebench.datasets import Dataset, DatasetSpec, open_dataset
from storebench.datasets.containers import is_container
from storebench.errors import StorebenchError
from tests.support.container_files import example, mds, record
from tests.support.photo_folders import photo_file

Cli = Callable[..., Any]
IMAGES = [photo_file(at, (30, 20)) for at in range(4)]
A, B, C, D = IMAGES
LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 146946961\n"


def opened(path: str | Path) -> Dataset:
    return open_dataset(DatasetSpec(name=f"container:{path}"))


def samples(path: str | Path) -> list[tuple[int, int]]:
    """Return the number of the image and the label of each sample."""
    dataset = opened(path)
    return [(IMAGES.index(image), label) for image, label in map(dataset.original, range(len(dataset)))]


Entry = tuple[
    str, bytes | str
]  # a name, and content or the name that a link leads to; "-> " begins a symbolic link


def archive(*entries: Entry, layout: int = tarfile.PAX_FORMAT) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=layout) as file:
        for name, content in entries:
            info = tarfile.TarInfo(name)
            if isinstance(content, bytes):
                info.size = len(content)
                file.addfile(info, io.BytesIO(content))
            elif content == "fifo":
                info.type = tarfile.FIFOTYPE
                file.addfile(info)
            else:
                info.type = tarfile.SYMTYPE if content.startswith("-> ") else tarfile.LNKTYPE
                info.linkname = content.removeprefix("-> ")
                file.addfile(info)
    return buffer.getvalue()


ONE = archive(("a.png", A), ("a.cls", b"0"))
TWO = archive(("b.png", B), ("b.cls", b"1"))

READ: dict[str, tuple[bytes, list[tuple[int, int]], str]] = {
    "two archives": (ONE + TWO, [(0, 0), (1, 1)], ""),
    "hard links": (archive(("a.png", A), ("b.png", B), ("c.png", "a.png")), [(0, 0), (1, 0), (0, 0)], ""),
    "symbolic links": (
        archive(("x/a.png", A), ("y/b.png", "-> ../x/a.png"), ("y/c.png", "-> b.png")),
        [(0, 0), (0, 1), (0, 1)],
        "the folders in it are the classes",
    ),
    "a chain of links before its file": (
        archive(("a.png", "-> b.png"), ("b.png", "-> c.png"), ("c.png", "-> d.png"), ("d.png", B)),
        [(1, 0)] * 4,
        "",
    ),
    "an image beside class folders": (
        archive(("a/0.png", A), ("b/0.png", B), ("loose.png", C)),
        [(0, 0), (1, 1)],
        "1 sample without a label left out",
    ),
    "a link that is no sample": (
        archive(("README", "-> /usr/share/x"), ("pipe", "fifo"), ("a.png", A)),
        [(0, 0)],
        "2 members with no content in it left out: README, pipe",
    ),
    "class folders": (
        archive(("./all/cat/0.png", A), ("./all/dog/0.png", B), ("./all/dog/more/0.png", C)),
        [(0, 0), (1, 1), (2, 1)],
        "the folders in it are the classes",
    ),
    "a mask beside": (
        archive(("a.png", A), ("a.mask.png", B)),
        [(0, 0)],
        "1 image of other fields left out: mask.png",
    ),
}


@pytest.mark.parametrize("case", READ)
def test_all_samples_of_a_tar_file_are_read(case: str, tmp_path: Path) -> None:
    content, expected, note = READ[case]
    path = tmp_path / "a.tar"
    path.write_bytes(content)
    assert samples(path) == expected
    assert note in opened(path).layout_note


def test_dotted_keys_are_explained_and_the_images_that_a_field_leaves_out_counted(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    path.write_bytes(archive(*((f"scan.{at}.png", image) for at, image in enumerate(IMAGES))))
    with pytest.raises(StorebenchError, match=r"several images in one sample.*A key ends at its first dot"):
        opened(path)
    assert "3 images of other fields left out: 1.png, 2.png, 3.png" in opened(f"{path}#0.png").layout_note


def sparse(path: Path) -> bytes:
    """Return an archive with a file of which GNU tar stores the parts that are not empty."""
    path.with_name("holes.png").write_bytes(A + bytes(1 << 20) + b"1")
    os.truncate(path.with_name("holes.png"), 2 << 20)
    subprocess.run(["tar", "-S", "-cf", path, "holes.png"], check=True, cwd=path.parent)
    return path.read_bytes()


REFUSED: dict[str, tuple[bytes | Callable[[Path], bytes], str]] = {
    "a sparse file": (sparse, "'holes.png' is not a regular file"),
    "text behind it": (
        ONE + b"signed by",
        f"other content than a tar archive at byte {len(ONE):,}",
    ),
    "a cut archive behind it": (ONE + TWO[:700], "truncated"),
    "splits": (
        archive(("d/train/a/0.png", A), ("d/val/a/1.png", B)),
        "a train and of another split: a, train, val",
    ),
    "no members": (archive(), "holds no samples|no sample has an image"),
    "zstd": (pa.Codec("zstd").compress(ONE, asbytes=True), "compressed"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_file_that_is_not_read_is_named(case: str, tmp_path: Path) -> None:
    content, says = REFUSED[case]
    path = tmp_path / "a.tar"
    path.write_bytes(content if isinstance(content, bytes) else content(path))
    with pytest.raises(StorebenchError, match=says) as caught:
        opened(path).original(0)
    assert str(path) in str(caught.value)


# Files of a pattern or a folder.


def stream(*images: bytes) -> bytes:
    buffer = io.BytesIO()
    rows = pa.table({"image": pa.array(images, pa.binary())})
    with pa.ipc.new_stream(buffer, rows.schema) as writer:
        writer.write_table(rows)
    return buffer.getvalue()


def tf(image: bytes) -> bytes:
    return record(example({"image": image, "label": 0}))


FOLDERS: dict[str, tuple[dict[str, bytes], str, list[int]]] = {
    "an empty shard first": ({"0.tar": archive(), "1.tar": TWO}, "*.tar", [1]),
    "an index and marks beside": (
        {
            "0.tar": ONE,
            "0.idx": b"v1.2 1\n",
            "_SUCCESS": b"",
            ".0.tar.crc": b"crc\0",
            "dataset_info.json": b"{}",
        },
        "*.tar",
        [0],
    ),
    "one picture beside": ({"0.tar": ONE, "1.tar": TWO, "preview.png": C}, "*.tar", [0, 1]),
    "numbers": (
        {"s-008.tar": ONE, "s-009.tar": TWO, "s-010.tar": ONE, "s-011.tar": ONE},
        "s-{008..010}.tar",
        [0, 1, 0],
    ),
    "two patterns": ({"a-0.tar": ONE, "b-0.tar": TWO}, "a-{0..0}.tar::{dir}/b-*.tar", [0, 1]),
    "streams of Arrow in one file": ({"a.arrow": stream(A) + stream(B)}, "a.arrow", [0, 1]),
}


@pytest.mark.parametrize("case", FOLDERS)
def test_files_are_found_by_a_pattern_as_in_a_folder(case: str, tmp_path: Path) -> None:
    files, pattern, expected = FOLDERS[case]
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    pattern = f"{tmp_path}/{pattern}".replace("{dir}", str(tmp_path))
    assert is_container(pattern)
    assert [image for image, _ in samples(pattern)] == expected
    if case in ("two patterns", "numbers"):  # these have other files in the folder, or not
        return
    assert is_container(str(tmp_path))
    assert [image for image, _ in samples(tmp_path)] == expected


SPLITS: dict[str, tuple[list[str], str, str]] = {
    "a folder": (["train-0.tar", "val-0.tar", "extra-0.tar"], "", "beside the splits, extra-0.tar left out"),
    "braces": (["train-0.tar", "val-0.tar", "extra-0.tar"], "/{train,val,extra}-0.tar", "extra-0.tar left out"),
    "folders": (["train/0.tar", "dev/0.tar", "eval/0.tar"], "", "beside the splits, dev/, eval/ left out"),
    "both splits": (["train-0.tar", "val-0.tar"], "", ""),
}  # fmt: skip


@pytest.mark.parametrize("case", SPLITS)
def test_what_is_left_out_beside_splits_is_said(case: str, tmp_path: Path) -> None:
    names, below, note = SPLITS[case]
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(ONE if name.startswith("train") else TWO)
    assert samples(f"{tmp_path}{below}") == [(0, 0)]
    said = opened(f"{tmp_path}{below}").layout_note
    assert note in said
    assert ("beside" in said) == bool(note)


@pytest.mark.parametrize(
    "names",
    [
        ("dev", "train"),
        ("eval-0", "train-0"),
        ("test-0", "trainval-0"),
        ("extra", "train-0"),
        ("test", "val"),
    ],
)
def test_test_data_never_become_training_data(names: tuple[str, str], tmp_path: Path) -> None:
    for name in names:
        (tmp_path / f"{name}.tar").write_bytes(ONE)
    for path in (tmp_path, f"{tmp_path}/*.tar", f"{tmp_path}/{{{','.join(names)}}}.tar"):
        with pytest.raises(
            StorebenchError, match=rf"{names[0]}.tar and {names[1]}.tar: .*looks like a split"
        ):
            opened(path)
    assert samples(tmp_path / f"{names[1]}.tar") == [(0, 0)]


def test_a_pattern_is_advised_for_shards_beside_a_folder(cli: Cli, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    (folder / "_tmp").mkdir(parents=True)
    (folder / "0.tar").write_bytes(ONE)
    done = cli("convert", "memory", "--dataset", str(folder))
    assert done.returncode == 2
    assert f"name other files by a pattern: '{folder}/*.tar'" in done.stderr
    assert samples(f"{folder}/*.tar") == [(0, 0)]


BESIDE: dict[str, tuple[dict[str, bytes], str, str]] = {
    "a damaged shard": ({"0.tar": ONE, "1.tar": b"x" * 600}, "", "1.tar: not tar shards by its content"),
    "a packed shard": ({"0.tar": ONE, "1.tar": gzip.compress(TWO)}, "", "1.tar: compressed"),
    "pointers": ({"train-0.parquet": LFS, "README.md": b"text"}, "", "a pointer of Git LFS"),
    "bytes behind an Arrow stream": (
        {"a.arrow": stream(A) + b"text behind it"},
        "",
        "a.arrow: cannot be read",
    ),
    "img2dataset": (
        {"0.tar": archive(("0.jpg", A)), "0.parquet": b"PAR1" * 3, "0_stats.json": b"{}"},
        "",
        r"Parquet and tar shards in one folder.*/\*\.parquet' or '.*/\*\.tar'",
    ),
    "no file of a number": ({"0.tar": ONE}, "/{0..1}.tar", "1.tar: cannot be read"),
}


@pytest.mark.parametrize("case", BESIDE)
def test_a_folder_that_is_not_read_as_a_whole_is_refused(case: str, tmp_path: Path) -> None:
    files, below, says = BESIDE[case]
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    assert is_container(f"{tmp_path}{below}")
    with pytest.raises(StorebenchError, match=says):
        opened(f"{tmp_path}{below}")


@pytest.mark.parametrize("below", ["", "/shard.00000.mds"])
def test_mds_without_its_index_is_named(below: str, tmp_path: Path) -> None:
    mds(tmp_path / "data", [(A, 0), (B, 1)])
    (tmp_path / "data" / "index.json").unlink()
    with pytest.raises(StorebenchError, match=r"a shard of MDS, read by its index\.json"):
        opened(f"{tmp_path}/data{below}")


@pytest.mark.parametrize("files", [{"a.png": LFS, "b.png": A}, {"cat/a.jpg": LFS}])
def test_a_pointer_among_images_is_named(files: dict[str, bytes], cli: Cli, tmp_path: Path) -> None:
    for name, content in files.items():
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / name).write_bytes(content)
    done = cli("convert", "memory", "--dataset", "in")
    assert done.returncode == 5
    assert "a pointer of Git LFS, not the file" in done.stderr
