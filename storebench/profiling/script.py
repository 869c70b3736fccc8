"""Run a user's script or module unedited, and profile the torch DataLoaders that it iterates."""

import atexit
import builtins
import concurrent.futures.process  # noqa: F401 - cannot be imported when the main thread has ended
import fcntl
import functools
import importlib.abc
import importlib.machinery
import json
import os
import pkgutil
import runpy
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from storebench.profiling.folder import write_profile
from storebench.profiling.guard import Guard, say
from storebench.profiling.loops import loops
from storebench.profiling.profile_report import Bound, Report
from storebench.profiling.recorder import Recorder
from storebench.profiling.stacks import OWN
from storebench.profiling.verdict import LEAST_GAIN, report_of

_NOTHING_SEEN = (
    "storebench profile: this process iterated no torch DataLoader; those that it started other than by fork were not"
    " seen: wrap the loader there, storebench.profile(loader), or start them by"
    " torchrun --nproc-per-node N -m storebench profile SCRIPT"
)


class Options(NamedTuple):
    """What ``storebench profile`` is asked for, beside the script."""

    as_module: bool = False
    sweep: bool = False
    ceiling: bool = False
    convert: bool = False
    out: str | None = None


class _End:
    """Write the verdict once, in whichever way this process ends."""

    def __init__(self, options: Options, path: list[str], modules: dict[str, types.ModuleType]) -> None:
        self._options, self._path, self._modules = options, path, modules
        self._pid, self._is_done = os.getpid(), False

    def conclude(self, *, is_last: bool = False) -> None:
        """Write the verdict; nothing of a forked process without a loop. If it `is_last`, nothing more is measured."""
        is_child = os.getpid() != self._pid
        if self._is_done or (is_child and not loops.here()):
            return
        self._is_done = True
        if threading.current_thread() is threading.main_thread():
            # torch raises wherever this process is when a worker has died, which the script's own error says by now.
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        sys.path = self._path
        sys.modules.update(self._modules)
        Guard().attempt(lambda: self._write(is_last=is_last or is_child))

    def _write(self, *, is_last: bool) -> None:
        """Write the verdict on the loops; of several ranks, one line each and one verdict."""
        report, recorder = loops.verdict() or (Report(bound=Bound.UNKNOWN), Recorder())
        options, ranks, out = self._options, int(os.environ.get("LOCAL_WORLD_SIZE", "1")), self._options.out
        if ranks > 1:
            _conclude_ranks(report, ranks)
            out = out and f"{out}/rank{os.environ['RANK']}"
        elif not recorder.epochs:
            say(_NOTHING_SEEN)
            return
        else:
            if recorder in loops.kept and not is_last:
                from storebench.profiling.torch_loaders import sweep

                report = loops.described(report_of(recorder, sweep(loops.kept[recorder])), recorder)
            say(str(report))
        if out is not None:
            write_profile(Path(out), recorder, report)
        if options.convert and ranks == 1 and not is_last:
            _convert(report, out)

    def precede(self) -> None:
        """Have the verdict written before the calls that end this process at once, and before SIGTERM, as `timeout` sends it."""
        for name in ("_exit", "execv", "execve"):
            setattr(os, name, self._after_verdict(getattr(os, name)))
        if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, self._terminate)

    def _after_verdict(self, end: Any) -> Any:
        @functools.wraps(end)
        def concluded(*args: Any, **kwargs: Any) -> Any:
            becomes = end.__name__ != "_exit" and bool(args) and os.access(args[0], os.X_OK)
            self._is_done = self._is_done or (end.__name__ != "_exit" and not loops.here())
            self.conclude(is_last=True)
            if becomes and os.getpid() == self._pid:
                say("storebench profile: not seen: the program that this one becomes; profile that one")
            return end(*args, **kwargs)

        return concluded

    def _terminate(self, number: int, _frame: types.FrameType | None) -> None:
        if signal.getsignal(number) != self._terminate:  # called by the script's own handler
            return
        signal.signal(number, signal.SIG_DFL)
        # Torch's handler raises where a worker was terminated, too.
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        if os.getpid() == self._pid:  # not a process that the script forked
            self.conclude(is_last=True)
        os.kill(os.getpid(), number)


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
                Guard().attempt(_watch_all)

            spec.loader.exec_module = execute_and_watch  # type: ignore[method-assign]
        return spec


def _watch_all() -> None:
    from storebench.profiling.torch_loaders import watch_all

    watch_all(loops.recorder_of)


class _Rank(NamedTuple):
    """What one process of a job says of its steps."""

    rank: int
    step_s: float
    wait_s: float
    verdict: str


def main(path: list[str], before: set[str]) -> None:
    """Run the script that the command line names, with this path of modules, as Python would after importing those `before`."""
    options = Options(**json.loads(sys.argv[1]))
    name, *sys.argv = sys.argv[2:]
    sys.argv.insert(0, name)
    folder = os.getcwd() if options.as_module else os.path.dirname(os.path.realpath(name))  # noqa: PTH109, PTH120
    own_path, sys.path = sys.path, path if sys.flags.safe_path else [folder, *path]
    end = _End(options, own_path, _hidden_modules(before))
    loops.begin_script(has_ceiling=options.ceiling, keeps_loaders=options.sweep)
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
    if pkgutil.get_importer(path) is not None or path.endswith(".pyc"):
        runpy.run_path(path, run_name="__main__")
        return
    module, loader = types.ModuleType("__main__"), importlib.machinery.SourceFileLoader("__main__", path)
    vars(module).update(__file__=path, __loader__=loader, __cached__=None, __builtins__=builtins)
    sys.modules["__main__"] = module
    exec(loader.source_to_code(loader.get_data(path), path), vars(module))  # noqa: S102


def _hidden_modules(before: set[str]) -> dict[str, types.ModuleType]:
    """Take out the modules imported since, and return them, for which the script would import others of the same name."""
    names = {name.partition(".")[0] for name in sys.modules.keys() - before} - {
        "storebench",
        *sys.builtin_module_names,
    }
    hidden = {name for name in names if _is_other(name)}
    return {name: sys.modules.pop(name) for name in list(sys.modules) if name.partition(".")[0] in hidden}


def _is_other(name: str) -> bool:
    """Return whether the path has another module than the one that was imported."""
    spec, imported = importlib.machinery.PathFinder.find_spec(name), sys.modules[name].__spec__
    return bool(
        imported and imported.origin != "frozen" and spec and spec.loader and spec.origin != imported.origin
    )


def _hide_own_frames() -> None:
    """Have an error that ends the script shown from the script's first frame on, by whichever hook is installed."""
    show = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: types.TracebackType | None) -> None:
        own = (OWN, "<frozen runpy>", "<frozen importlib", runpy.__file__)
        while trace is not None and trace.tb_frame.f_code.co_filename.startswith(own):
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
