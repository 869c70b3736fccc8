"""Which operation of making a sample runs: opening, decoding, a step of a pipeline, or a function."""

import ast
import contextlib
import ctypes
import functools
import itertools
import linecache
import os
import re
import struct
import sys
import threading
import time
import traceback
import types
from collections import Counter

from storebench.profiling.stacks import LIBRARIES, WATCHERS, Place, is_users
from storebench.system.kernel import LIBRARY

OPEN, DECODE, COLLATE = "open", "decode", "collate"
# Functions of libraries, by their file and name; functions in C by their name where they are called.
_KNOWN = {
    r".*/PIL/Image\.py:open": OPEN,
    r".*/PIL/ImageFile\.py:load": f"{DECODE} (Pillow)",
    r".*/pathlib.*:read_bytes|.*/torchvision/io/image\.py:read_file": OPEN,
    r".*/torchvision/io/image\.py:.*": f"{DECODE} (torchvision.io)",
    r".*/datasets/features/image\.py:decode_example": f"{DECODE} (Hugging Face)",
    r".*/imageio/v[23]\.py:.*": f"{DECODE} (imageio)",
    r".*/turbojpeg(/__init__)?\.py:decode.*": f"{DECODE} (turbojpeg)",
    r"imread|imdecode": f"{DECODE} (OpenCV)",
    r"decode_jpeg": f"{DECODE} (simplejpeg)",
    r"open|read|readinto|pread": OPEN,
}
# Functions in which a dataset makes a sample, and those that call the method that does the work.
_MAKES = ("__getitem__", "__getitems__", "__iter__", "__next__", "<listcomp>", "<genexpr>", "fetch")
_AROUND = ("_wrapped_call_impl", "_call_impl")
# A look every so often; looks may take this share of the time, and so much more once.
_EVERY_NS, _COST, _FIRST_NS = 5_000_000, 0.005, 20_000_000
# Of fewer looks, shares are too rough; smaller shares are not told.
_LEAST_LOOKS, _LEAST_SHARE = 30, 0.01


def shares_of(looks: Counter[Place]) -> dict[str, float]:
    """Return the share of each operation in the time of the dataset; none if the looks are few."""
    counts: Counter[str] = Counter()
    for place, count in looks.items():
        counts[_name_of(place)] += count
    del counts[COLLATE]
    total = counts.total()
    least = _LEAST_SHARE * total if total >= _LEAST_LOOKS else total + 1
    return {name: count / total for name, count in counts.items() if count >= least}


def _name_of(place: Place) -> str:
    """Return the name of the operation; it may be that of the called function, which only the source tells."""
    lines = linecache.getlines(place.file)[place.line - 1 : place.end_line] or [""]
    text = "".join([*lines[:-1], lines[-1][: place.end_column]])[place.column :]
    called = ""
    with contextlib.suppress(SyntaxError):
        node = ast.parse(f"({text.strip().lstrip('.')})", mode="eval").body
        called = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
    last = called.rpartition(".")[2]
    dotted = called.removeprefix("self.") if re.fullmatch(r"[\w.]*", called) else last
    return ("" if place.calls else _known(last)) or place.name or dotted or place.function


def _known(function: str) -> str:
    return next((name for pattern, name in _KNOWN.items() if re.fullmatch(pattern, function)), "")


def _facts(frame: types.FrameType) -> tuple[bool, bool, str]:
    """Return whether a frame is of a watcher, and of a library, and its operation if that is known."""
    return _origin(frame.f_code.co_filename, frame.f_code.co_name)


@functools.cache
def _origin(file: str, function: str) -> tuple[bool, bool, str]:
    return file.startswith(WATCHERS), file.startswith(LIBRARIES), _known(f"{file}:{function}")


