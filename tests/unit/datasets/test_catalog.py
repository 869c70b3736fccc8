"""Where files are looked for, and when a stand-in may take their place."""

from pathlib import Path
from typing import Any

import pytest

from storebench.datasets import DATASETS, DatasetSpec, Origin, open_dataset
from storebench.errors import DataNotFoundError, UnknownNameError, UsageError
from tests.support.dataset_files import write_mnist


def test_what_was_fetched_into_the_default_folder_is_found_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STOREBENCH_DATA", str(tmp_path / "empty"))
    write_mnist(tmp_path / "data" / "mnist")
    assert open_dataset(DatasetSpec(name="mnist")).info.provenance.origin is Origin.REAL
    write_mnist(tmp_path / "empty" / "mnist", train=9)
    assert len(open_dataset(DatasetSpec(name="mnist"))) == 9


@pytest.mark.parametrize("name", DATASETS)
def test_without_files_the_stand_in_says_why_it_is_there(name: str, tmp_path: Path) -> None:
    info = open_dataset(DatasetSpec(name=name), tmp_path).info
    assert info.provenance.origin is Origin.SYNTHETIC
    assert info.provenance.note == f"no files of {name} in {tmp_path}"


@pytest.mark.parametrize("name", DATASETS)
def test_a_refused_stand_in_says_exactly_what_to_do(name: str, tmp_path: Path) -> None:
    with pytest.raises(DataNotFoundError, match=rf"{tmp_path}: no files of {name}.*{name}/ there"):
        open_dataset(DatasetSpec(name=name, synthetic=False), tmp_path)


def test_unknown_names_offer_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'cifar10'"):
        open_dataset(DatasetSpec(name="cifar"))
    with pytest.raises(UnknownNameError, match="Did you mean 'train'"):
        open_dataset(DatasetSpec(name="mnist", split="trian"))  # type: ignore[arg-type]


@pytest.mark.parametrize("options", [{"size": 0}, {"limit": 0}, {"size": -3}, {"seed": -1}])
def test_impossible_numbers_are_refused(options: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        open_dataset(DatasetSpec(name="mnist", **options), tmp_path)
