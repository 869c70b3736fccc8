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
    """Return the tables of docs/scenarios.md."""
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
    return "\n".join(["## The file", "", *head, *top, *matrix])


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
