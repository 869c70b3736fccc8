"""Make docs/schema.md, the result schema in words, from the code (``make docs``)."""

import ast
import dataclasses
import enum
import inspect
import textwrap
import types
import typing
from typing import Any

from storebench.results import SCHEMA_VERSION, Cell, CellFields, Record
from storebench.units import METRICS

_HEAD = f"""# What a result holds

Made from the code by `make docs`; a test compares this page with it.

A run's folder only grows. Nothing that is recorded is overwritten:

| file | what |
| --- | --- |
| `run.json` | the run's id, the resolved scenario, the versions; `whole`, the size of the whole dataset and whether it fits into memory, if `storebench run` chose what to measure |
| `against.json` | in each side of a comparison with a revision (`bench --against`): what pairs it with the other side |
| `records.jsonl` | one record per line. All records of a replicate are appended and synced at once, after their step tables; a half-written line or replicate at the end is what a killed run leaves, and is dropped |
| `superseded.jsonl` | records that were replaced: those of failed replicates that `--retry-failed` ran again, of disturbed replicates that were repeated (`repeat_disturbed`), and of parts of replicates that a killed process left; also the damaged last line of a finished run that was resumed. Nothing counts them |
| `steps.parquet` | one row per step of every record of a finished run: [below](#one-row-of-stepsparquet) |
| `steps/*.parquet` | the same while the run goes on: one file per record. When the last replicate is recorded, they move into `steps.parquet`. |
| `logs/` | what a failed cell printed |
| `probes/` | what one cell measured for others of the same run: the device's rates |

This is schema version {SCHEMA_VERSION}. Units stand in names: `_ns`, `_s`, `_bytes`, `_per_s`, `_frac` (a share from 0 to 1).
`null` means that something was not measured, never that it was zero.
"""

_PLAIN = {
    "schema_version": "2; another one is refused",
    "storebench_version": "the version that measured",
    "run_id": "the run; one folder",
    "epoch": "from 0, in one process",
    "status": "whether the record may be used",
    "failure": "why it failed, in one line",
    "started_utc": "when the epoch began",
    "timed_steps": "steps that are not flagged as warm-up",
    "payload_bytes": "bytes of payload that the epoch asked for",
    "au_kind": "what the utilization is of",
    "test_samples": "test images that the accuracy is taken over",
    "reader_notes": "what a reader of the figures should know of how the store was read",
    "steps_file": "name of the record's step table: a file below the run's folder, or the rows of `steps.parquet` with this name",
    "format": "the container",
    "codec": "how one image becomes bytes",
    "reader": "the way in to the format",
    "reader_options": "the reader's options, as pairs",
    "p50": "the median",
    "p95": "19 of 20 steps are below",
    "p99": "99 of 100 steps are below",
    "max": "the longest",
    "expected": "samples that the epoch should serve",
    "served": "samples that came",
    "unique": "different samples among them",
    "duplicates": "samples that came again",
    "missing": "samples that never came",
    "first": "of the first step",
    "last": "of the last step",
    "count": "samples in the store",
    "image_shape": "height, width, channels",
    "file_bytes": "sizes of the store's data files added up",
    "samples_digest": "digest of all decoded samples and labels; equal for every lossless store of the dataset",
    "lossless": "whether the codec gives back every pixel",
    "origin": '"real", "derived" or "synthetic"',
    "source": "the layout that was read, in words",
    "derived_frac": "share of samples that are not images of the source as they are",
    "provenance_note": "what a reader of a figure should know of the data",
    "requested": '"cold", "warm", "limited" or "any"',
    "first_step": "number of the portion's first step",
    "steps": "steps of the portion",
    "samples": "samples of the portion",
    "seconds": "wall time of the portion",
    "digest": "of the package's Python files",
    "commit": "git commit of the checkout that the package was imported from",
    "verdict": "whether the state was measured to be the one asked for",
    "voluntary_switches": "context switches while waiting for something",
    "involuntary_switches": "context switches because others wanted the processor",
    "cpu_user_s": "processor time in the processes' own code",
    "cpu_system_s": "processor time in the kernel for them",
    "reasons": "why a figure is null, by its name",
}

