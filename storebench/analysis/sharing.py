"""Make a run into one small file that may be sent to anybody."""

import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from storebench.analysis.checks.records import read_results
from storebench.analysis.checks.shared_runs import stated
from storebench.analysis.frame import sourced
from storebench.analysis.summary import summarise
from storebench.errors import UsageError
from storebench.record.lines import record_from_dict
from storebench.record.shared import MOST_SHARED_BYTES, names_for_others, packed, shared_record
from storebench.run.about import places
from storebench.run.scenario import shipped_scenarios


def share(run: Path) -> tuple[dict[str, Any], bytes]:
    """Return the content and the bytes of the shared file of a run, which must be valid."""
    results = read_results(run)
    given = places(results.records)
    records = sorted((record for record, _ in results.records), key=lambda r: given.index(r.cell.place))
    if len({record.run_id for record in records}) > 1:
        raise UsageError("these are several runs", hint="Share them one by one.")
    began, _, scenario = records[0].run_id.partition("-")
    run_id = f"{began}-{scenario if scenario in shipped_scenarios() else 'run'}"
    names, whole = names_for_others(records), results.rows[0].whole
    shared = [shared_record(record, run_id, names) for record in records]
    read_back = sourced((record_from_dict(raw, where=str(run)), run) for raw in shared)
    content = {
        "run_id": run_id,
        "whole": whole and dataclasses.asdict(whole),
        "cells": stated(summarise(read_back)),
        "records": shared,
    }
    if len(file := packed(content)) > MOST_SHARED_BYTES:
        most = f"a shared file has at most {MOST_SHARED_BYTES:,} bytes, this one would have {len(file):,}"
        raise UsageError(most, hint="Share a run of fewer cells.")
    return content, file


def _facts(values: Mapping[str, Any]) -> Iterator[str]:
    """Yield the innermost facts that are known, with their names."""
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _facts(value)
        elif value is not None:
            yield f"{name} {value}"


def contents(content: dict[str, Any]) -> list[str]:
    """Return all that a shared file contains, as ten lines."""
    records = content["records"]
    told = {
        "run": [content["run_id"]],
        "machine": [
            fact for record in records for fact in _facts((record["environment"] or {}).get("match") or {})
        ],
    }
    told |= {
        name: [r["cell"][name] for r in records]
        for name in ("dataset", "backend", "cache", "compute", "place")
    }
    told["figures"] = [f"of {len(records)} epochs of {len(content['cells'])} cells", *sorted(records[0])]
    told["summary"] = sorted({name for cell in content["cells"] for name in cell})
    told["left out"] = ["step tables", "residency over time", "figures of single ranks", "names", "texts"]
    return [
        f"{title + ':':<10}{', '.join(dict.fromkeys(map(str, values)))}" for title, values in told.items()
    ]
