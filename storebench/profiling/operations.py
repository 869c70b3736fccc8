"""Which operation takes the time of making samples: a timer signals the thread that makes them, and its stack is read.

Python runs a handler in the main thread at its next check, which is at the end of the call in C in which the signal
came. So a call that keeps the interpreter's lock counts like one that releases it, and like Python code.
"""

import ctypes
import dis
import functools
import inspect
import random
import re
import signal
import struct
import threading
import time
import types
from collections.abc import Sequence
from typing import Any

from storebench.profiling.guard import Guard, guarded, is_handlers
from storebench.profiling.stacks import LIBRARIES, WATCHERS, StackSampler

DECODING, READING, COLLATE, _CONVERTING = "decoding", "reading", "collate", "converting"
# Functions of libraries, by the end of their file and name, and functions in C, by their name.
_KNOWN = {
    r"/PIL/Image\.py:open|/pathlib[^/]*(/[^/]*)?:(open|read_bytes)|/torchvision/io/image\.py:read_file": READING,
    r"/(h5py|zarr)/.*|/numpy/lib/[^/]*npyio[^/]*:load|/torch/serialization\.py:load": READING,
    r"/PIL/ImageFile\.py:load|/torchvision/io/image\.py:.*|/imageio/v[23]\.py:.*": DECODING,
    r"/datasets/features/image\.py:decode_example|/turbojpeg[^:]*:decode.*": DECODING,
    r"/PIL/Image\.py:convert": _CONVERTING,  # a step of a pipeline, or the end of decoding
}
_PATTERNS = [(re.compile(f"({pattern})$"), name) for pattern, name in _KNOWN.items()]
_IN_C = dict.fromkeys(("open", "read", "readinto", "pread"), READING) | dict.fromkeys(
    ("imread", "imdecode", "decode_jpeg", "decode_image"), DECODING
)
# Functions in which a dataset makes a sample, and those that call an object.
_MAKES = ("__getitem__", "__getitems__", "__iter__", "__next__", "<listcomp>", "<genexpr>", "fetch")
_CALLS = ("__call__", "forward", "_wrapped_call_impl", "_call_impl")
_SIGNAL = getattr(signal, "SIGRTMIN", -13) + 13
# Ticks are so far apart on average, or further: reading stacks takes at most this share of the time.
_EVERY_NS, _COST, _SMOOTHING = 8_000_000, 0.015, 0.05
_MOST_STEPS = 64  # a longer list is no pipeline
_MONOTONIC, _SIGEV_THREAD_ID, _ABSOLUTE = 1, 4, 1

# These calls keep the interpreter's lock.
_C = ctypes.PyDLL(None)
clock = time.monotonic_ns


class _Function:
    """What is known of a function from its code."""

    def __init__(self, code: types.CodeType) -> None:
        self.code = code  # kept, so that no other has its id
        self.watches = code.co_filename.startswith(WATCHERS)
        self.is_library = code.co_filename.startswith(LIBRARIES)
        place = f"{code.co_filename}:{code.co_name}"
        self.known = next((name for pattern, name in _PATTERNS if pattern.search(place)), "")
        self.may_decode = not _IN_C.keys().isdisjoint(code.co_names)
        self.name = code.co_qualname.rpartition("<locals>.")[2]
        self.instance = (
            code.co_varnames[0] if code.co_argcount and "." in self.name else ""
        )  # of a method: `self`
        # Whether its variables can be read without a change of a namespace, or of what its own `locals()` returned.
        is_function = bool(code.co_flags & inspect.CO_OPTIMIZED)
        self.is_readable = is_function and {"locals", "vars", "eval", "exec"}.isdisjoint(code.co_names)
        self.begin = code.co_code.find(bytes([dis.opmap["RESUME"], 0]))

    @functools.cached_property
    def calls(self) -> dict[int, str]:
        """The name that each call calls: loading it and calling it begin at the same column."""
        loaded: dict[Any, str] = {}
        calls: dict[int, str] = {}
        for step in dis.get_instructions(self.code):
            place = step.positions and (step.positions.lineno, step.positions.col_offset)
            if step.opname.startswith("LOAD_"):
                loaded[place] = str(step.argval)
            elif "CALL" in step.opname:
                calls[step.offset] = loaded.get(place, "")
        return calls


