"""Run a user's script or module unedited, and watch the torch DataLoaders that it iterates."""

import atexit
import builtins
import concurrent.futures.process  # noqa: F401 - cannot be imported when the main thread has ended
import importlib.abc
import importlib.machinery
import json
import os
import runpy
import signal
import sys
import threading
import types
from collections.abc import Mapping, Sequence
from typing import ClassVar, NamedTuple, NoReturn

from storebench.profiling.guard import Guard
from storebench.profiling.stacks import WATCHERS


class Watcher:
    """What a command does beside the script that it runs."""

    hooks: ClassVar[Mapping[str, str]]
    """The module that watches the loaders of another from its import on."""

    def begin(self) -> None:
        """Note that the script begins."""

    def has_seen(self) -> bool:
        """Whether this process, which the script may have forked, iterated a loader."""
        raise NotImplementedError

    def write(self, out: str | None) -> int:
        """Write the verdict, and files of it into a folder; return the exit code of a script that ends well."""
        raise NotImplementedError


class ScriptOptions(NamedTuple):
    """What a command is asked for, beside the script."""

    as_module: bool = False
    out: str | None = None
    key: str | None = None
    starts: int | None = None  # descriptor of a file in which two starts of the script are compared


class _End:
    """Write the verdict once, in whichever way this process ends."""

    def __init__(self, watcher: Watcher, out: str | None, path: list[str]) -> None:
        self._watcher, self._out, self._path = watcher, out, path
        self._pid, self._is_done = os.getpid(), False

    def conclude(self) -> int:
        """Write the verdict, and return its exit code; nothing of a forked process without a loop."""
        if self._is_done or (os.getpid() != self._pid and not self._watcher.has_seen()):
            return 0
        self._is_done = True
        if threading.current_thread() is threading.main_thread():
            # torch raises wherever this process is when a worker has died, which the script's own error says by now.
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        sys.path = self._path  # what is imported now is no module of the script's project
        return Guard().attempt(lambda: self._watcher.write(self._out)) or 0

    def precede(self) -> None:
        """Have the verdict written before `os._exit`, and before SIGTERM, as `timeout` sends it."""
        exit_now = os._exit

        def concluded_exit(status: int) -> NoReturn:
            code = self.conclude()
            exit_now(status or code)

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
    """Watch loaders once the script has imported them: imported any earlier, torch would miss its settings."""

    def __init__(self, hooks: Mapping[str, str]) -> None:
        self._hooks = hooks

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name not in self._hooks:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_watch(module: types.ModuleType) -> None:
                execute(module)
                Guard().attempt(lambda: importlib.import_module(self._hooks[name]))

            spec.loader.exec_module = execute_and_watch  # type: ignore[method-assign]
        return spec


def options() -> ScriptOptions:
    return ScriptOptions(**json.loads(sys.argv[1]))


def run_script(watcher: Watcher) -> None:
    """Run the script that the command line names after the options, as Python would."""
    asked = options()
    name, *sys.argv = sys.argv[2:]
    sys.argv.insert(0, name)
    end, code = _End(watcher, asked.out, sys.path), 0
    if not os.environ.get("PYTHONSAFEPATH"):
        folder = os.getcwd() if asked.as_module else os.path.dirname(os.path.realpath(name))  # noqa: PTH109, PTH120
        sys.path = [folder, *sys.path]
    watcher.begin()
    sys.meta_path.insert(0, _AfterImport(watcher.hooks))
    end.precede()
    try:
        if asked.as_module:
            runpy.run_module(name, run_name="__main__", alter_sys=True)
        else:
            _run(os.path.abspath(name))  # noqa: PTH100 - as Python shows it, with links
    except BaseException as ending:
        if not isinstance(ending, SystemExit) or ending.code:  # else it ends well, as without `sys.exit()`
            _hide_own_frames()
            raise
    finally:
        if all(thread.daemon or thread is threading.main_thread() for thread in threading.enumerate()):
            code = end.conclude()
        else:  # Python waits for the others first
            atexit.register(end.conclude)
    if code:
        raise SystemExit(code)


def _run(path: str) -> None:
    """Run a file as `__main__`, which it stays for threads that go on."""
    module, loader = types.ModuleType("__main__"), importlib.machinery.SourceFileLoader("__main__", path)
    vars(module).update(__file__=path, __loader__=loader, __cached__=None, __builtins__=builtins)
    sys.modules["__main__"] = module
    exec(loader.source_to_code(loader.get_data(path), path), vars(module))  # noqa: S102


def _hide_own_frames() -> None:
    """Have an error that ends the script shown without the frames around and between its own, by its own hook."""
    show = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: types.TracebackType | None) -> None:
        hidden = (*WATCHERS, "<string>", "<frozen runpy>", "<frozen importlib", runpy.__file__)
        while trace is not None and trace.tb_frame.f_code.co_filename.startswith(hidden):
            trace = trace.tb_next
        above = trace
        while above is not None and (below := above.tb_next) is not None:
            if below.tb_frame.f_code.co_filename.startswith(WATCHERS):
                above.tb_next = below.tb_next
            else:
                above = below
        show(kind, error.with_traceback(trace), trace)

    sys.excepthook = hook
