"""Run a user's script or module unedited, and profile the torch DataLoaders that it iterates.

``python -m storebench.profiling.script [-m] NAME [arguments]``, which ``storebench profile`` becomes.
"""

import importlib.abc
import importlib.machinery
import json
import os
import runpy
import shutil
import statistics
import sys
import tempfile
import time
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from storebench.profiling.guard import Guard, say
from storebench.profiling.recorder import Recorder
from storebench.profiling.verdict import LEAST_GAIN, report_of

_WAIT_FOR_RANKS_S = 5.0

_recorders: dict[tuple[Any, ...], Recorder] = {}


def _recorder_of(loader: Any) -> Recorder:
    """Return the recorder of a loader; a script that makes its loader anew for each epoch has one recorder for all."""
    try:
        length = len(loader.dataset)
    except TypeError:
        length = -1
    key = (type(loader.dataset), length, loader.batch_size, loader.num_workers)
    return _recorders.setdefault(key, Recorder())


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

    watch_all(_recorder_of)


class _Rank(NamedTuple):
    """What one process of a job says of its steps."""

    rank: int
    step_s: float
    wait_s: float
    verdict: str


def main() -> None:
    """Run the script that the command line names, as Python itself would."""
    as_module = sys.argv[1] == "-m"
    name, *arguments = sys.argv[2 if as_module else 1 :]
    sys.argv = [name, *arguments]
    sys.meta_path.insert(0, _AfterImport())
    try:
        if as_module:
            runpy.run_module(name, run_name="__main__", alter_sys=True)
        else:
            _run_file(name)
    except BaseException:
        _hide_own_frames()
        raise
    finally:
        Guard().attempt(_conclude)


def _run_file(name: str) -> None:
    sys.path[0] = os.path.dirname(os.path.realpath(name))  # noqa: PTH120
    name = os.path.abspath(name)  # noqa: PTH100 - as Python shows it, with links
    module = types.ModuleType("__main__")
    module.__file__ = name
    module.__dict__["__builtins__"] = __builtins__
    sys.modules["__main__"] = module
    code = compile(Path(name).read_bytes(), name, "exec", dont_inherit=True)
    exec(code, module.__dict__)  # noqa: S102 - it is the user's


def _hide_own_frames() -> None:
    """Have an error that ends the script shown from the script's first frame on, by whichever hook is installed."""
    show = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: types.TracebackType | None) -> None:
        own = {__file__, "<frozen runpy>", runpy.__file__}
        while trace is not None and trace.tb_frame.f_code.co_filename in own:
            trace = trace.tb_next
        show(kind, error.with_traceback(trace), trace)

    sys.excepthook = hook


def _conclude() -> None:
    """Write the verdict on the loader that took the most time; of several ranks, one line each and one verdict."""
    for recorder in _recorders.values():
        recorder.ended()
    reports = sorted(map(report_of, _recorders.values()), key=lambda report: report.total_s)
    if not reports:
        say("storebench profile: the script iterated no torch DataLoader")
    elif (ranks := int(os.environ.get("LOCAL_WORLD_SIZE", "1"))) > 1:
        last = reports[-1]
        _conclude_ranks(_Rank(int(os.environ["RANK"]), last.step_s, last.wait_s, str(last)), ranks)
    else:
        say(str(reports[-1]))
        if len(reports) > 1:
            say(f"  other loaders: {len(reports) - 1}")


def _conclude_ranks(own: _Rank, count: int) -> None:
    """Hand this rank's times to the first of its node, which writes the verdict; all were started by one process."""
    times = f"{1e3 * own.step_s:,.2f} ms per step, waiting {1e3 * own.wait_s:,.2f} ms"
    say(f"storebench profile: rank {own.rank}: {times}")
    folder = Path(tempfile.gettempdir(), f"storebench-profile-{os.getuid()}-{os.getppid()}")
    folder.mkdir(mode=0o700, exist_ok=True)
    if os.environ["LOCAL_RANK"] != "0":
        unfinished = folder / f"{own.rank}.part"
        unfinished.write_text(json.dumps(own), encoding="utf-8")
        unfinished.rename(folder / f"{own.rank}.json")
        return
    deadline = time.monotonic() + _WAIT_FOR_RANKS_S
    while len(paths := list(folder.glob("*.json"))) < count - 1 and time.monotonic() < deadline:
        time.sleep(0.05)
    _say_verdict([own, *(_Rank(*json.loads(path.read_text(encoding="utf-8"))) for path in paths)])
    if len(paths) < count - 1:
        say(f"storebench profile: {count - 1 - len(paths)} of {count} ranks did not end in time")
    shutil.rmtree(folder, ignore_errors=True)


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