class Operations:
    """Counts looks at the places where this process makes samples.

    The main thread looks at itself between two instructions, asked by a clock that needs no lock of Python's; a look
    counts for all ticks of the call that has ended. A thread would see mostly the calls that release the lock.
    """

    def __init__(self) -> None:
        self._looks: Counter[Place] = Counter()
        self.steps: dict[int, tuple[object, dict[int, str]]] = {}  # of the pipelines that were met
        self._last, self._spare_ns, self._own_look = 0, _FIRST_NS, self._look
        self._on, self._ticks, self._has_ticks = ctypes.c_int32(), ctypes.c_int64(), False
        with contextlib.suppress(OSError, ValueError, AttributeError):  # not built, or of an earlier revision
            kernel, python = ctypes.CDLL(str(LIBRARY)), ctypes.pythonapi
            functions = (python.Py_AddPendingCall, python.PyObject_CallNoArgs, python.Py_DecRef)
            pointers = [ctypes.cast(function, ctypes.c_void_p).value for function in functions]
            self._on = ctypes.c_int32.in_dll(kernel, "storebench_ticking")
            self._ticks = ctypes.c_int64.in_dll(kernel, "storebench_ticks")
            asked = struct.pack("@q4P", _EVERY_NS, *pointers, id(self._own_look))
            self._has_ticks = not kernel.storebench_tick(asked)

    def begin(self, looks: Counter[Place]) -> None:
        if self._has_ticks and threading.current_thread() is threading.main_thread():
            self._looks, self._last, self._on.value = looks, self._ticks.value, 1

    def end(self) -> None:
        self._on.value = 0

    def _look(self) -> None:
        count = self._ticks.value - self._last
        self._last += count
        self._spare_ns += int(_COST * count * _EVERY_NS)
        if not count or not self._on.value or self._spare_ns < 0:
            return
        began_ns = time.thread_time_ns()
        try:
            self._see(sys._getframe(1), count)  # noqa: SLF001 - documented, in spite of its name
        except Exception as error:
            # A handler of signals, which Python may call here, raises an error of the program.
            if any(is_users(frame) for frame, _ in traceback.walk_tb(error.__traceback__)):
                raise
            self._has_ticks, self._on.value = False, 0
        self._spare_ns -= time.thread_time_ns() - began_ns

    def _see(self, innermost: types.FrameType, count: int) -> None:
        """Count looks at a stack, if a sample is made in it."""
        stack = (frame for frame, _ in traceback.walk_stack(innermost))
        frames = list(itertools.takewhile(lambda frame: not _facts(frame)[0], stack))
        if not frames or frames[-1].f_back is None:
            return
        known = [known for _, _, known in map(_facts, reversed(frames)) if known]
        if frames[-1].f_back.f_code.co_name == "timed_collate":
            known = [COLLATE]
        name, function = (OPEN if OPEN in known else known[0], "") if known else self._name(frames)
        users = next((frame for frame in frames if not _facts(frame)[1]), frames[0])
        positions = itertools.islice(users.f_code.co_positions(), users.f_lasti // 2, None)
        line, end_line, column, end_column = (at or 0 for at in next(positions, (0, 0, 0, 0)))
        code, file = frames[0].f_code, users.f_code.co_filename
        calls = f"{os.path.basename(code.co_filename)} {code.co_name}" * (users is not frames[0])  # noqa: PTH119
        place = Place(name, function, file, line, end_line, column, end_column, calls)
        self._looks[place] += count

    def _name(self, frames: list[types.FrameType]) -> tuple[str, str]:
        """Return the name of the operation; "" if it is the call in the user's innermost line, in a function."""
        home, owner, step = frames[-1], None, ""
        inside: tuple[types.FrameType, object] | None = None
        steps: dict[int, str] = {}
        looping: types.FrameType | None = None  # over the steps, none of which has a frame further inside
        for frame in reversed(frames):
            code = frame.f_code
            is_method = code.co_varnames[:1] == ("self",) and code.co_name not in _AROUND
            own = frame.f_locals.get("self") if is_method else None
            owner = own if owner is None else owner
            if inside is None and (code.co_name in _MAKES or (own is not None and own is owner)):
                home, owner = frame, owner if own is None else own
            elif inside is None or (_facts(inside[0])[1] and not _facts(frame)[1]):
                inside = frame, own
            if running := steps.get(id(own)) or steps.get(id(code)):
                step, looping = running, None
            if own is not None and (inner := self._steps_of(own)):
                steps, looping = inner, frame
                step = step or (type(own).__name__ if inside else "")
        if looping is not None:
            step = next(filter(None, (steps.get(id(value)) for value in looping.f_locals.values())), step)
        if step or inside is None:
            return step, home.f_code.co_qualname
        frame, own = inside
        if own is not None and frame.f_code.co_name in ("__call__", "forward"):
            return type(own).__name__, ""
        name = frame.f_code.co_qualname.rpartition("<locals>.")[2]
        return ("", name) if _facts(frame)[1] and not _facts(home)[1] else (name, "")

    def _steps_of(self, own: object) -> dict[int, str]:
        """Return the names of the callables in the lists of an object, by the ids of these and of their code."""
        known = self.steps.get(id(own)) or self.steps.get(id(type(own)))
        if known is None:
            attributes, names = getattr(own, "__dict__", {}), dict[int, str]()
            for steps in (*attributes.values(), list(attributes.get("_modules", {}).values())):
                if issubclass(type(steps), list | tuple) and all(map(callable, steps)):
                    names |= {key: name for step in steps for key, name in _named(step).items()}
            owner = own if names else type(own)  # kept, so that no other object has its id
            known = self.steps[id(owner)] = owner, names
        return known[1]


def _named(step: object) -> dict[int, str]:
    """Return the name of a function, by its id and that of its code, or of an object's class."""
    function = step.func if isinstance(step, functools.partial) else step
    function = function.__func__ if isinstance(function, types.MethodType) else function
    if not isinstance(function, types.FunctionType | types.BuiltinFunctionType):
        return {} if isinstance(step, type) else {id(step): type(step).__name__}
    return dict.fromkeys((id(step), id(getattr(function, "__code__", step))), function.__name__)


@functools.cache
def operations_of(_process: int) -> Operations:
    """Return what counts the looks of a process, which is this one."""
    return Operations()
