"""Run a user's script or module unedited, and profile the torch DataLoaders that it iterates."""

import atexit
import builtins
import concurrent.futures.process  # noqa: F401 - cannot be imported when the main thread has ended
import dataclasses
import fcntl
import importlib.abc
import importlib.machinery
import json
import os
import runpy
import signal
import statistics
import sys
import tempfile
import threading
import types
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, NoReturn

from storebench.profiling.guard import Guard, say
from storebench.profiling.loops import loops
from storebench.profiling.profile_report import ProfileReport
from storebench.profiling.recorder import Recorder
from storebench.profiling.stacks import PROFILER
from storebench.profiling.verdict import LEAST_GAIN
from storebench.settings.words import Limit
from storebench.system.whole_files import write_whole

_NOTHING_SEEN = (
    "storebench profile: this process iterated no torch DataLoader; those that it started other than by fork were not"
    " seen: wrap the loader there, storebench.profile(loader), or start them by"
    " torchrun --nproc-per-node N -m storebench profile SCRIPT"
)


class ScriptOptions(NamedTuple):
    """What ``storebench profile`` is asked for, beside the script."""

    as_module: bool = False
    out: str | None = None


class _End:
    """Write the verdict once, in whichever way this process ends."""

    def __init__(self, options: ScriptOptions, path: list[str]) -> None:
        self._options, self._path = options, path
        self._pid, self._is_done = os.getpid(), False

    def conclude(self) -> None:
        """Write the verdict; nothing of a forked process without a loop."""
        if self._is_done or (os.getpid() != self._pid and not loops.here()):
            return
        self._is_done = True
        if threading.current_thread() is threading.main_thread():
            # torch raises wherever this process is when a worker has died, which the script's own error says by now.
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        sys.path = self._path  # what is imported now is no module of the script's project
        Guard().attempt(self._write)

    def _write(self) -> None:
        report, recorder = loops.verdict() or (ProfileReport(bound=Limit.UNKNOWN), Recorder())
        ranks, out = int(os.environ.get("LOCAL_WORLD_SIZE", "1")), self._options.out
        if ranks > 1:
            _conclude_ranks(report, ranks)
            out = out and f"{out}/rank{os.environ['RANK']}"
        elif not recorder.epochs:
            say(_NOTHING_SEEN)
            return
        else:
            say(str(report))
        if out is not None:
            Path(out).mkdir(parents=True, exist_ok=True)
            facts = {**dataclasses.asdict(report), "bound": str(report.bound), "text": str(report)}
            write_whole(Path(out, "profile.json"), json.dumps(facts, indent=1))

    def precede(self) -> None:
        """Have the verdict written before `os._exit`, and before SIGTERM, as `timeout` sends it."""
        exit_now = os._exit

        def concluded_exit(status: int) -> NoReturn:
            self.conclude()
            exit_now(status)

        os._exit = concluded_exit
        if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, self._terminate)

    def _terminate(self, number: int, _frame: types.FrameType | None) -> None:
        if signal.getsignal(number) != self._terminate:  # called by the script's own handler
            return
        signal.signal(number, signal.SIG_DFL)
        # Torch's handler raises where a worker was terminated, too.
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        if os.getpid() == self._pid:  # not a process that the script forked
            self.conclude()
        os.kill(os.getpid(), number)


class _AfterImport(importlib.abc.MetaPathFinder):
    """Watch torch's loaders once the script has imported them: imported any earlier, torch would miss its settings."""

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
                Guard().attempt(lambda: importlib.import_module("storebench.profiling.torch_loaders"))

            spec.loader.exec_module = execute_and_watch  # type: ignore[method-assign]
        return spec


def main() -> None:
    """Run the script that the command line names after the options, as Python would."""
    options = ScriptOptions(**json.loads(sys.argv[1]))
    name, *sys.argv = sys.argv[2:]
    sys.argv.insert(0, name)
    end = _End(options, sys.path)
    if not os.environ.get("PYTHONSAFEPATH"):
        folder = os.getcwd() if options.as_module else os.path.dirname(os.path.realpath(name))  # noqa: PTH109, PTH120
        sys.path = [folder, *sys.path]
    loops.begin_script()
    sys.meta_path.insert(0, _AfterImport())
    end.precede()
    try:
        if options.as_module:
            runpy.run_module(name, run_name="__main__", alter_sys=True)
        else:
            _run(os.path.abspath(name))  # noqa: PTH100 - as Python shows it, with links
    except BaseException:
        _hide_own_frames()
        raise
    finally:
        if all(thread.daemon or thread is threading.main_thread() for thread in threading.enumerate()):
            end.conclude()
        else:  # Python waits for the others first
            atexit.register(end.conclude)


def _run(path: str) -> None:
    """Run a file as `__main__`, which it stays for threads that go on."""
    module, loader = types.ModuleType("__main__"), importlib.machinery.SourceFileLoader("__main__", path)
    vars(module).update(__file__=path, __loader__=loader, __cached__=None, __builtins__=builtins)
    sys.modules["__main__"] = module
    exec(loader.source_to_code(loader.get_data(path), path), vars(module))  # noqa: S102


def _hide_own_frames() -> None:
    """Have an error that ends the script shown from the script's first frame on, by whichever hook is installed."""
    show = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: types.TracebackType | None) -> None:
        hidden = (PROFILER, "<string>", "<frozen runpy>", "<frozen importlib", runpy.__file__)
        while trace is not None and trace.tb_frame.f_code.co_filename.startswith(hidden):
            trace = trace.tb_next
        show(kind, error.with_traceback(trace), trace)

    sys.excepthook = hook


def _conclude_ranks(report: ProfileReport, count: int) -> None:
    """Write this rank's times, and put them beside those of the node's other ranks; the last one writes the verdict.

    It is the first rank's, or that of a rank whose longer waits the others wait for in each step.
    """
    number, attempt = int(os.environ["RANK"]), os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    times = f"{1e3 * report.step_s:,.2f} ms per step, waiting {1e3 * report.wait_s:,.2f} ms"
    say(f"storebench profile: rank {number}: {times}")
    # All were started by one process.
    path = Path(tempfile.gettempdir(), f"storebench-profile-{os.getuid()}-{os.getppid()}-{attempt}.jsonl")
    with path.open("a+", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write(json.dumps([number, report.wait_s, report.step_s, str(report)]) + "\n")
        file.seek(0)
        ranks = sorted(json.loads(line) for line in file)
    if len(ranks) < count:
        return
    path.unlink()
    slow, longest_s, step_s, verdict = max(ranks, key=lambda rank: rank[1])
    saved_s = longest_s - statistics.median(
        [wait_s for rank, wait_s, *_ in ranks if rank != slow] or [longest_s]
    )
    gain = step_s / max(step_s - saved_s, 1e-9)
    if gain < LEAST_GAIN:
        say(ranks[0][-1])
        return
    say(
        f"storebench profile: limited by a slow rank: rank {slow} waits {1e3 * saved_s:,.2f} ms longer per step\n"
        f"  if it waited like the others: {gain:.2f} times as fast (predicted); its own verdict:\n{verdict}"
    )
