"""The reference page of scenario files, made from the model that validates them."""

import json
import typing
from collections.abc import Iterator
from typing import Any

import pydantic

from storebench.datasets.catalog import KNOWN
from storebench.run.matrix import LEAST_MEMORY_BYTES, MODEL_BATCHES, Axis, Matrix, MatrixWithoutLoop
from storebench.run.scenario import Scenario
from storebench.units import format_bytes
from tests.docs.schema_page import meanings

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

A scenario, or `bench --budget`, can state the time that it may take. Five rounds of the cells of priority 1 run in any
case; cells of a higher number end first, and then as many rounds run as fit:

```toml
replicates = 12
budget = "12 min"
```

A key that is not on this page, a value that is not allowed, and a combination that makes no sense are refused \
with their
place (exit code 2) before anything is built. Scenarios that name a format whose library is not installed run without
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


def scenario_reference() -> str:
    """Return the text of docs/scenarios.md."""
    head = ["| key | type | default | allowed | meaning |", "|---|---|---|---|---|"]
    top = [row for row in _rows(Scenario) if not row.startswith("| `matrix`")]
    matrix = [
        "",
        "## Each `[[matrix]]`",
        "",
        "A file has at least one matrix.",
        "",
        *head,
        *_rows(Matrix, MatrixWithoutLoop),
        "",
    ]
    return "\n".join([INTRO, "## The file", "", *head, *top, *matrix])


def _rows(model: type[pydantic.BaseModel], told_by: type | None = None) -> Iterator[str]:
    told, schema = meanings(told_by or model), model.model_json_schema()
    for name, field in model.model_fields.items():
        about = _one_value(schema["properties"][name], schema)
        text = told.get(name) or field.description or ""
        meaning, _, default = text.replace("``", "`").partition(" Default: ")
        kind = "list of strings" if name == "backends" else about["type"]
        if _is_axis(field.rebuild_annotation()):
            kind += "; axis"
        default = default.rstrip(".") or _default(field)
        yield f"| `{name}` | {kind} | {default} | {_allowed(name, about)} | {meaning} |"


def _allowed(name: str, about: dict[str, Any]) -> str:
    if name in ALLOWED:
        return ALLOWED[name]
    if about["type"] == "boolean":
        return "`true`, `false`"
    if "enum" in about:
        return ", ".join(f"`{value}`" for value in about["enum"])
    if {"minimum", "maximum"} <= about.keys():
        return f"{about['minimum']:,} to {about['maximum']:,}"
    return "more than 0" if about["type"] == "number" else "any"


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


def _default(field: pydantic.fields.FieldInfo) -> str:
    """Return a field's default as TOML."""
    if field.is_required():
        return "required"
    value = field.default
    one = value[0] if isinstance(value, list) and len(value) == 1 else value
    return f"`{json.dumps(one)}`"