STEP_COLUMNS: dict[str, tuple[str, str]] = {
    "step": ("int", "number of the step in its epoch, from 0"),
    "warmup": ("bool", "recorded, but left out of rates on both sides"),
    "samples": ("int", "samples in the batch"),
    "payload_bytes": (
        "int",
        "bytes of payload that the rank requested for the batch; with one reader per node, the bytes of all ranks there",
    ),
    "start_ns": ("int", "when the loop began to ask for the batch; one clock for all processes"),
    "data_wait_ns": ("int", "how long the loop was blocked on the loader"),
    "h2d_ns": ("int", "copy to the device; 0 on a CPU"),
    "compute_ns": ("int", "forward, backward and optimizer, the device synchronised"),
    "paused_ns": (
        "int",
        "how long the loop then paused to keep samples for the proof and to read the counters; in no sum and no rate",
    ),
    "worker": ("int", "which producer made the batch; -1 is the loop's own process"),
    "fetch_start_ns": ("int", "when the producer began to fetch"),
    "fetch_ns": ("int", "bytes from the store into private memory"),
    "decode_ns": ("int", "bytes into pixels"),
    "prep_ns": ("int", "augment and collate"),
    "ready_ns": ("int", "when the producer had finished the batch"),
    "device_read_bytes": (
        "int",
        "bytes that block devices delivered for the process that made the batch, since its previous one (/proc/PID/io read_bytes)",
    ),
    "read_calls": ("int", "its system calls that read, likewise (/proc/PID/io syscr)"),
    "major_faults": ("int", "its page faults with I/O, likewise"),
    "minor_faults": ("int", "its page faults without I/O, likewise"),
    "queue_depth": ("int", "batches that lay ready when the loop asked"),
    "loss": ("float32", "the step's loss; null where nothing was computed"),
    "rank": (
        "int",
        "the rank whose step it is: tables of jobs have one row per step and rank, with the loss over the samples of all ranks; null in others",
    ),
}
"""Column of a step table -> type and meaning."""

RECORD_COLUMNS: dict[str, tuple[str, str]] = {
    "steps_file": ("string", "the record that has this `steps_file`"),
    "cell_id": ("string", "its cell"),
    "replicate": ("int", "its replicate"),
    "epoch": ("int", "its epoch"),
}
"""Column of ``steps.parquet`` that says which record a row belongs to -> type and meaning."""

_STEPS_LEAD = """## One row of `steps.parquet`

Each row group holds the steps of one record, so a filter on `steps_file` reads only those. Replicates that were replaced
are in the file, too: `superseded.jsonl` names them.

```python
import pandas as pd

records = pd.read_json("results/reference/paper/records.jsonl", lines=True)
mine = [("steps_file", "==", records["steps_file"][0])]
steps = pd.read_parquet("results/reference/paper/steps.parquet", filters=mine)
```

`pyarrow.parquet.read_table` takes the same filters, and `storebench.load_steps` also reads runs that are not finished. A
file in `steps/` lacks the first four columns. A column that the table of a record lacks is null in all rows of a
record, and so is a counter that could not be read.

The counters are those of the process that made the batch, since its previous batch. In the process of the loop they
include computing, and threads that make batches at the same time share them. The record's totals also hold what the
process of the loop read and touched beside worker processes. Reading the counters takes a few microseconds per batch and is
in no span (`python -m benchmarks.overhead --only counters`).
"""


def schema_markdown() -> str:
    """Return the whole of docs/schema.md."""
    parts = [_HEAD, *(_class_part(kind) for kind in _classes(Record)), _steps_part()]
    return "\n".join(parts)


def _classes(kind: type) -> list[type]:
    """Return a dataclass and those of its fields, each once, in the order of first use."""
    found = [kind]
    for hint in typing.get_type_hints(kind).values():
        for part in (hint, *typing.get_args(hint)):
            written = CellFields if part is Cell else part
            if dataclasses.is_dataclass(written) and isinstance(written, type) and written not in found:
                found += [one for one in _classes(written) if one not in found]
    return found


def is_part(hint: Any) -> bool:
    """Return whether a type has a section of its own."""
    return dataclasses.is_dataclass(hint)


def _class_part(kind: type) -> str:
    told = meanings(kind)
    hints = typing.get_type_hints(kind)
    rows = []
    for field in dataclasses.fields(kind):
        held = [one for one in (hints[field.name], *typing.get_args(hints[field.name])) if is_part(one)]
        other = (inspect.getdoc(held[0]) or "").partition("\n")[0] if held else _PLAIN.get(field.name, "")
        meaning = told.get(field.name) or (METRICS[field.name].meaning if field.name in METRICS else other)
        rows.append(f"| `{field.name}` | {type_words(hints[field.name])} | {meaning} |")
    lead = (inspect.getdoc(kind) or "").partition("Attributes\n---")[0].strip()
    name = "One record" if kind is Record else f"`{kind.__name__}`"
    return "\n".join(
        [f"## {name}", "", lead, "", "| field | type | meaning |", "| --- | --- | --- |", *rows, ""]
    )


def _steps_part() -> str:
    columns = (RECORD_COLUMNS | STEP_COLUMNS).items()
    rows = [f"| `{name}` | {kind} | {meaning} |" for name, (kind, meaning) in columns]
    return "\n".join([_STEPS_LEAD, "| column | type | meaning |", "| --- | --- | --- |", *rows, ""])


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


def type_words(hint: Any) -> str:
    """Return a field's type in words."""
    if isinstance(hint, types.UnionType):
        return " or ".join(type_words(part) for part in typing.get_args(hint))
    if hint is types.NoneType:
        return "null"
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return " or ".join(f'"{one.value}"' for one in hint)
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return f"[`{hint.__name__}`](#{hint.__name__.lower()})"
    origin = typing.get_origin(hint)
    if origin is not None:
        return "object" if origin is dict else "array"
    text = isinstance(hint, type) and issubclass(hint, str)
    return "string" if text else {Any: "any"}.get(hint, getattr(hint, "__name__", str(hint)))
