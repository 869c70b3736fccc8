"""Make docs/schema.md, the result schema in words, from the code (``make docs``)."""

import ast
import dataclasses
import enum
import inspect
import re
import textwrap
import types
import typing
from typing import Any

from storebench.record.schema import SCHEMA_VERSION, Cell, Record, cell_types
from storebench.run.matrix import Matrix
from storebench.settings.loop_fields import SETTINGS

_CELL_MEANINGS = {row.name: row.meaning for row in SETTINGS} | {
    "format": "the container",
    "codec": "how one image becomes bytes",
    "reader": "the way in to the format",
    "reader_options": "the reader's options, as pairs",
    "dataset": '"mnist", "cifar10", "imagenet", or a path such as "folder:PATH"',
    "split": "part of the dataset",
    **dict.fromkeys(("size", "limit"), "as in `storebench.datasets.base.DatasetSpec`"),
    "data_seed": "seed of derived and synthetic samples",
    "synthetic": "true where the stand-in was asked for; null takes real files where there are any",
    "image_size": "side of the square images that every codec serves; "
    "null for the default of the dataset and the network",
    "skip_unreadable": "whether unreadable image files are left out; otherwise they are refused",
    "backend": "the backend's full name; `format`, `codec`, `reader`, `reader_options` are its parts",
    "codec_options": "how payloads are decoded where that is not the default, as pairs: `decoder` and `scale`",
}

_COLUMNS = ("| field | unit | meaning |", "| --- | --- | --- |")

_UNITS = {
    "samples_per_s": "samples/s",
    "bytes_per_s": "bytes/s",
    "bytes": "bytes",
    "kib": "KiB",
    "frac": "share",
    "db": "dB",
    "ns": "ns",
    "s": "s",
    "seconds": "s",
    **dict.fromkeys(("p50", "p95", "p99", "max"), "ns"),
}
"""Part of a name -> its unit; the first that fits."""

_STEP_COLUMNS = {
    "step": "number of the step in its epoch, from 0",
    "warmup": "left out of rates",
    "samples": "samples in the batch",
    "payload_bytes": "payload that the rank requested; with one reader per node, that of all ranks there",
    "start_ns": "when the loop began to ask for the batch; one clock for all processes",
    "data_wait_ns": "how long the loop was blocked on the loader",
    "h2d_ns": "copy to the device",
    "compute_ns": "forward, backward and optimizer, the device synchronised",
    "paused_ns": "how long the loop then paused for proofs and counters; in no rate",
    "worker": "producer of the batch; -1 is the loop's own process",
    "fetch_start_ns": "when the producer began to fetch",
    "fetch_ns": "bytes from the store into private memory",
    "decode_ns": "bytes into pixels",
    "prep_ns": "augment and collate",
    "ready_ns": "when the producer had finished the batch",
    "device_read_bytes": "bytes that block devices delivered",
    "read_calls": "system calls that read",
    "major_faults": "page faults with I/O",
    "minor_faults": "page faults without I/O",
    "queue_depth": "batches that were ready when the loop asked",
    "loss": "the step's loss, over the samples of all ranks",
    "rank": "the rank whose step it is; null outside of jobs",
}
_STEP_TYPES = {"warmup": "bool", "loss": "number"}

_STEPS_LEAD = """## One row of a file in `steps/`

A record names its file; `storebench.load_steps` joins those of many records.

```python
import pandas as pd

records = pd.read_json("results/reference/paper/records.jsonl", lines=True)
steps = pd.read_parquet("results/reference/paper/" + records["steps_file"][0])
```

Counters are those of the process that made the batch, since its previous batch.
"""

_CELL_LEAD = """The settings of the cell. Further fields are keys of \
[a scenario's matrix](scenarios.md#each-matrix), with the
same name and meaning:"""


def schema_markdown() -> str:
    """Return the tables of docs/schema.md."""
    parts = [*(_class_part(kind) for kind in _classes(Record)), _steps_part()]
    return "\n".join(parts)


def _classes(kind: type) -> list[type]:
    """Return a dataclass and those of its fields, each once, in the order of first use."""
    found = [kind]
    if kind is Cell:
        return found
    for hint in typing.get_type_hints(kind).values():
        for part in (hint, *typing.get_args(hint)):
            if dataclasses.is_dataclass(part) and isinstance(part, type) and part not in found:
                found += [other for other in _classes(part) if other not in found]
    return found