_functions: dict[int, _Function] = {}
_Call = tuple[types.FrameType, _Function]


def _variables(frame: types.FrameType) -> dict[str, Any]:
    """Return the variables of a function that is being called; the frame keeps none of them for longer."""
    seen = frame.f_locals
    values = dict(seen)
    if type(seen) is dict:  # a snapshot, before Python 3.13
        seen.clear()
    return values


def _steps_of(owner: object) -> dict[int, tuple[Sequence[Any], int]]:
    """Return lists of callables of an object and their places in them, by their ids."""
    try:
        attributes: dict[str, Any] = object.__getattribute__(owner, "__dict__")
    except AttributeError:
        return {}
    lists = [value for value in attributes.values() if type(value) in (list, tuple)]
    if any(kind.__name__ == "Sequential" for kind in type(owner).__mro__):
        lists.append([*attributes.get("_modules", {}).values()])
    pipelines = [steps for steps in lists if len(steps) <= _MOST_STEPS and all(map(callable, steps))]
    return {
        id(step): (steps, place)
        for steps in pipelines
        for place, step in enumerate(steps)
        if not isinstance(step, type)
    }


def _name_of(steps: Sequence[Any], place: int) -> str:
    """Return the name of a step, with its place if others have the same name."""
    functions = [step.func if isinstance(step, functools.partial) else step for step in steps]
    kinds = types.FunctionType | types.BuiltinFunctionType | types.MethodType
    names = [str((of if isinstance(of, kinds) else type(of)).__name__) for of in functions]
    return names[place] if names.count(names[place]) == 1 else f"{names[place]} [{place}]"


