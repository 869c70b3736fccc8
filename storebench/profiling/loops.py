"""The loops over loaders that this process has seen, and which of them a verdict is about."""

import copy
import dataclasses
import os
import time
import traceback
import types
import weakref
from pathlib import Path
from typing import Any

from storebench.profiling.profile_report import Report
from storebench.profiling.recorder import Recorder
from storebench.profiling.stacks import LIBRARIES, OWN
from storebench.profiling.verdict import LEAST_GAIN, report_of


class Loops:
    """The recorders of the loaders that this process iterates, in the order of their first epochs."""

    def __init__(self) -> None:
        self.recorders: list[Recorder] = []
        self._seen: dict[Recorder, tuple[object, weakref.ref[Any]]] = {}
        self.kept: dict[Recorder, Any] = {}  # copies of loaders, which a loop may make and drop
        self._has_ceiling = self._keeps_loaders = False
        self._began_ns: int | None = None

    def begin_script(self, *, has_ceiling: bool, keeps_loaders: bool = False) -> None:
        """Note that the script begins of whose time the loops take a share."""
        self._has_ceiling, self._began_ns = has_ceiling, time.monotonic_ns()
        self._keeps_loaders = keeps_loaders

    def here(self) -> list[Recorder]:
        """Return the recorders of the loops of this process: the script may have forked it."""
        return [recorder for recorder in self.recorders if recorder.epochs and recorder.pid == os.getpid()]

    def recorder_of(self, loader: Any) -> Recorder:
        """Return the recorder of a loader; of one that is made anew for each epoch, that of the one before."""
        frames = user_frames()
        lines = [(frame.f_code.co_filename, frame.f_lineno) for frame in frames]
        key = (os.getpid(), lines, type(loader.dataset), loader.batch_size, loader.num_workers)
        for recorder, (before, reference) in self._seen.items():  # noqa: B007 - used below
            last = reference()
            if before == key and (last is None or last.dataset is loader.dataset):
                break
        else:
            recorder = Recorder(has_ceiling=self._has_ceiling)
            recorder.name = name_of(frames, type(loader.dataset), loader)
            self.recorders.append(recorder)
        self._seen[recorder] = key, weakref.ref(loader)
        if self._keeps_loaders:
            self.kept[recorder] = copy.copy(loader)
        return recorder

    def add(self, recorder: Recorder, loader: Any, *names: Any) -> None:
        """Add a recorder that the user's program has made."""
        recorder.name = name_of(user_frames(), type(loader), loader, *names)
        if self._began_ns is not None:  # else they are as many as its epochs, maybe
            self.recorders.append(recorder)

    def verdict(self) -> tuple[Report, Recorder] | None:
        """Return the verdict on the loader whose waits take longest, or on the longest loop if all waits are short."""
        for recorder in self.here():
            recorder.ended()
        pairs = [(report_of(recorder), recorder) for recorder in self.here()]
        if not pairs:
            return None
        spent_ns = sum(recorder.waited_ns + recorder.looped_ns for _, recorder in pairs)
        are_short = max(recorder.waited_ns for _, recorder in pairs) < spent_ns * (1.0 - 1.0 / LEAST_GAIN)

        def cost(pair: tuple[Report, Recorder]) -> tuple[bool, int]:
            report, recorder = pair
            return bool(report.total_s), recorder.waited_ns + are_short * recorder.looped_ns

        report, recorder = max(pairs, key=cost)
        return self.described(report, recorder), recorder

    def described(self, report: Report, recorder: Recorder) -> Report:
        """Return a report with the name of its loader, the share of the script, and the waits for other loaders."""
        others = [other for other in self.here() if other is not recorder and not other.is_drained]
        spent_ns = recorder.waited_ns + recorder.looped_ns
        script_ns = self._began_ns and time.monotonic_ns() - self._began_ns
        return dataclasses.replace(
            report,
            loader=recorder.name,
            script_frac=spent_ns / script_ns if script_ns else None,
            others_s={other.name: 1e-9 * other.waited_ns for other in others},
        )


loops = Loops()
"""Those of this process."""


def name_of(frames: list[types.FrameType], kind: type, *loaders: Any) -> str:
    """Return what the script's module calls a loader, the line that iterates it, and what it is."""
    # Locals are not looked at: `f_locals` would keep them alive.
    variables = [pair for frame in frames[-1:] for pair in list(frame.f_globals.items())]
    names = [name for name, value in variables if any(value is loader for loader in loaders)]
    places = [f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}" for frame in frames[:1]]
    return ", ".join([*names[-1:], *places, kind.__name__])


def user_frames() -> list[types.FrameType]:
    """Return this thread's frames outside of libraries, innermost first."""
    frames = (frame for frame, _ in traceback.walk_stack(None))
    return [frame for frame in frames if not frame.f_code.co_filename.startswith((OWN, *LIBRARIES))]
