"""Run a user's script or module unedited, and profile the torch DataLoaders that it iterates.

``python -m storebench.profiling.script OPTIONS NAME [arguments]``, which ``storebench profile`` becomes; OPTIONS is JSON.
"""

import dataclasses
import fcntl
import importlib.abc
import importlib.machinery
import json
import os
import runpy
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from storebench.profiling.evidence import Bound, Report
from storebench.profiling.guard import Guard, say
from storebench.profiling.recorder import Recorder
from storebench.profiling.verdict import LEAST_GAIN, report_of


class Options(NamedTuple):
    """What ``storebench profile`` is asked for, beside the script."""

    as_module: bool = False
    sweep: bool = False
    ceiling: bool = False
    convert: bool = False
    out: str | None = None


class _Job:
    """The loaders that the script of this process iterates, and what is asked for."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.recorders: dict[tuple[Any, ...], Recorder] = {}
        self.loaders: dict[Recorder, Any] = {}  # the last of each; kept for a sweep only

    def recorder_of(self, loader: Any) -> Recorder:
        """Return the recorder of a loader; a script that makes its loader anew for each epoch has one recorder for all."""
        try:
            length = len(loader.dataset)
        except TypeError:
            length = -1
        key = (type(loader.dataset), length, loader.batch_size, loader.num_workers)
        if key not in self.recorders:
            self.recorders[key] = Recorder(has_ceiling=self.options.ceiling)
        if self.options.sweep:
            self.loaders[self.recorders[key]] = loader
        return self.recorders[key]

    def conclude(self, *, is_terminated: bool = False) -> None:
        """Write the verdict on the loader that took the most time; of several ranks, one line each and one verdict."""
        for recorder in self.recorders.values():
            recorder.ended()
        pairs = [(report_of(recorder), recorder) for recorder in self.recorders.values()]
        report, recorder = max(
            pairs, key=lambda pair: pair[0].total_s, default=(Report(bound=Bound.UNKNOWN), Recorder())
        )
        ranks, out = int(os.environ.get("LOCAL_WORLD_SIZE", "1")), self.options.out
        if ranks > 1:
            _conclude_ranks(report, ranks)
            out = out and f"{out}/rank{os.environ['RANK']}"
        elif not pairs:
            say("storebench profile: the script iterated no torch DataLoader")
            return
        else:
            if recorder in self.loaders and not is_terminated:
                from storebench.profiling.sweep import sweep
                from storebench.profiling.torch_loaders import watch_all

                watch_all(None)
                report = report_of(recorder, sweep(self.loaders[recorder]))
            if len(pairs) > 1:
                others = f"other loaders: {len(pairs) - 1}"
                report = dataclasses.replace(report, unseen=(*report.unseen, others))
            say(str(report))
        if out is not None:
            from storebench.profiling.folder import write_profile

            write_profile(Path(out), recorder, report)
        if self.options.convert and ranks == 1 and not is_terminated:
            _convert(report, out)


def _convert(report: Report, out: str | None) -> None:
    """Run what the report prints to measure the stores that the files could become."""
    if report.converting is None:
        say("storebench profile: nothing to convert: no image files were seen open")
        return
    folders = ["--out", f"{out}/run", "--stores", f"{out}/stores"] if out else []
    command = [sys.executable, "-P", "-m", *shlex.split(report.converting), *folders]
    with subprocess.Popen(command, stdout=sys.stderr):
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt ends the run, which cleans up


class _AfterImport(importlib.abc.MetaPathFinder):
    """Watch torch's loaders once the script has imported them: imported any earlier, torch would miss its settings."""

    def __init__(self, recorder_of: Callable[[Any], Recorder]) -> None:
        self._recorder_of = recorder_of

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != "torch.utils.data":
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_watch(module: types.ModuleType) -> None:
                execute(module)
                Guard().attempt(self._watch_all)

            spec.loader.exec_module = execute_and_watch  # type: ignore[method-assign]
        return spec

    def _watch_all(self) -> None:
        from storebench.profiling.torch_loaders import watch_all

        watch_all(self._recorder_of)


