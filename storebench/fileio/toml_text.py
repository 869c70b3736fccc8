"""Parse untrusted TOML, or refuse it in one line, however deep or broken it is."""

import tomllib
from os import PathLike
from typing import Any

from storebench.errors import ScenarioError


def parse_toml(text: str, where: str | PathLike[str]) -> dict[str, Any]:
    """Return the table that TOML stands for.

    Raises
    ------
    ScenarioError
        It is no TOML, or nested too deep.
    """
    try:
        return tomllib.loads(text)
    except ValueError as error:
        raise ScenarioError(f"not TOML: {error}", where=where) from None
    except (RecursionError, MemoryError):
        raise ScenarioError("not TOML that is read here: it is nested too deep", where=where) from None
