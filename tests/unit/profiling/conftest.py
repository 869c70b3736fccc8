"""A profile watches every loader of its process from then on; those of other tests are not."""

from collections.abc import Iterator

import pytest

from storebench.profiling import torch_loaders


@pytest.fixture(autouse=True)
def unwatched() -> Iterator[None]:
    yield
    torch_loaders.watch_all(None)
