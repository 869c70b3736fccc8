"""Readers' options: typed, refused before any work, one spelling per cell, and printed as tables."""

import json
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
    ("lmdb:get?readahead=maybe", "lmdb:get: readahead must be 'on' or 'off', not 'maybe'"),
    ("lmdb?readahead=offf", "lmdb:get: readahead must be 'on' or 'off', not 'offf'. Did you mean 'off'?"),
    ("lmdb?readahead=no", "lmdb:get: readahead must be 'on' or 'off', not 'no'"),
    ("lmdb?readahed=off", "no option of lmdb:get is called 'readahed'. Did you mean 'readahead'?"),
    ("memory?threads=2", "no option of memory:python is called 'threads'. Known: none."),
    (
        "lmdb:direct?window_mib=3",
        "lmdb:direct: window_mib must be a whole number from 4 to 1048576 or 'auto', not '3'",
    ),
    (
        "lmdb:shared?window_mib=1048577",
        "lmdb:shared: window_mib must be a whole number from 4 to 1048576 or 'auto', not '1048577'",
    ),
    ("hdf5:direct?gap_kib=-1", "hdf5:direct: gap_kib must be a whole number from 0 to 1048576, not '-1'"),
    (
        "hdf5:direct?readers_at_a_time=0",
        "hdf5:direct: readers_at_a_time must be a whole number from 1 to 1024 or 'off', not '0'",
    ),
    (
        "png:threads?threads=auot",
        "files:threads: threads must be a whole number from 1 to 1024 or 'auto', not 'auot'. Did you mean 'auto'?",
    ),
    ("png:threads?ahead=off", "files:threads: ahead must be a whole number from 0 to 1048576, not 'off'"),
    ("hdf5:direct?gap_kib=1.5", "hdf5:direct: gap_kib must be a whole number from 0 to 1048576, not '1.5'"),
    ("hdf5:direct?gap_kib=٣", "hdf5:direct: gap_kib must be a whole number from 0 to 1048576, not '٣'"),
    ("lmdb:direct?merged=off,merged=on", "lmdb:direct: merged is given twice. Name it once."),
]

SPELLINGS = [
    ("lmdb:direct?readers_at_a_time=2,merged=off", "lmdb:direct?merged=off,readers_at_a_time=2"),
    ("hdf5+png:direct?explicit=off,window_mib=016", "hdf5+png:direct?explicit=off,window_mib=16"),
    ("lmdb:direct?readers_at_a_time=off", "lmdb:direct?readers_at_a_time=off"),
    ("lmdb?readahead=on", "lmdb?readahead=on"),
    ("png:threads?threads=3,ahead=0", "png:threads?ahead=0,threads=3"),
]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> SmallStore:
    return build_small_store(get_format("lmdb"), "raw", tmp_path_factory.mktemp("store"))


@pytest.mark.parametrize(("backend", "words"), WRONG, ids=lambda text: text[:40])
def test_a_wrong_option_is_one_line_with_what_is_allowed(backend: str, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_backend(backend)
    assert str(caught.value) == words
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    "arguments",
    [
        ["run", "png", "lmdb:get?readahead=maybe", "-d", "mnist", "--synthetic", "--limit", "8"],
        ["convert", "png", "lmdb:get?readahead=maybe", "-d", "mnist", "--synthetic", "--limit", "8"],
        ["bench", "bad.toml", "--dry-run"],
        ["bench", "bad.toml"],
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
    assert ("bad.toml:4: " in line) == (arguments[0] == "bench")
    assert [path.name for path in tmp_path.iterdir()] == ["bad.toml"]


def test_verify_refuses_a_wrong_value_before_it_reads(cli: Cli, store: SmallStore, tmp_path: Path) -> None:
    damaged = tmp_path / "store"
    damaged.mkdir()
    (damaged / "manifest.json").write_bytes((store.path / "manifest.json").read_bytes())
    done = cli("verify", str(damaged), "--reader", "direct?window_mib=0")
    assert done.returncode == 2, done.stderr
    assert "lmdb:direct: window_mib must be a whole number from 4" in done.stderr


@pytest.mark.parametrize(("written", "spelled"), SPELLINGS)
def test_each_backend_has_one_spelling(written: str, spelled: str) -> None:
    assert str(parse_backend(written)) == spelled
    assert parse_backend(spelled) == parse_backend(written)


def test_a_reader_receives_typed_values(store: SmallStore) -> None:
    options: dict[str, bool | int | str] = {
        "merged": False,
        "window_mib": 16,
        "gap_kib": "4",
        "readers_at_a_time": 2,
    }
    with open_reader(store.path, "direct", **options) as reader:
        values = vars(reader.options)
        assert np.array_equal(reader.labels, store.labels)
    assert values == {
        "explicit": True,
        "merged": False,
        "window_bytes": 16 << 20,
        "sweep_bytes": 256 << 20,
        "gap_bytes": 4 << 10,
        "readers_at_a_time": 2,
        "index": True,
        "keep_leaf": False,
    }


def test_formats_prints_a_table_of_options_per_reader(cli: Cli) -> None:
    lines = cli("formats").stdout.splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("  lmdb:direct "))
    head = next(number for number in range(start, len(lines)) if lines[number].startswith("    option "))
    table = [line.split() for line in lines[head : head + 10]]
    assert table[0] == ["option", "type", "default", "values", "meaning"]
    assert [row[:3] for row in table[2:]] == [
        ["explicit", "flag", "on"],
        ["merged", "flag", "on"],
        ["window_mib", "size", "auto"],
        ["sweep_mib", "size", "256"],
        ["gap_kib", "size", "8"],
        ["readers_at_a_time", "integer", "off"],
        ["index", "flag", "on"],
        ["keep_leaf", "flag", "off"],
    ]


def test_formats_gives_every_option_as_json(cli: Cli) -> None:
    rows = {row["name"]: row for row in json.loads(cli("formats", "--json").stdout)}
    assert rows["lmdb"]["readers"]["get"]["options"]["readahead"] == {
        "type": "flag",
        "default": "on",
        "values": "on or off",
        "meaning": "let the kernel read ahead of page faults",
    }
    turns = rows["hdf5"]["readers"]["direct"]["options"]["readers_at_a_time"]
    assert turns["values"] == "a whole number from 1 to 1024 or off"


def test_opening_a_store_refuses_an_unknown_reader(store: SmallStore) -> None:
    with pytest.raises(UsageError, match=r"no reader of lmdb is called 'gte'.*Did you mean 'get'"):
        open_reader(store.path, "gte")