def _class_part(kind: type) -> str:
    if kind is Record:
        lead = f"One epoch of one replicate of one cell, by schema version {SCHEMA_VERSION}."
        name = "One record"
    else:
        lead, name = (inspect.getdoc(kind) or "").partition("\n")[0], f"`{kind.__name__}`"
    told, hints = meanings(kind), typing.get_type_hints(kind)
    names = [field.name for field in dataclasses.fields(kind)]
    if kind is Cell:
        told, hints = _CELL_MEANINGS, cell_types()
        shared = [name for name in hints if name in Matrix.model_fields]
        lead = f"{_CELL_LEAD} {', '.join(f'`{name}`' for name in shared)}."
        names = [name for name in hints if name not in shared]
    rows = [
        f"| `{name}` | {unit(name, hints[name])} | {_meaning(name, told, hints[name])} |" for name in names
    ]
    return "\n".join([f"## {name}", "", lead, "", *_COLUMNS, *rows, ""])


def _meaning(name: str, told: dict[str, str], hint: Any) -> str:
    """Return the first sentence that is said of a field."""
    held = [one for one in (hint, *typing.get_args(hint)) if dataclasses.is_dataclass(one)]
    other = (inspect.getdoc(held[0]) or "").partition("\n")[0] if held else meanings(Record).get(name, "")
    text = told.get(name) or other
    return re.split(r"\.(?: |$)|;|, or null| \(/proc", text)[0]


def _steps_part() -> str:
    rows = [
        f"| `{name}` | {_STEP_TYPES.get(name) or _unit_in(name) or 'count'} | {meaning} |"
        for name, meaning in _STEP_COLUMNS.items()
    ]
    return "\n".join([_STEPS_LEAD, *_COLUMNS, *rows, ""])


def meanings(kind: type) -> dict[str, str]:
    """Return what is said of each field: a string or a comment behind it, or a section of the docstring."""
    found = _section(inspect.getdoc(kind) or "")
    try:
        source = textwrap.dedent(inspect.getsource(kind))
    except OSError:  # a class that is made of the settings
        return found
    [made] = ast.parse(source).body
    lines = source.splitlines()
    body = typing.cast("ast.ClassDef", made).body
    for part, following in zip(body, [*body[1:], None], strict=True):
        if not isinstance(part, ast.AnnAssign) or not isinstance(part.target, ast.Name):
            continue
        text = lines[(part.end_lineno or part.lineno) - 1][part.end_col_offset :].partition("# ")[2]
        if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
            text = " ".join(str(following.value.value).split())
        if text:
            found[part.target.id] = text.replace("|", "\\|")
    return found


def _section(doc: str) -> dict[str, str]:
    """Return what a numpydoc ``Attributes`` section says of each name; names that share a text each get it."""
    found: dict[str, str] = {}
    names: list[str] = []
    for line in doc.partition("Attributes\n----------\n")[2].splitlines():
        if line and not line.startswith(" "):
            names = [name.strip() for name in line.split(",")]
        for name in names if line.startswith(" ") else ():
            found[name] = f"{found.get(name, '')} {line.strip()}".strip().replace("|", "\\|")
    return found


def unit(name: str, hint: Any) -> str:
    """Return the unit of a field, or the type of one that has none; whether it may be null is in the JSON schema."""
    if isinstance(hint, types.UnionType):
        hint = next(part for part in typing.get_args(hint) if part is not types.NoneType)
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return f"[`{hint.__name__}`](#{hint.__name__.lower()})"
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return ", ".join(one.value for one in hint)
    origin = typing.get_origin(hint)
    if origin is not None:
        return "object" if origin is dict else "array"
    if hint is int or hint is float:
        return _unit_in(name) or ("count" if hint is int else "number")
    return {str: "text", bool: "bool"}.get(hint, "text")


def _unit_in(name: str) -> str:
    """Return the unit that stands in a name."""
    return next((unit for part, unit in _UNITS.items() if f"_{part}_" in f"_{name}_"), "")