class _Rank(NamedTuple):
    """What one process of a job says of its steps."""

    rank: int
    step_s: float
    wait_s: float
    verdict: str


def main() -> None:
    """Run the script that the command line names, as Python itself would."""
    job = _Job(Options(**json.loads(sys.argv[1])))
    name, *arguments = sys.argv[2:]
    sys.argv = [name, *arguments]
    sys.meta_path.insert(0, _AfterImport(job.recorder_of))
    _conclude_before_termination(job)
    try:
        if job.options.as_module:
            runpy.run_module(name, run_name="__main__", alter_sys=True)
        else:
            sys.path[0] = os.path.dirname(os.path.realpath(name))  # noqa: PTH120
            runpy.run_path(os.path.abspath(name), run_name="__main__")  # noqa: PTH100 - as Python shows it, with links
    except BaseException:
        _hide_own_frames()
        raise
    finally:
        if hasattr(signal, "SIGCHLD"):
            # torch raises wherever this process is when a worker has died, which the script's own error says by now.
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        Guard().attempt(job.conclude)


def _conclude_before_termination(job: _Job) -> None:
    """Have the verdict written before this process dies of SIGTERM, as `timeout` sends it."""
    pid = os.getpid()

    def conclude(number: int, _frame: types.FrameType | None) -> None:
        if signal.getsignal(number) is not conclude:  # called by the script's own handler
            return
        signal.signal(number, signal.SIG_DFL)
        # Torch's handler raises where a worker was terminated, too.
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        if os.getpid() == pid:  # not a process that the script forked
            Guard().attempt(lambda: job.conclude(is_terminated=True))
        os.kill(os.getpid(), number)

    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, conclude)


def _hide_own_frames() -> None:
    """Have an error that ends the script shown from the script's first frame on, by whichever hook is installed."""
    show = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: types.TracebackType | None) -> None:
        own = {__file__, "<frozen runpy>", runpy.__file__}
        while trace is not None and trace.tb_frame.f_code.co_filename in own:
            trace = trace.tb_next
        show(kind, error.with_traceback(trace), trace)

    sys.excepthook = hook


def _conclude_ranks(report: Report, count: int) -> None:
    """Write this rank's times, also to a file for the last rank of the node that ends; all were started by one process."""
    own = _Rank(int(os.environ["RANK"]), report.step_s, report.wait_s, str(report))
    times = f"{1e3 * own.step_s:,.2f} ms per step, waiting {1e3 * own.wait_s:,.2f} ms"
    say(f"storebench profile: rank {own.rank}: {times}")
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    name = f"storebench-profile-{os.getuid()}-{os.getppid()}-{attempt}.jsonl"
    path = Path(tempfile.gettempdir(), name)
    with path.open("a+", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write(json.dumps(own) + "\n")
        file.seek(0)
        ranks = [_Rank(*json.loads(line)) for line in file]
    if len(ranks) == count:
        path.unlink()
        _say_verdict(sorted(ranks))


def _say_verdict(ranks: list[_Rank]) -> None:
    """Write the first rank's verdict, or that of a rank whose longer waits the others wait for in each step."""
    slow = max(ranks, key=lambda rank: rank.wait_s)
    others_s = statistics.median([rank.wait_s for rank in ranks if rank is not slow] or [slow.wait_s])
    saved_s = slow.wait_s - others_s
    gain = slow.step_s / max(slow.step_s - saved_s, 1e-9)
    if gain < LEAST_GAIN:
        say(ranks[0].verdict)
        return
    say(
        f"storebench profile: limited by a slow rank: rank {slow.rank} waits {1e3 * saved_s:,.2f} ms longer per step\n"
        f"  if it waited like the others: {gain:.2f} times as fast (predicted); its own verdict:\n{slow.verdict}"
    )


if __name__ == "__main__":
    main()
