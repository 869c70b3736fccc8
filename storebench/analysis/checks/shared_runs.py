"""The rules for a shared run, which has no step tables: its figures follow from each other."""

import itertools
import json
import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from storebench.analysis.checks.findings import Finding, Rule, agree, finding
from storebench.analysis.summary import CellSummary
from storebench.record.schema import COLD_SHARES, Record
from storebench.record.shared import read_shared

# Figures are rounded to five digits.
_ROUNDING = 1e-4

# A path or an address, and what may look like one: numbered places, the clock rate of a processor, and settings.
_NAMED = re.compile(r'"[^"]*[/\\@][^"]*"')
_PERMITTED = re.compile(
    r'"((copy:)?/place-\d+|(copy:)?s3:http://server-\d+/bucket|[^/\\@]* @ [\d.]+GHz|I/O (class|priority))"'
)


def stated(cells: Sequence[CellSummary]) -> list[dict[str, Any]]:
    """Return what a shared file says of its cells, beside their records."""
    said = []
    for cell in cells:
        rate = cell.interval("samples_per_s")
        figures = {"images_per_s": rate.mid, "low": rate.low, "high": rate.high} if rate else {}
        figures |= {f"cold_{share}": cold[0] for share in COLD_SHARES if (cold := cell.cold_rate(share))}
        names = {"cell_id": cell.cell.cell_id, "machine": cell.environment_key}
        said.append(names | {"replicates": len(cell.sound), "records": len(cell.rows)} | figures)
    return said


def check_shared(file: Path, records: Sequence[Record], cells: Sequence[CellSummary]) -> Iterator[Finding]:
    """Find what a shared file says against its own records, and names that it must not have."""

    def wrong(figure: str, message: str, cell_id: str = "") -> Finding:
        return Finding(kind=Rule.RUN, cell=file.name, cell_id=cell_id, figure=figure, message=message)

    content = read_shared(file)
    for text in _NAMED.findall(json.dumps(content, ensure_ascii=False)):
        if not _PERMITTED.fullmatch(text):
            yield wrong("names", f"{text} looks like a path or an address")
    yield from (found for record in records if not record.failed for found in _figures(record))
    nothing: dict[str, Any] = {}
    for right, said in itertools.zip_longest(stated(cells), content["cells"], fillvalue=nothing):
        for name in right.keys() | said.keys():
            first, second = said.get(name), right.get(name)
            both = isinstance(first, float) and isinstance(second, float)
            if not (agree(first, second) if both else first == second):
                yield wrong(name, f"{first}, but the records give {second}", right.get("cell_id", ""))


def _figures(record: Record) -> Iterator[Finding]:
    """Find rates and times that do not follow from others, up to rounding."""
    timed_s, part = record.timed_s, record.portion
    busy_s = record.data_wait_s + record.h2d_s + record.compute_s
    byte_rate = record.payload_bytes_per_s or 0.0
    pairs = [
        ("samples_per_s", record.timed_samples, (record.samples_per_s or 0.0) * timed_s),
        ("timed_s", timed_s, busy_s + record.overhead_s),
        ("epoch_s", max(timed_s, record.epoch_s), record.epoch_s),
        ("steps", max(record.steps, record.timed_steps), record.steps),
        ("data_wait_frac", record.data_wait_s, (record.data_wait_frac or 0.0) * busy_s),
        ("payload_bytes_per_s", min(record.payload_bytes, byte_rate * timed_s), byte_rate * timed_s),
    ]
    if record.accelerator_util_frac:
        pairs.append(("accelerator_util_frac", record.compute_s, record.accelerator_util_frac * timed_s))
    if part is not None:
        pairs.append(("portion.samples_per_s", part.samples, part.samples_per_s * part.seconds))
    for name, value, right in pairs:
        if not math.isclose(value, right, rel_tol=_ROUNDING, abs_tol=_ROUNDING * timed_s):
            yield finding(Rule.ARITHMETIC, record, name, f"{value:.5g}, where others give {right:.5g}")
