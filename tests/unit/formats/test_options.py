"""Readers' options: typed, refused before any work, one spelling per cell, and printed as tables."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from storebench.errors import UsageError
from storebench.formats.registry import get_format, open_reader, parse_backend
from storebench.testing.stores import SmallStore, build_small_store

CompletedText = subprocess.CompletedProcess[str]
Cli = Callable[..., CompletedText]

WRONG = [
    ("lmdb?readahead=offf", "lmdb:get: readahead must be 'on' or 'off', not 'offf'"),
    ("lmdb?readahed=off", "no option of lmdb:get is called 'readahed'. Did you mean 'readahead'?"),
    ("memory?threads=2", "no option of memory:python is called 'threads'. Known: none."),
    (
        "lmdb:direct?window_mib=3",
        "lmdb:direct: window_mib must be a whole number from 4 to 1048576 or 'auto', not '3'",
    ),
    ("png:threads?ahead=-1", "files:threads: ahead must be a whole number from 0 to 1048576, not '-1'"),
    ("png:threads?ahead=٣", "files:threads: ahead must be a whole number from 0 to 1048576, not '٣'"),
    (
        "hdf5:direct?readers_at_a_time=0",
        "hdf5:direct: readers_at_a_time must be a whole number from 1 to 1024 or 'off', not '0'",
    ),
    ("lmdb:direct?merged=off,merged=on", "lmdb:direct: merged is given twice. Name it once."),
    ("lmdb+jpeg:0", "from 1 to 100, not '0'"),
    ("lmdb+webp:" + "9" * 5000, "from 1 to 100, not '999"),
    ("png:6", "png has no quality"),
    ("lmdb+zstd:opencv", "zstd has no decoder to choose"),
    ("lmdb?scale=dct", "only images of any size are decoded at a reduced scale"),
    ("lmdb+original?scale=half", "scale must be 'dct' or 'full'"),
    ("lmdb:simplejpeg", "raw has no decoder to choose"),
    ("png:simplejpeg", "simplejpeg does not decode PNG"),
    ("lmdb+jpeg:direct:get", "cannot read"),
    ("lmdb+png:turbo:direct", "opencv, pillow, shared, simplejpeg"),
    ("original:simplejpg", "Did you mean 'simplejpeg'"),
]

SPELLINGS = [
    ("lmdb:direct?readers_at_a_time=2,merged=off", "lmdb:direct?merged=off,readers_at_a_time=2"),
    ("hdf5+png:direct?explicit=off,window_mib=016", "hdf5+png:direct?explicit=off,window_mib=16"),
    ("png:threads?threads=3,ahead=0", "png:threads?ahead=0,threads=3"),
    ("lmdb+jpeg:90", "lmdb+jpeg"),
    ("lmdb+jpeg:080", "lmdb+jpeg:80"),
    ("lmdb+webp:direct:80", "lmdb+webp:80:direct"),
    ("original", "original"),
    ("files+original:pillow:threads", "original:threads"),
    ("lmdb+original?scale=dct", "lmdb+original?scale=dct"),
    ("lmdb+original:direct?scale=dct,window_mib=8", "lmdb+original:direct?window_mib=8,scale=dct"),
]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> SmallStore:
    return build_small_store(get_format("lmdb"), "raw", tmp_path_factory.mktemp("store"))


@pytest.mark.parametrize(("backend", "words"), WRONG, ids=lambda text: text[:40])
def test_a_wrong_option_is_one_line_with_what_is_allowed(backend: str, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_backend(backend)
    assert words in str(caught.value)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    "arguments",
    [
        ["run", "png", "lmdb:get?readahead=maybe", "-d", "mnist", "--synthetic", "--limit", "8"],
        ["bench", "bad.toml", "--dry-run"],
    ],
    ids=" ".join,
)
def test_a_wrong_value_is_refused_before_a_store_is_built(
    arguments: list[str], cli: Cli, tmp_path: Path
) -> None:
    scenario = 'name = "bad"\n[[matrix]]\ndataset = "mnist"\nbackends = ["png", "lmdb:get?readahead=maybe"]\n'
    (tmp_path / "bad.toml").write_text(scenario)
    done = cli(*arguments)
    assert done.returncode == 2
    [line] = done.stderr.splitlines()
    assert "lmdb:get: readahead must be 'on' or 'off', not 'maybe'" in line
    assert ("bad.toml: matrix 1: " in line) == (arguments[0] == "bench")
    assert [path.name for path in tmp_path.iterdir()] == ["bad.toml"]


@pytest.mark.parametrize(("written", "spelled"), SPELLINGS)
def test_each_backend_has_one_spelling(written: str, spelled: str) -> None:
    assert str(parse_backend(written)) == spelled
    assert parse_backend(spelled) == parse_backend(written)


def test_a_reader_receives_typed_values(store: SmallStore) -> None:
    options: dict[str, bool | int | str] = {
        "merged": False,
        "window_mib": 16,
        "readers_at_a_time": 2,
    }
    with open_reader(store.path, "direct", **options) as reader:
        values = vars(reader.options)
        assert np.array_equal(reader.labels, store.labels)
    assert values == {
        "explicit": True,
        "merged": False,
        "window_bytes": 16 << 20,
        "readers_at_a_time": 2,
        "index": True,
        "keep_leaf": False,
    }


def test_opening_a_store_refuses_an_unknown_reader(store: SmallStore) -> None:
    with pytest.raises(UsageError, match=r"no reader of lmdb is called 'gte'.*Did you mean 'get'"):
        open_reader(store.path, "gte")
