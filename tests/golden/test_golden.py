"""Results of today can be compared with those of yesterday: nothing that they rest on changed unnoticed."""

import json
from typing import Any

import pytest

from tests.golden.make_golden import GOLDEN, golden


@pytest.fixture(scope="module")
def now() -> dict[str, Any]:
    return golden()


@pytest.fixture(scope="module")
def then() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(GOLDEN.read_text())
    return found


@pytest.mark.parametrize("name", ["sample_digests", "set_digest", "order_digest", "augmented_digest"])
def test_digests_orders_and_crops_are_those_of_every_older_result(
    name: str, now: dict[str, Any], then: dict[str, Any]
) -> None:
    assert now[name] == then[name]
