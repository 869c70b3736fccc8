"""Scenarios by name from any folder, and without the formats whose library is not installed."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from storebench.check.sides import label_of
from storebench.errors import PLYVEL, install_line
from storebench.run.scenario import SHIPPED, load_scenario, shipped_scenarios
from storebench.system.progress import mute

Cli = Callable[..., subprocess.CompletedProcess[str]]
CHECKOUT = Path(__file__).parents[3] / "scenarios"

SCENARIO = """\
name = "mine"

[[matrix]]
dataset = "mnist"
synthetic = true
limit = 8
backends = [{backends}]
"""


@pytest.fixture
def without_plyvel(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return an environment in which the library of LevelDB does not import."""
    folder = tmp_path_factory.mktemp("without")
    (folder / f"{PLYVEL}.py").write_text(
        f'raise ModuleNotFoundError("No module named {PLYVEL}", name={PLYVEL!r})'
    )
    return {"PYTHONPATH": str(folder)}


def planned(cli: Cli, *words: str) -> list[str]:
    done = cli("bench", *words, "--dry-run", "--json")
    assert done.returncode == 0, done.stderr
    return [cell["backend"] for cell in json.loads(done.stdout)["cells"]]


def test_the_package_has_the_scenarios_of_the_checkout() -> None:
    assert SHIPPED.name == "scenarios"
    assert sorted(shipped_scenarios().values()) == sorted(CHECKOUT.glob("*.toml"))


@pytest.mark.parametrize("name", shipped_scenarios())
def test_a_plan_tells_all_cells_apart(name: str) -> None:
    told = [label_of(cell) for cell in load_scenario(shipped_scenarios()[name], tell=mute).cells()]
    assert len(set(told)) == len(told) > 0


def test_a_plan_names_no_setting_in_which_cells_agree(cli: Cli) -> None:
    done = cli("run", "lmdb", "-d", "mnist", "--synthetic", "--limit", "64", "--seed", "1,2", "--dry-run")
    assert done.returncode == 0, done.stderr
    first, second, *_ = done.stdout.splitlines()
    words = "mnist/lmdb/any/processes-0/batch-64/lenet-real/seed"
    assert [first.partition("  ")[2], second.partition("  ")[2]] == [f"{words}-1", f"{words}-2"]


def test_scenarios_are_listed_by_name_in_any_folder(cli: Cli) -> None:
    done = cli("scenarios")
    assert {"paper", "smoke"} <= {line.partition(":")[0] for line in done.stdout.splitlines()}
    assert f"the files are in {CHECKOUT}" in done.stderr
    rows = json.loads(cli("scenarios", "--json").stdout)
    assert {Path(row["path"]) for row in rows} == set(CHECKOUT.glob("*.toml"))


def test_a_file_without_a_suffix_is_read_and_a_slash_tells_it_from_a_name(cli: Cli, tmp_path: Path) -> None:
    for name in ("mine", "smoke"):
        (tmp_path / name).write_text(SCENARIO.format(backends='"png"'))
    assert planned(cli, "mine") == ["png"]
    assert planned(cli, "./smoke") == ["png"]
    assert len(planned(cli, "smoke")) > 1


def test_a_format_without_its_library_is_left_out_with_one_line(
    cli: Cli, tmp_path: Path, without_plyvel: dict[str, str]
) -> None:
    (tmp_path / "mine.toml").write_text(SCENARIO.format(backends='"leveldb", "png", "leveldb+jpeg"'))
    done = cli("bench", "mine.toml", "--dry-run", "--json", env=without_plyvel)
    assert [cell["backend"] for cell in json.loads(done.stdout)["cells"]] == ["png"]
    (line,) = done.stderr.splitlines()
    assert line.startswith(
        f"left out: the format 'leveldb' needs the library {PLYVEL!r}, which is not installed."
    )
    assert install_line(PLYVEL) in line
    listed = cli("scenarios", env=without_plyvel)
    assert listed.returncode == 0
    assert listed.stderr.count("left out: ") == 1, "those of other projects are missing, too"


def test_an_optional_matrix_of_such_formats_only_is_left_out(
    cli: Cli, tmp_path: Path, without_plyvel: dict[str, str]
) -> None:
    text = SCENARIO.format(backends='"png"')
    more = text[text.index("[[matrix]]") :].replace('"png"', '"leveldb"') + "\noptional = true\n"
    (tmp_path / "mine.toml").write_text(f"{text}\n{more}")
    done = cli("bench", "mine.toml", "--dry-run", "--json", env=without_plyvel)
    assert [cell["backend"] for cell in json.loads(done.stdout)["cells"]] == ["png"]
    assert done.stderr.startswith("left out: the format 'leveldb'")


def test_a_format_asked_for_by_name_is_refused_without_its_library(
    cli: Cli, tmp_path: Path, without_plyvel: dict[str, str]
) -> None:
    (tmp_path / "mine.toml").write_text(SCENARIO.format(backends='"leveldb"'))
    for words in (
        ("bench", "mine.toml"),
        ("convert", "leveldb", "--dataset", "mnist", "--synthetic"),
        ("run", "png", "leveldb", "--dataset", "mnist", "--synthetic"),
    ):
        done = cli(*words, env=without_plyvel)
        assert done.returncode == 2
        (line,) = done.stderr.splitlines()
        assert install_line(PLYVEL) in line
    assert [path.name for path in tmp_path.iterdir()] == ["mine.toml"]
