"""Scenarios: axes multiply into cells, and what is misspelt or impossible is refused with its line."""

from pathlib import Path

import pytest

from storebench.errors import ScenarioError, StorebenchError
from storebench.formats.registry import PAPER_BACKENDS
from storebench.record.schema import Cell
from storebench.run.scenario import Scenario, load_scenario, make_scenario
from storebench.system.progress import mute

SCENARIOS = sorted((Path(__file__).parents[3] / "scenarios").glob("*.toml"))

GOOD = """\
name = "good"
question = "Which?"
replicates = 3

[[matrix]]
dataset = "mnist"
backends = ["png", "lmdb+jpeg", "lmdb?readahead=off"]
cache = ["cold", "warm"]
workers = [0, 2]

[[matrix]]
dataset = "cifar10"
"""


def load(tmp_path: Path, text: str) -> list[Cell]:
    path = tmp_path / "scenario.toml"
    path.write_text(text)
    return load_scenario(path).cells()


def refusal(tmp_path: Path, text: str) -> str:
    with pytest.raises(ScenarioError) as caught:
        load(tmp_path, text)
    assert caught.value.exit_code == 2
    return str(caught.value).removeprefix(f"{tmp_path}/")


def test_a_matrix_is_the_product_of_its_axes(tmp_path: Path) -> None:
    cells = load(tmp_path, GOOD)
    mnist = [cell for cell in cells if cell.data.name == "mnist"]
    assert len(mnist) == len(set(mnist)) == 3 * 2 * 2
    assert {(cell.cache, cell.workers) for cell in mnist} == {
        (c, w) for c in ("cold", "warm") for w in (0, 2)
    }
    assert [cell.backend.name for cell in cells if cell.data.name == "cifar10"] == list(PAPER_BACKENDS)


def test_the_papers_network_and_caffes_batch_are_the_defaults() -> None:
    for dataset, model, batch in (
        ("mnist", "lenet", 64),
        ("cifar10", "cifar10_quick", 100),
        ("imagenet", "caffenet", 256),
        ("folder:/photos", "caffenet", 256),
    ):
        cell = make_scenario({"name": "x", "matrix": [{"dataset": dataset}]}).cells()[0]
        assert (cell.model, cell.batch_size, cell.workers, cell.cache) == (model, batch, 0, "any")


def test_the_same_cell_is_run_once_however_often_it_is_asked_for() -> None:
    raw = {"dataset": "mnist", "backends": ["png", "files", "files+png"], "workers": [1, 1]}
    assert len(make_scenario({"name": "x", "matrix": [raw, raw]}).cells()) == 1


def test_a_cells_id_is_stable_and_changes_with_every_setting() -> None:
    raw = {"dataset": "mnist", "backends": ["lmdb"]}
    [cell] = make_scenario({"name": "x", "matrix": [raw]}).cells()
    assert cell.cell_id == "08a0ab178f78"
    ids = {
        make_scenario({"name": "x", "matrix": [raw | change]}).cells()[0].cell_id
        for change in ({}, {"seed": 1}, {"workers": 1}, {"cache": "warm"}, {"limit": 5}, {"threads": 2})
    }
    assert len(ids) == 6


def test_a_folder_named_as_a_dataset_is_refused_with_its_spelling(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    raw = {"dataset": "photos", "backends": ["lmdb"]}
    with pytest.raises(StorebenchError, match="'photos', and there is no such folder"):
        make_scenario({"name": "x", "matrix": [raw]})
    (tmp_path / "photos").mkdir()
    with pytest.raises(StorebenchError, match="Write folder:photos for the folder of images"):
        make_scenario({"name": "x", "matrix": [raw]})


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("workers = ", "workerz = ", "matrix 1: no key is called 'workerz'. Did you mean 'workers'?"),
        ("replicates = 3", "replicate = 3", "no key is called 'replicate'. Did you mean 'replicates'?"),
        (
            'dataset = "cifar10"',
            'dataset = "cifar10"\nmax_stepz = 3',
            "matrix 2: no key is called 'max_stepz'",
        ),
        (
            '"lmdb+jpeg"',
            '"lmbd+jpeg"',
            "matrix 1: backends: no format is called 'lmbd'. Did you mean 'lmdb'?",
        ),
        ('"cold"', '"icy"', "cache: must be 'cold', 'warm', 'limited' or 'any'"),
        ("[0, 2]", "[0, -2]", "greater than or equal to 0"),
        ("[0, 2]", '"many"', "whole number"),
        ("replicates = 3", "replicates = 0", "replicates: must be greater than or equal to 1"),
        ('"mnist"', '"mnits"', "Did you mean 'mnist'?"),
        ('"mnist"', '"mnist"\nmodel = "lenett"', "Did you mean 'lenet'?"),
        ('"mnist"', '"mnist"\ncompute = "fast"', "emulated:MILLISECONDS"),
        ('"mnist"', '"mnist"\ndevice = "tpu"', "'cpu', 'cuda' or 'cuda:NUMBER'"),
    ],
)
def test_what_is_wrong_is_refused_with_its_matrix_and_what_was_meant(
    old: str, new: str, words: str, tmp_path: Path
) -> None:
    assert old in GOOD
    said = refusal(tmp_path, GOOD.replace(old, new))
    assert said.startswith("scenario.toml: "), said
    assert words in said
    assert "\n" not in said


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("name = ", "not TOML"),
        ('name = "x"\n', "Field required"),
        ('name = "../x"\n[[matrix]]\ndataset = "mnist"\n', "pattern"),
        ('name = "x"\n[[matrix]]\nmodel = "lenet"\n', "dataset: Field required"),
        (GOOD.replace('"mnist"', '"mnist"\nmodel = "none"'), "compute 'real' needs a model"),
        (GOOD.replace('"mnist"', '"mnist"\nmax_steps = 3\nwarmup_steps = 3'), "no timed step"),
        (GOOD.replace('"mnist"', '"mnist"\npasses = 3'), "with passes the cache cannot be"),
        (f'budget = "1.5"\n{GOOD}', "write a number with a unit, such as '90 s' or '12 min'"),
    ],
)
def test_what_cannot_be_run_is_refused(text: str, words: str, tmp_path: Path) -> None:
    assert words in refusal(tmp_path, text)


