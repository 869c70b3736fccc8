"""The library that lets operations fail, compiled once."""

import os
import shutil

import pytest

from tests.faults.engine import Library


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Library:
    if shutil.which(os.environ.get("CC", "cc")) is None:
        pytest.skip("there is no C compiler, which tests/faults/faults.c needs")
    return Library.build(tmp_path_factory.mktemp("library"))
