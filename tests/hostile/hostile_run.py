"""What the tests of hostile files share: answers of the command line, and records as plain values."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SAMPLES = "mnist-train-limit96-synthetic"
"""Folder of the stores of one set of samples."""

_POINT = {"elapsed_s": 0.0, "asked_frac": 0.0, "resident_frac": 0.0}
_SUMS = ("payload_bytes", "data_wait_s", "h2d_s", "compute_s", "fetch_s", "decode_s", "prep_s", "handover_s")


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What the command line printed and how it ended."""

    code: int
    out: str
    err: str

    def check(self, change: str) -> None:
        """Assert that this is success, or one line for an error that is known."""
        lines = [line for line in self.err.splitlines() if line.startswith("storebench: ")]
        told = f"{change}: exit code {self.code}, {self.err[-2000:]}"
        assert self.code in range(6), told
        assert "Traceback" not in self.err + self.out, told
        assert "unexpected error" not in self.err, told
        assert len(lines) <= 1, told
        assert lines or self.out or self.code == 0, told
        assert all(len(line) < 3000 for line in self.err.splitlines()), told


Here = Callable[..., Answer]


def records_of(run: Path) -> list[dict[str, Any]]:
    """Return the records of a run as JSON values; the first gets a portion and a curve, as limited cells have."""
    lines = (run / "records.jsonl").read_text(encoding="utf-8").splitlines()
    records: list[dict[str, Any]] = [json.loads(line) for line in lines]
    first = records[0]
    first["portion"] = {
        **{name: first[name] for name in _SUMS},
        "first_step": 0,
        "steps": first["steps"],
        "samples": first["samples"],
        "seconds": first["timed_s"],
        "samples_per_s": first["samples_per_s"],
        "drift": 1.0,
    }
    first["cache"]["curve"] = [_POINT, {**_POINT, "elapsed_s": first["timed_s"]}]
    return records


def write_records(run: Path, records: list[dict[str, Any]]) -> None:
    """Replace the records of a run."""
    text = "".join(json.dumps(record) + "\n" for record in records)
    (run / "records.jsonl").write_text(text, encoding="utf-8")