BUDGET = GOOD.replace("replicates = 3\n", 'replicates = 12\nbudget = "1.5 min"\n')


def test_a_scenario_may_state_its_time(tmp_path: Path) -> None:
    path = tmp_path / "scenario.toml"
    path.write_text(BUDGET)
    scenario = load_scenario(path)
    assert (scenario.replicates, scenario.budget_s) == (12, 90.0)
    assert Scenario.model_validate(scenario.model_dump(mode="json"), strict=False) == scenario
    fixed = scenario.repeated(7)
    assert (fixed.replicates, fixed.budget) == (7, None)
    assert fixed.cells() == scenario.cells()


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_every_scenario_that_we_ship_is_valid_and_asks_a_question(path: Path) -> None:
    scenario = load_scenario(path, tell=mute)  # decoders of choice may be missing
    assert scenario.name == path.stem
    assert scenario.question.endswith("?")
    assert scenario.cells()


def test_the_papers_scenario_is_its_three_datasets_by_its_six_backends() -> None:
    [path] = [path for path in SCENARIOS if path.stem == "paper"]
    cells = load_scenario(path).cells()
    for dataset, state in (
        ("mnist", "warm"),
        ("cifar10", "warm"),
        ("imagenet", "warm"),
        ("imagenet", "cold"),
    ):
        found = {cell.backend.name for cell in cells if cell.data.name == dataset and cell.cache == state}
        assert found >= set(PAPER_BACKENDS), (dataset, state)
    limited = {(cell.backend.name, cell.readahead_kib) for cell in cells if cell.cache == "limited"}
    assert limited >= {(name, kib) for name in ("png", "hdf5", "leveldb", "lmdb") for kib in (128, 8192)}


LIMITED = """\
name = "limited"

[[matrix]]
dataset = "mnist"
backends = ["png", "memory:native", "lmdb", "null"]
cache = ["cold", "limited"]
memory = "40 MiB"
readahead = [128, 8192]
"""


def test_memory_is_for_limited_cells_only_and_read_ahead_is_an_axis(tmp_path: Path) -> None:
    cells = load(tmp_path, LIMITED)
    of = {
        backend: [
            (cell.cache, cell.memory_bytes, cell.readahead_kib, cell.epochs)
            for cell in cells
            if cell.backend.name == backend
        ]
        for backend in ("lmdb", "memory:native", "null")
    }
    cold = [("cold", None, 128, 1), ("cold", None, 8192, 1)]
    assert of["lmdb"] == [*cold, ("limited", 40 << 20, 128, 2), ("limited", 40 << 20, 8192, 2)]
    assert of["memory:native"] == cold, "what holds all pixels in memory has no limited cell"
    assert of["null"] == [("any", None, None, 1)]


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('memory = "40 MiB"\n', "", "cache 'limited' needs a limit of the page cache"),
        ('["cold", "limited"]', '"cold"', "add 'limited' to cache"),
        ('"40 MiB"', '"40"', "write a number with a unit, such as '400 MiB'"),
        ('"40 MiB"', '"31 MiB"', "memory '31 MiB' is less than 32 MiB"),
        ("8192]", "8190]", "a multiple of 4"),
        (
            'backends = ["png", "memory:native", "lmdb", "null"]\ncache = ["cold", "limited"]',
            'backends = ["memory:native", "memory:python"]\ncache = ["limited"]',
            "no cell is left: memory:native has no limited cell",
        ),
    ],
)
def test_limits_that_make_no_sense_are_refused_in_one_line(
    old: str, new: str, words: str, tmp_path: Path
) -> None:
    assert old in LIMITED
    said = refusal(tmp_path, LIMITED.replace(old, new))
    assert words in said
    assert "\n" not in said


def test_a_cell_is_optional_only_where_no_other_matrix_asks_for_it(tmp_path: Path) -> None:
    optional = LIMITED + "optional = true\n"
    path = tmp_path / "scenario.toml"
    path.write_text(optional)
    assert load_scenario(path).optional_cells() == set(load_scenario(path).cells())
    path.write_text(optional + LIMITED[LIMITED.index("[[") :].replace("8192]", "4096]"))
    both = load_scenario(path)
    assert {cell.readahead_kib for cell in both.optional_cells()} == {8192}
    assert {cell.readahead_kib for cell in both.cells()} == {None, 128, 4096, 8192}
