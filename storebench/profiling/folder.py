"""The folder of a profile: its figures and verdict as JSON, and its timeline for Perfetto."""

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from storebench.system.whole_files import write_whole

if TYPE_CHECKING:
    from storebench.profiling.profile_report import ProfileReport
    from storebench.profiling.recorder import Recorder

PROFILE_NAME, TRACE_NAME = "profile.json", "trace.json"


def write_profile(folder: Path, recorder: "Recorder", report: "ProfileReport") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    facts = {**dataclasses.asdict(report), "bound": str(report.bound), "text": str(report)}
    write_whole(folder / PROFILE_NAME, json.dumps(facts, indent=1))
    write_whole(folder / TRACE_NAME, json.dumps({"traceEvents": list(_events(recorder))}))


def read_profile(folder: Path) -> dict[str, Any] | None:
    """Return the figures of a profile, with its verdict as "text"; None if this is the folder of something else."""
    path = folder / PROFILE_NAME
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else None


def _events(recorder: "Recorder") -> Iterator[dict[str, Any]]:
    """Yield events of Chrome's trace format: the loop is thread 0, each process that makes batches another."""
    yield {"ph": "M", "name": "thread_name", "pid": 1, "tid": 0, "args": {"name": "loop"}}
    origin_ns = min((step.asked_ns for step in recorder.steps), default=0)

    def span(name: str, thread: int, start_ns: int, ns: int) -> dict[str, Any]:
        times = {"ts": (start_ns - origin_ns) / 1e3, "dur": ns / 1e3}
        return {"ph": "X", "name": name, "pid": 1, "tid": thread, **times}

    for step in recorder.steps:
        yield span("wait", 0, step.asked_ns, step.wait_ns)
        if step.loop_ns is not None:
            yield span("loop", 0, step.asked_ns + step.wait_ns, step.loop_ns)
        if (made := step.made) is not None:
            yield span("dataset", made.pid, made.began_ns, made.collated_ns - made.began_ns)
            yield span("collate", made.pid, made.collated_ns, made.ended_ns - made.collated_ns)