class Operations(Guard):
    """Counts ticks of a clock by the operation of making samples in this process's main thread.

    The ticks are moments at irregular distances; all those within one call count for it.
    """

    _active: "Operations | None" = None

    def __init__(self, sampler: StackSampler) -> None:
        self._sampler, self._home = sampler, ""
        self._timer: ctypes.c_void_p | None = None
        self._random = random.Random(7).random
        self._period_ns, self._cost_ns = float(_EVERY_NS), 0.0
        self._due_ns, self._left_ns = 0, _EVERY_NS

    @guarded
    def begin(self) -> None:
        if Operations._active is None:  # this is no loader inside of a dataset
            if reason := self._hindrance():
                self._sampler.seen.unclocked[reason] += 1
                return
            Operations._active = self
            self._period_ns = max(_EVERY_NS, self._cost_ns / _COST)
            self._due_ns = clock() + self._left_ns
            self._set(self._due_ns)

    @guarded
    def end(self) -> None:
        if Operations._active is self:
            self._set(0)
            self._left_ns = max(1, self._due_ns - clock())
            Operations._active = None

    @guarded
    def stop(self) -> None:
        self.end()
        if self._timer is not None:
            _C.timer_delete(self._timer)
            self._timer = None
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and Operations._active is None and signal.getsignal(_SIGNAL) is _tick:
            signal.signal(_SIGNAL, signal.SIG_IGN)  # drops one that waits
            signal.signal(_SIGNAL, signal.SIG_DFL)

    def _hindrance(self) -> str:
        """Have this thread signalled, and return why it cannot be."""
        if _SIGNAL <= 0 or not hasattr(_C, "timer_create"):
            return "there are no timers of Linux"
        if threading.current_thread() is not threading.main_thread():
            return "samples are not made in the main thread"
        handler = signal.getsignal(_SIGNAL)
        if handler is not _tick:
            if handler is not signal.SIG_DFL or _SIGNAL in signal.pthread_sigmask(signal.SIG_BLOCK, ()):
                return f"the program uses signal {_SIGNAL}"
            signal.signal(_SIGNAL, _tick)
            signal.siginterrupt(_SIGNAL, False)
        if self._timer is None:
            timer, thread = ctypes.c_void_p(), threading.get_native_id()
            asked = struct.pack("@Piii44x", 0, _SIGNAL, _SIGEV_THREAD_ID, thread)
            if _C.timer_create(_MONOTONIC, asked, ctypes.byref(timer)):
                return "the kernel has no more timers"
            self._timer = timer
        return ""

    def _set(self, due_ns: int) -> None:
        """Have one signal sent at a moment; none at 0."""
        _C.timer_settime(self._timer, _ABSOLUTE, struct.pack("@4l", 0, 0, *divmod(due_ns, 10**9)), None)

    def see(self, frame: types.FrameType | None) -> None:
        """Count the ticks until now for the operation in a frame; the time that this takes has no ticks."""
        began_ns, began_cpu_ns, ticks = clock(), time.thread_time_ns(), 0.0
        try:
            while self._due_ns <= began_ns:
                ticks += self._period_ns / _EVERY_NS
                self._due_ns += int(self._period_ns * (0.5 + self._random()))
            if ticks and (name := self._operation(frame)):
                self._sampler.seen.operations[name] += ticks  # type: ignore[assignment]
            self._cost_ns += _SMOOTHING * (time.thread_time_ns() - began_cpu_ns - self._cost_ns)
            self._due_ns += clock() - began_ns
        finally:  # also after an error of a handler of the program's own
            self._set(self._due_ns)

    def _operation(self, innermost: types.FrameType | None) -> str:
        """Return the name of the operation in a stack."""
        stack, frame = list[_Call](), innermost
        while frame is not None:
            code = frame.f_code
            function = _functions.get(id(code)) or _functions.setdefault(id(code), _Function(code))
            if function.watches:
                break
            stack.append((frame, function))
            frame = frame.f_back
        has_begun = bool(stack) and stack[0][0].f_lasti == stack[0][1].begin  # its caller took the time
        del stack[:has_begun]
        if not stack:
            return self._home
        known = [function.known for _, function in reversed(stack) if function.known]
        frame, function = stack[0]
        if not has_begun and function.may_decode:
            known += filter(None, [_IN_C.get(function.calls.get(frame.f_lasti, ""))])
        if sure := [name for name in known if name != _CONVERTING]:
            return sure[0]
        step, self._home, name = _placed(stack)
        return step or (DECODING if known else name)


def _placed(stack: list[_Call]) -> tuple[str, str, str]:
    """Return the step of a pipeline, the dataset's own function, and the one that this calls, or itself."""
    (home, maker), owner, last, step = stack[-1], None, None, None
    inside: tuple[_Function, object] | None = None
    steps: dict[int, tuple[Sequence[Any], int]] = {}
    for frame, function in reversed(stack):
        values = _variables(frame) if function.is_readable and (function.instance or steps) else {}
        instance = values.get(function.instance)
        if inside is None and (
            function.code.co_name in _MAKES or (instance is not None and instance is owner)
        ):
            home, maker, owner = frame, function, owner if instance is None else instance
        elif inside is None or (inside[0].is_library and not function.is_library):
            inside = function, instance
        if instance is not None and instance is not last:
            steps |= _steps_of(instance)
            last = instance
        if steps:
            step = next((steps[id(value)] for value in values.values() if id(value) in steps), step)
    name = maker.name
    if inside is not None:
        called, instance = inside
        is_librarys = called.is_library and not maker.is_library
        name = (is_librarys and maker.calls.get(home.f_lasti)) or called.name
        if instance is not None and called.code.co_name in _CALLS:
            name = type(instance).__name__
    return "" if step is None else _name_of(*step), maker.name, name


def _tick(_number: int, frame: types.FrameType | None) -> None:
    operations = Operations._active  # noqa: SLF001
    if operations is None:
        return
    try:
        operations.see(frame)
    except Exception as error:
        if is_handlers(error):
            raise
        operations.has_failed = True
        operations._set(0)  # noqa: SLF001
