"""The loops over loaders that this process has seen, and which of them a verdict is about."""

import dataclasses
import os
import time
import traceback
import types
import weakref
from pathlib import Path
from typing import Any

from storebench.profiling.profile_report import ProfileReport
from storebench.profiling.recorder import Recorder
from storebench.profiling.stacks import is_users
from storebench.profiling.verdict import LEAST_GAIN, report_of


class Loops:
    """The recorders of the loaders that a script iterates, in the order of their first epochs."""

    def __init__(self) -> None:
        self.recorders: list[Recorder] = []
        self.wrapped = 0  # epochs of wrapped loaders that go on
        self._seen: dict[Recorder, tuple[object, weakref.ref[Any]]] = {}
        self._began_ns = 0

    def begin_script(self) -> None:
        """Note that the script begins of whose time the loops take a share."""
        self._began_ns = time.monotonic_ns()

    def here(self) -> list[Recorder]:
        """Return the recorders of the loops of this process: the script may have forked it."""
        return [recorder for recorder in self.recorders if recorder.epochs and recorder.pid == os.getpid()]

    def recorder_of(self, loader: Any) -> Recorder | None:
        """Return the recorder of a loader of torch that an epoch begins of; None if it is not watched.

        A loader that is made anew for each epoch has the recorder of the one before. Beside a wrapped loader, the time
        in requests to others is all that counts.
        """
        if not self._began_ns:
            recorder = Recorder() if self.wrapped else None
        else:
            recorder = self._recorder_in_script(loader)
        if recorder is not None:
            recorder.attach(loader)
        return recorder

    def _recorder_in_script(self, loader: Any) -> Recorder:
        key = (os.getpid(), user_lines(), type(loader.dataset), loader.batch_size, loader.num_workers)
        for recorder, (before, reference) in self._seen.items():  # noqa: B007 - used below
            last = reference()
            if before == key and (last is None or last.dataset is loader.dataset):
                break
        else:
            recorder = Recorder(name_of(type(loader.dataset)))
            self.recorders.append(recorder)
        self._seen[recorder] = key, weakref.ref(loader)
        return recorder

    def add(self, recorder: Recorder) -> None:
        if self._began_ns and recorder not in self.recorders:
            self.recorders.append(recorder)

    def verdict(self) -> tuple[ProfileReport, Recorder] | None:
        """Return the verdict on the loader whose waits take longest, or on the longest loop if all waits are short."""
        for recorder in self.here():
            recorder.ended()
        pairs = [(report_of(recorder), recorder) for recorder in self.here()]
        if not pairs:
            return None
        spent_ns = sum(recorder.waited_ns + recorder.looped_ns for _, recorder in pairs)
        are_short = max(recorder.waited_ns for _, recorder in pairs) < spent_ns * (1.0 - 1.0 / LEAST_GAIN)

        def cost(pair: tuple[ProfileReport, Recorder]) -> tuple[bool, int]:
            report, recorder = pair
            return bool(report.total_s), recorder.waited_ns + are_short * recorder.looped_ns

        report, recorder = max(pairs, key=cost)
        return self.described(report, recorder), recorder

    def described(self, report: ProfileReport, recorder: Recorder) -> ProfileReport:
        """Return a report with the share of the script, and the waits for other loaders."""
        others = [other for other in self.here() if other is not recorder]
        spent_ns = recorder.waited_ns + recorder.looped_ns
        return dataclasses.replace(
            report,
            script_frac=spent_ns / (time.monotonic_ns() - self._began_ns) if self._began_ns else None,
            others_s={other.name: 1e-9 * other.waited_ns for other in others},
        )


# Those of this process.
loops = Loops()


def name_of(kind: type) -> str:
    """Return the line that iterates a loader, and what it is."""
    places = [f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}" for frame in user_frames()[:1]]
    return ", ".join([*places, kind.__name__])


def user_frames() -> list[types.FrameType]:
    """Return this thread's frames outside of libraries, innermost first."""
    return [frame for frame, _ in traceback.walk_stack(None) if is_users(frame)]


def user_lines() -> list[tuple[str, int]]:
    """Return the file and line of each of these frames."""
    return [(frame.f_code.co_filename, frame.f_lineno) for frame in user_frames()]
