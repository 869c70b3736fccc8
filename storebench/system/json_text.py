"""Parse untrusted JSON, or refuse it with one line, however deeply nested or broken it is."""

import json
import re
from collections.abc import Mapping
from os import PathLike
from typing import Any

from storebench.errors import CorruptDataError

_MOST_CHARACTERS = 60
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")

Where = str | PathLike[str]


class IncompleteJsonError(CorruptDataError):
    """Text that is not JSON, like the last line of a killed process; not several values one after the other."""


def parse_json(raw: bytes | str, where: Where, *, hint: str | None = None) -> Any:
    try:
        text = (raw if isinstance(raw, str) else raw.decode("utf-8")).removeprefix("\ufeff")
        value = json.loads(text)
        if _SURROGATE.search(text):
            # Half of a surrogate pair can be parsed, but neither printed nor written.
            json.dumps(value, ensure_ascii=False).encode("utf-8")
    except ValueError as error:
        kind = CorruptDataError if "Extra data" in str(error) else IncompleteJsonError
        raise kind(f"not JSON ({error})", where=where, hint=hint) from None
    except (RecursionError, MemoryError) as error:
        what = "too large for the memory" if isinstance(error, MemoryError) else "nested too deep"
        raise CorruptDataError(f"JSON that is {what}", where=where, hint=hint) from None
    return value


def brief(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]}..."


def complaint(error: Any) -> str:
    """Return the first complaint of a `pydantic.ValidationError`: "NAME: what is wrong with it"."""
    first = error.errors()[0]
    name = ".".join(str(part) for part in first["loc"])
    message = wrong_value(first)
    return f"{name}: {message}" if name else message


def wrong_value(error: Mapping[str, Any]) -> str:
    """Return the fault of a value, and the value, of one of the errors of a `pydantic.ValidationError`."""
    message = str(error["msg"]).removeprefix("Value error, ")
    if error["type"] in ("value_error", "missing"):
        return message
    return f"{in_few_words(message)}, not {brief(error.get('input'))}"


def in_few_words(message: str) -> str:
    """Return pydantic's sentence about a value without what its reader knows already."""
    return re.sub(r", unable to .*", "", message.replace("Input should be", "must be")).replace(
        "a valid integer", "a whole number"
    )
