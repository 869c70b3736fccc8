"""The reference page of scenario files, made from the model that validates them."""

import inspect
import json
import typing
from dataclasses import dataclass
from typing import Any

import pydantic

from storebench.datasets.catalog import KNOWN
from storebench.matrix import LEAST_MEMORY_BYTES, MODEL_BATCHES, Axis, Matrix
from storebench.scenario import Scenario
from storebench.units import format_bytes
from tests.docs.schema_page import attribute_docs

INTRO = """# Scenario files

Made from the code by `make docs`; a test compares this page with it.

A scenario is a TOML file with one question and the cells that answer it. `storebench scenarios` lists those that come
with storebench, and `storebench bench NAME` runs one of them. `storebench bench FILE.toml` runs a file of yours:

```toml
name = "shuffled-reads"
question = "Which format feeds a shuffled epoch of CIFAR-10 fastest?"
replicates = 3

[[matrix]]
dataset = "cifar10"
backends = ["png", "lmdb", "lmdb+jpeg", "hdf5"]
cache = ["cold", "warm"]
workers = [0, 2]
```

Several keys of a matrix are axes: they take one value or a list. A matrix stands for every combination of the values of
its axes and its backends. Here these are 4 x 2 x 2 = 16 cells, and each cell is measured in 3 fresh processes. A cell
that several matrices describe is measured once. `storebench bench FILE.toml --dry-run` prints the cells and their
bytes.

A scenario can state the time that it may take. The first 5 rounds run in any case, and then as many as fit:

```toml
replicates = 12
budget = "12 min"
```

A key that is not on this page, a value that is not allowed, and a combination that makes no sense are refused with their
line (exit code 2) before anything is built. Scenarios that name a format whose library is not installed run without
it, and say so.
"""

ALLOWED = {
    "name": "letters, digits, `-` and `_`",
    "budget": "a time such as `12 min`",
    "dataset": ", ".join(f"`{name}`" for name in KNOWN),
    "backends": "`FORMAT[+CODEC][:READER][?OPTION=VALUE]`; `storebench formats` lists them",
    "model": ", ".join(f"`{name}`" for name in MODEL_BATCHES),
    "compute": "`real`, `none`, `emulated:MILLISECONDS`",
    "memory": f"a size such as `400 MiB`, {format_bytes(LEAST_MEMORY_BYTES)} or more",
    "readahead": "KiB, a multiple of 4",
    "device": "`cpu`, `cuda`, `cuda:NUMBER`",
}
"""What a validator of the model allows, for the keys whose JSON schema does not say it."""


@dataclass(frozen=True, kw_only=True)
class Key:
    """One row of a table.

    Attributes
    ----------
    values
        The values that the JSON schema allows; empty where it names none.
    least, most
        Bounds of a number; None where there is none.
    """

    name: str
    kind: str
    axis: bool
    default: str
    meaning: str
    values: tuple[str, ...] = ()
    least: int | None = None
    most: int | None = None

    @property
    def allowed(self) -> str:
        """The allowed values in words."""
        if self.name in ALLOWED:
            return ALLOWED[self.name]
        if self.values:
            return ", ".join(f"`{value}`" for value in self.values)
        if self.most is not None:
            return f"{self.least:,} to {self.most:,}"
        return "more than 0" if self.kind == "number" else "any"

    def row(self) -> str:
        """Return the key as a row of Markdown."""
        kind = f"{self.kind}; axis" if self.axis else self.kind
        return f"| `{self.name}` | {kind} | {self.default} | {self.allowed} | {self.meaning} |"


def scenario_reference() -> str:
    """Return the text of docs/scenarios.md."""
    top = [key for key in keys(Scenario) if key.name != "matrix"]
    return "\n".join(
        [
            INTRO,
            "## The file",
            "",
            *_table(top),
            "",
            "## Each `[[matrix]]`",
            "",
            "A file has at least one matrix.",
            "",
            *_table(keys(Matrix)),
            "",
        ]
    )


def keys(model: type[pydantic.BaseModel]) -> list[Key]:
    """Return the keys of a table of the file, in the order of the model."""
    meanings = attribute_docs(inspect.getdoc(model) or "")
    schema = model.model_json_schema()
    return [_key(name, field, schema, meanings.get(name, "")) for name, field in model.model_fields.items()]


def _key(
    name: str,
    field: pydantic.fields.FieldInfo,
    schema: dict[str, Any],
    text: str,
) -> Key:
    meaning, _, default = text.partition(" Default: ")
    value = _one_value(schema["properties"][name], schema)
    return Key(
        name=name,
        kind="list of strings" if name == "backends" else value["type"],
        axis=_is_axis(field.rebuild_annotation()),
        default=default.rstrip(".") or _default(field),
        meaning=meaning.replace("``", "`"),
        values=_values(value),
        least=value.get("minimum"),
        most=value.get("maximum"),
    )


def _is_axis(hint: Any) -> bool:
    """Return whether a key takes one value or a list; the mark may be on one part of a union with None."""
    parts = (hint, *typing.get_args(hint))
    return any(Axis in getattr(part, "__metadata__", ()) for part in parts)


def _one_value(about: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    """Return the JSON schema of one value of a key: without null, and of a list its items."""
    if "anyOf" in about:
        about = next(part for part in about["anyOf"] if part.get("type") != "null")
    if "$ref" in about:
        about = schema["$defs"][about["$ref"].rpartition("/")[2]]
    if about.get("type") == "array" and "items" in about:
        return _one_value(about["items"], schema)
    return about


def _values(value: dict[str, Any]) -> tuple[str, ...]:
    if value["type"] == "boolean":
        return ("true", "false")
    return tuple(str(one) for one in value.get("enum", ()))


def _default(field: pydantic.fields.FieldInfo) -> str:
    """Return a field's default as TOML."""
    if field.is_required():
        return "required"
    value = field.default
    one = value[0] if isinstance(value, list) and len(value) == 1 else value
    return f"`{json.dumps(one)}`"


def _table(rows: list[Key]) -> list[str]:
    head = ["| key | type | default | allowed | meaning |", "|---|---|---|---|---|"]
    return [*head, *(key.row() for key in rows)]
