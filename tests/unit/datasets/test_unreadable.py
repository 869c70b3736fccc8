"""Unreadable image files: named and counted, refused by every codec alike, or left out of every store alike."""

import io
import json
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image as PilImage

from storebench.datasets import Dataset, DatasetSpec, open_dataset
from storebench.datasets.listing import Listings
from storebench.errors import (
    CorruptDataError,
    StorebenchError,
)
from storebench.formats import open_reader, parse_backend
from storebench.stores.convert import convert
from tests.support.photo_folders import photo_file

Cli = Callable[..., subprocess.CompletedProcess[str]]
SIZE = (40, 30)


def picture(kind: str = "JPEG", number: int = 0) -> bytes:
    return photo_file(number, SIZE, kind)


def half(kind: str) -> bytes:
    content = picture(kind)
    return content[: len(content) // 2]


def with_two_headers() -> bytes:
    """Return a PNG with a second IHDR of another size."""
    content = picture("PNG")
    other = photo_file(1, (90, 80), "PNG")
    return content[:33] + other[8:33] + content[33:]


DAMAGED = {
    "half a JPEG": half("JPEG"),
    "half a PNG": half("PNG"),
    "half a WEBP": half("WEBP"),
    "a PNG with two headers": with_two_headers(),
    "nothing": b"",
    "text": b"no image",
}


def folder_of(root: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return root


def open_at(path: Path, listings: Listings | None = None, **options: Any) -> Dataset:
    return open_dataset(DatasetSpec(name=f"folder:{path}", **options), listings=listings)


@pytest.mark.parametrize("backend", ["memory", "memory+png", "memory+original"])
@pytest.mark.parametrize("name", DAMAGED)
def test_damage_is_found_when_a_store_is_built_whatever_the_codec(
    name: str, backend: str, tmp_path: Path
) -> None:
    files = {"a/1.png": picture("PNG"), "b/2.png": DAMAGED[name], "b/3.png": picture("PNG", 3)}
    spec = DatasetSpec(name=f"folder:{folder_of(tmp_path / 'photos', files)}")
    with pytest.raises(CorruptDataError, match=r"b/2\.png: .*; the only unreadable file among 3") as caught:
        convert(open_dataset(spec), spec, parse_backend(backend), tmp_path / "stores")
    assert "--skip-unreadable leaves such files out" in str(caught.value)
    assert not list((tmp_path / "stores").rglob("manifest.json"))


def does_not_decode() -> bytes:
    """Return a PNG with a whole header and end whose pixels do not decode."""
    content = bytearray(picture("PNG"))
    middle = content.index(b"IDAT") + 20
    content[middle : middle + 40] = bytes(40)
    return bytes(content)


def test_damage_that_only_decoding_finds_is_found(tmp_path: Path, cli: Cli) -> None:
    files = {f"a/{number:03}.png": picture("PNG", number) for number in range(100)}
    photos = folder_of(tmp_path / "photos", files | {"a/041.png": does_not_decode()})
    refused = cli("convert", "lmdb+original", "--dataset", str(photos), "--out", str(tmp_path / "stores"))
    assert (refused.returncode, "a/041.png" in refused.stderr) == (5, True)


def test_a_store_of_other_samples_says_what_has_changed(photos: Path, cli: Cli) -> None:
    asked = ("convert", "memory", "--dataset", str(photos), "--skip-unreadable")
    assert cli(*asked).returncode == 0
    (photos / "class0" / "2b.jpg").unlink()
    done = cli(*asked)
    assert done.returncode == 2
    assert "the existing store has other samples (unreadable files left out: 3, now 2)" in done.stderr
    (photos / "class1" / "3b.png").write_bytes(picture("PNG", 3))
    line = cli(*asked).stderr.splitlines()[-1]
    assert "(unreadable files left out: 3, now 1)" in line
    folder_of(
        photos, {"class1/3.jpg": picture(number=30), "class1/3b.png": b"no image", "class0/2b.jpg": b""}
    )
    line = cli(*asked).stderr.splitlines()[-1]
    assert "(the files or their conversion have changed since it was built)" in line


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Return a folder of ten photographs and three unreadable files."""
    names = [f"class{number % 2}/{number}.jpg" for number in range(10)]
    root = folder_of(tmp_path / "photos", {name: picture(number=n) for n, name in enumerate(names)})
    folder_of(root, {"class0/2b.jpg": half("JPEG"), "class1/3b.png": b"no image"})
    (root / "class1" / "z.jpg").symlink_to("nowhere.jpg")
    return root


@pytest.mark.parametrize("backend", ["memory", "memory+original"])
def test_the_first_unreadable_file_is_named_and_all_are_counted(
    backend: str, photos: Path, cli: Cli, tmp_path: Path
) -> None:
    for link in (True, False):
        if not link:
            (photos / "class1" / "z.jpg").unlink()
        done = cli("convert", backend, "--dataset", str(photos))
        assert done.returncode == 5
        line = done.stderr.splitlines()[-1]
        count = f"the first of {2 + link} unreadable files among {12 + link}"
        assert line.startswith(f"storebench: {photos}/class0/2b.jpg: a JPEG that is cut short")
        assert count in line
        assert not (tmp_path / "stores").exists()


def test_every_format_skips_the_same_files(photos: Path, cli: Cli, tmp_path: Path) -> None:
    done = cli(
        "convert", "lmdb", "memory+png", "hdf5+original", "-d", str(photos), "--skip-unreadable", "--json"
    )
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert [(one["count"], one["skipped_files"]) for one in facts] == [(10, 3)] * 3
    assert facts[0]["samples_digest"] == facts[1]["samples_digest"]
    assert "3 unreadable files left out: " in done.stderr
    assert f"{photos}/class1/z.jpg: a link that leads nowhere" in done.stderr
    manifest = json.loads((tmp_path / facts[0]["path"] / "manifest.json").read_text())
    assert manifest["dataset"]["provenance"]["skipped_files"] == 3
    readable = sorted(path for path in photos.glob("*/?.jpg") if path.name != "z.jpg")
    with open_reader(tmp_path / facts[2]["path"]) as reader:
        assert reader.fetch(np.arange(10)) == [path.read_bytes() for path in readable]
        assert reader.labels.tolist() == [0] * 5 + [1] * 5


def test_a_dataset_grows_from_its_readable_files(tmp_path: Path) -> None:
    root = folder_of(tmp_path, {f"a/{n}.jpg": picture(number=n) if n else b"" for n in range(4)})
    dataset = open_at(root, size=10, skip_unreadable=True)
    assert (len(dataset), dataset.info.provenance.skipped_files) == (10, 1)
    assert [dataset.original(index)[0] for index in (0, 3, 6, 9)] == [picture(number=1)] * 4
    for index in range(10):
        dataset.sample(index)


def test_where_no_file_is_readable_there_is_no_dataset(tmp_path: Path) -> None:
    root = folder_of(tmp_path, {"a/1.jpg": b"", "a/2.jpg": b"no image"})
    with pytest.raises(CorruptDataError, match=r"a/1\.jpg: .*the first of 2 unreadable files among 2"):
        open_at(root, skip_unreadable=True)


def test_each_file_is_decoded_once_to_find_the_unreadable_ones(photos: Path, tmp_path: Path) -> None:
    (tmp_path / "stores").mkdir()
    checks: list[str] = []

    def progress(title: str) -> Any:
        checks.append(title)
        return _Muted()

    for _ in range(2):
        listings = Listings(tmp_path / "stores")
        spec = DatasetSpec(name=f"folder:{photos}", skip_unreadable=True)
        assert open_dataset(spec, listings=listings, progress=progress).info.provenance.skipped_files == 3
    assert len(checks) == 1


class _Muted:
    def __enter__(self) -> Callable[[int, int], None]:
        return lambda _done, _total: None

    def __exit__(self, *_: object) -> None:
        pass


def bomb(kind: str, side: int) -> bytes:
    """Return an image file of a few bytes whose header promises side x side pixels."""
    if kind == "PPM":
        return b"P6 %d %d 255\n" % (side, side) + bytes(64)
    buffer = io.BytesIO()
    PilImage.new("RGB", (16, 16)).save(buffer, kind)
    content, sides = bytearray(buffer.getvalue()), {"BMP": (18, "<ii"), "GIF": (6, "<HH"), "PNG": (16, ">II")}
    place, layout = sides[kind]
    struct.pack_into(layout, content, place, side, side)
    return bytes(content)


@pytest.mark.parametrize("side", [10_000, 15_000])
@pytest.mark.parametrize("kind", ["BMP", "GIF", "PNG", "PPM"])
def test_a_bomb_of_any_kind_is_refused_before_it_is_decoded(kind: str, side: int, tmp_path: Path) -> None:
    root = folder_of(tmp_path / "photos", {"a/1.png": picture("PNG"), "a/2.bmp": bomb(kind, side)})
    dataset = open_at(root, image_size=32)
    for read in (dataset.sample, dataset.original):
        with pytest.raises(StorebenchError, match=r"a/2\.bmp: .* pixels"):
            read(1)
