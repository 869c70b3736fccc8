"""Run a user's script or module unedited, and profile the torch DataLoaders that it iterates.

``python -m storebench.profiling.script [-m] NAME [arguments]``, which ``storebench profile`` becomes.
"""

import contextlib
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import runpy
import shutil
import statistics
import sys
import tempfile
import time
import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from storebench.profiling.evidence import Report
from storebench.profiling.recorder import Recorder, say
from storebench.profiling.verdict import LEAST_GAIN, report_of

_TORCH_DATA = "torch.utils.data"
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


class _AfterImport(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Watch torch's loaders once the script has imported them: imported any earlier, torch would miss its settings."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != _TORCH_DATA:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            self._loader, spec.loader = spec.loader, self
        return spec

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: types.ModuleType) -> None:
        sys.meta_path.remove(self)
        if module.__spec__ is not None:
            module.__spec__.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        try:
            from storebench.profiling.torch_loaders import watch_all

            watch_all(_recorder_of)
        except Exception as error:  # noqa: BLE001 - the script goes on
            say(f"storebench profile: this torch cannot be watched: {type(error).__name__}: {error}")


@dataclass(frozen=True)
class _Rank:
    """What one process of a job says of its steps."""

    rank: int
    step_s: float
    wait_s: float
    verdict: str

    @property
    def line(self) -> str:
        return f"storebench profile: rank {self.rank}: {1e3 * self.step_s:,.2f} ms per step, waiting {1e3 * self.wait_s:,.2f} ms"


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
        try:
            _conclude(os.environ)
        except Exception as error:  # noqa: BLE001 - the script's own end stands
            say(f"storebench profile: no verdict: {type(error).__name__}: {error}")


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


def _conclude(variables: Mapping[str, str]) -> None:
    """Write the verdict on the loader that took the most time; of several ranks, one line each and one verdict."""
    seen = [recorder for recorder in _recorders.values() if recorder.step_count]
    for recorder in seen:
        recorder.ended()
    reports = sorted((report_of(recorder) for recorder in seen), key=lambda report: report.total_s)
    ranks, local = int(variables.get("LOCAL_WORLD_SIZE", "1")), int(variables.get("LOCAL_RANK", "0"))
    if not reports:
        say("storebench profile: the script iterated no torch DataLoader")
    if ranks == 1 and reports:
        say(str(reports[-1]))
        if len(reports) > 1:
            say(f"  other loaders: {len(reports) - 1}")
    if ranks > 1:
        own = _rank(int(variables.get("RANK", "0")), reports[-1] if reports else None)
        say(own.line)
        _conclude_ranks(own, ranks, is_first=local == 0)


def _rank(number: int, report: Report | None) -> _Rank:
    if report is None:
        return _Rank(number, 0.0, 0.0, "")
    return _Rank(number, report.step_s, report.wait_s, str(report))


def _conclude_ranks(own: _Rank, count: int, *, is_first: bool) -> None:
    """Hand this rank's times to the first of its node, which writes the verdict; all were started by one process."""
    folder = Path(tempfile.gettempdir(), f"storebench-profile-{os.getuid()}-{os.getppid()}")
    folder.mkdir(mode=0o700, exist_ok=True)
    if not is_first:
        unfinished = folder / f"{own.rank}.part"
        unfinished.write_text(json.dumps(own.__dict__), encoding="utf-8")
        unfinished.rename(folder / f"{own.rank}.json")
        return
    deadline = time.monotonic() + _WAIT_FOR_RANKS_S
    while len(paths := list(folder.glob("*.json"))) < count - 1 and time.monotonic() < deadline:
        time.sleep(0.05)
    with contextlib.suppress(OSError, ValueError):
        ranks = [own, *(_Rank(**json.loads(path.read_text(encoding="utf-8"))) for path in paths)]
        _say_verdict(ranks)
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
