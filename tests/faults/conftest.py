"""The library that lets operations fail, compiled once, and the sample of faults."""

import os
import shutil
from collections.abc import Iterator

import pytest

from tests.faults.engine import Library, hear_signals
from tests.faults.sample import Sample
from tests.support.quick_cli import CommandServer


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Library:
    if shutil.which(os.environ.get("CC", "cc")) is None:
        pytest.skip("there is no C compiler, which tests/faults/faults.c needs")
    hear_signals()
    return Library.build(tmp_path_factory.mktemp("library"))


@pytest.fixture(scope="session")
def sample(library: Library, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sample]:
    server = CommandServer(LD_PRELOAD=str(library.path))
    yield Sample(library, tmp_path_factory.mktemp("faults"), server)
    server.close()
