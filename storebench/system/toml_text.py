"""Parse untrusted TOML, or refuse it with one line, however deeply nested or broken it is."""

import tomllib
from os import PathLike
from typing import Any

from storebench.errors import ScenarioError


def parse_toml(text: str, where: str | PathLike[str]) -> dict[str, Any]:
    try:
        return tomllib.loads(text.removeprefix("\ufeff"))
    except ValueError as error:
        raise ScenarioError(f"not TOML: {error}", where=where) from None
    except (RecursionError, MemoryError):
        raise ScenarioError("TOML that is nested too deep", where=where) from None
