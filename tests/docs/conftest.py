"""The sandbox in which the documents' commands run, made once."""

import pytest

from tests.docs.sandbox import Sandbox, make_sandbox


@pytest.fixture(scope="session")
def sandbox(tmp_path_factory: pytest.TempPathFactory) -> Sandbox:
    """Return a folder with small real files, a store and a run."""
    return make_sandbox(tmp_path_factory.mktemp("documents"))
