"""Attacks on what is read: folders, archives, pickles and small files that have no end, no bottom or no text.

Each is met through the command line with 1 GiB of address space to spare, within a time that an endless one would pass.
"""

import gzip
import json
import os
import subprocess
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import pytest
from PIL import Image as PilImage

from tests.support.quick_cli import CommandServer

MORE_MEMORY = 1 << 30
TIME_S = 60.0

Outcome = subprocess.CompletedProcess[str]
Limited = Callable[..., Outcome]


@pytest.fixture
def limited(commands: CommandServer, tmp_path: Path) -> Limited:
    """Run the command line in `tmp_path` with little memory and little time."""
    env = {**os.environ, "STOREBENCH_DATA": "data"}

    def run(*arguments: str) -> Outcome:
        return commands.run(*arguments, cwd=tmp_path, env=env, timeout=TIME_S, more_memory=MORE_MEMORY)

    return run


def refusal(outcome: Outcome, code: int) -> str:
    """Return the one line of an outcome that ended with this exit code."""
    assert outcome.returncode == code, (outcome.returncode, outcome.stderr)
    [line] = outcome.stderr.splitlines()
    assert line.startswith("storebench: ")
    return line


def photo(colour: int = 0) -> bytes:
    buffer = BytesIO()
    PilImage.new("RGB", (8, 8), (colour, 99, 7)).save(buffer, "PNG")
    return buffer.getvalue()


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Return a folder of two classes with one image each."""
    for colour, name in enumerate(("a", "b")):
        (tmp_path / "photos" / name).mkdir(parents=True)
        (tmp_path / "photos" / name / "1.png").write_bytes(photo(colour))
    return tmp_path / "photos"


LOOPS: dict[str, dict[str, str]] = {
    # name: link -> where it leads; the first one to be named is one of them
    "two links to their own folder, which are 2^40 paths": {"a/l1": ".", "a/l2": "."},
    "a link to the folder of all classes": {"b/up": ".."},
    "a class that is another class": {"c": "a"},
    "a link that leads to itself": {"a/self": "self"},
    "two links to one folder outside": {"a/x": "../../outside", "b/x": "../../outside"},
}


@pytest.mark.parametrize("name", LOOPS)
def test_links_that_lead_to_a_folder_twice_are_refused(name: str, limited: Limited, photos: Path) -> None:
    (photos.parent / "outside").mkdir()
    for link, target in LOOPS[name].items():
        (photos / link).symlink_to(target)
    line = refusal(limited("convert", "memory", "-d", f"folder:{photos}"), 5)
    assert any(f"/{Path(link).name}: " in line for link in LOOPS[name]), line
    assert not (photos.parent / "stores").exists()


def _link_to(target: str) -> Callable[[Path], None]:
    return lambda path: path.symlink_to(target)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (os.mkfifo, "not a regular file"),
        (_link_to("/dev/zero"), "not a regular file"),
        (_link_to("/nowhere/z.png"), "a link that leads nowhere"),
    ],
)
def test_what_is_no_regular_file_is_refused_and_named(
    make: Callable[[Path], None], words: str, limited: Limited, photos: Path
) -> None:
    make(photos / "b" / "z.png")
    line = refusal(limited("convert", "memory", "-d", f"folder:{photos}"), 5)
    assert f"{photos}/b/z.png: {words}" in line


def test_what_is_no_image_may_be_anything(limited: Limited, photos: Path) -> None:
    os.mkfifo(photos / "a" / "control")
    (photos / "a" / ".hidden.png").symlink_to("/dev/zero")
    (photos / "zero").symlink_to("/dev/zero")
    (photos / "linked").symlink_to(photos.parent / "elsewhere")
    (photos.parent / "elsewhere").mkdir()
    (photos.parent / "elsewhere" / "2.png").write_bytes(photo(2))
    (photos / "a" / "also.png").symlink_to(photos.parent / "elsewhere" / "2.png")
    done = limited("convert", "memory", "-d", f"folder:{photos}", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)[0]["count"] == 4


def test_an_image_file_with_no_end_is_refused(limited: Limited, photos: Path) -> None:
    with (photos / "a" / "2.png").open("wb") as file:
        # A chunk of 2 GiB, nearly all of it a hole, before the first pixel.
        file.write(photo()[:33] + (2**31 - 1).to_bytes(4, "big") + b"prVt")
        file.truncate(1 << 40)
    line = refusal(limited("convert", "memory", "-d", f"folder:{photos}"), 5)
    assert f"{photos}/a/2.png: larger than 1,073,741,824 bytes" in line


def test_names_that_are_no_utf8_go_all_the_way(limited: Limited, tmp_path: Path) -> None:
    latin = os.fsdecode(b"caf\xe9")  # a name out of a Latin-1 archive, as Python has it
    for name in (latin, "b"):
        (tmp_path / latin / name).mkdir(parents=True)
        for colour in range(4):
            (tmp_path / latin / name / f"{colour}{latin}.png").write_bytes(photo(colour))
    done = limited("convert", "memory", "-d", f"folder:{tmp_path / latin}", "--json")
    assert done.returncode == 0, done.stderr
    [facts] = json.loads(done.stdout)
    assert facts["dataset"] == rf"folder:{tmp_path}/caf\xe9"
    manifest = json.loads(Path(tmp_path, facts["path"], "manifest.json").read_text())
    assert manifest["dataset"]["class_names"] == ["b", r"caf\xe9"]
    assert limited("verify", facts["path"]).returncode == 0


def test_a_batch_with_no_end_is_refused(limited: Limited, tmp_path: Path) -> None:
    folder = tmp_path / "data" / "cifar10" / "cifar-10-batches-bin"
    folder.mkdir(parents=True)
    with (folder / "data_batch_1.bin").open("wb") as file:
        file.truncate(3073 << 30)
    line = refusal(limited("convert", "memory", "-d", "cifar10", "--real"), 5)
    assert "data_batch_1.bin: larger than" in line


def test_an_archive_that_unpacks_without_end_is_refused(limited: Limited, tmp_path: Path) -> None:
    (tmp_path / "data" / "mnist").mkdir(parents=True)
    images = b"\0\0\x08\x03" + b"\x7f\xff\xff\xff" + b"\0\0\0\x1c" * 2
    for name, header in (("images-idx3", images), ("labels-idx1", b"\0\0\x08\x01\x7f\xff\xff\xff")):
        packed = gzip.compress(header) + gzip.compress(b"\0" * (1 << 20)) * 4000
        (tmp_path / "data" / "mnist" / f"train-{name}-ubyte.gz").write_bytes(packed)
    assert "declare" in refusal(limited("convert", "memory", "-d", "mnist", "--real"), 5)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ["run", "lmdb", "--workers", "3000"],
            "--workers: must be less than or equal to 256, not 3000",
        ),
        (["convert", "lmdb", "--size", str(2**70)], "--size: must be 1 to 1,000,000,000"),
        (["convert", "lmdb", "--processes", "3000"], "--processes: must be less than or equal to 256"),
    ],
)
def test_an_option_that_asks_for_too_much_is_refused_at_once(
    arguments: list[str], words: str, limited: Limited
) -> None:
    assert words in refusal(limited(*arguments, "-d", "mnist", "--synthetic"), 2)


def test_no_room_for_a_batch_in_shared_memory_is_one_line(commands: CommandServer, tmp_path: Path) -> None:
    """A limit on the size of files holds for shared memory as well, and needs no root."""
    size = ("--dataset", "cifar10", "--limit", "64", "--synthetic", "--stores", "stores")
    built = ("convert", "files+raw", *size[:-2], "--out", "stores")
    assert commands.run(*built, cwd=tmp_path, env=os.environ).returncode == 0
    words = (*size, "--compute", "none", "--threads", "1", "--workers", "1", "--out", "run")
    done = commands.run("run", "files+raw", *words, cwd=tmp_path, env=os.environ, largest_file=100_000)
    assert done.returncode == 5, done.stderr
    assert "/dev/shm: no shared memory for a batch of 192 KiB: File too large" in done.stderr
    assert "ring and threads do without it" in done.stderr
