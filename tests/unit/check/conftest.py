"""A clone of this repository, which tests of comparisons change and give back."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.revision_tools import clone_here, git


@pytest.fixture(scope="session")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return clone_here(tmp_path_factory.mktemp("against") / "clone")


@pytest.fixture
def untouched(clone: Path) -> Iterator[Path]:
    """Give the clone, and give it back as it was."""
    before = git(clone, "rev-parse", "HEAD")
    yield clone
    git(clone, "reset", "--hard", "--quiet", before)
    git(clone, "clean", "--force", "-dx", "--quiet", "--exclude=__pycache__")
