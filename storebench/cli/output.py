"""Helpers of all verbs: output, progress, and turning an error into one line and an exit code."""

import contextlib
import json
import math
import os
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn, Protocol, TextIO

import typer
from typer.core import TyperCommand, TyperGroup

from storebench import errors
from storebench.errors import UsageError
from storebench.plain_text import plain
from storebench.system import interrupts
from storebench.system.json_text import in_few_words
from storebench.system.progress import Advance
from storebench.system.unexpected import debugging, unexpected_line


def say(line: str) -> None:
    """Write one message to standard error; on a full disk, only the exit code remains."""
    try:
        sys.stderr.write(f"{plain(line)}\n")
        sys.stderr.flush()
    except BrokenPipeError:
        raise
    except OSError:
        _to_nowhere(sys.stderr)


def put(*lines: str) -> None:
    """Write lines to standard output, which is for results."""
    write_out("".join(f"{plain(line)}\n" for line in lines))


def put_json(value: Any) -> None:
    write_out(json.dumps(value, indent=2) + "\n")


def write_out(text: str) -> None:
    """Write text to standard output unchanged; the error of a full disk names that."""
    # A name that the locale cannot encode must not stop the command.
    encoding = sys.stdout.encoding or "utf-8"
    try:
        sys.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding))
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        _to_nowhere(sys.stdout)
        raise OSError(error.errno, error.strerror, "standard output") from error


def _to_nowhere(stream: TextIO) -> None:
    """Redirect a stream to ``/dev/null``, so that its buffer does not fail a second time when the process ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


STORES_ENV = "STOREBENCH_STORES"

# How often progress is shown in a log, and on a terminal.
LOG_EVERY_S, DRAW_EVERY_S = 30.0, 1.0


def stores_dir() -> Path:
    """Return the folder of all stores: STOREBENCH_STORES, or ./stores."""
    return Path(os.environ.get(STORES_ENV, "stores"))


def runs_dir() -> Path:
    """Return the folder of all runs: STOREBENCH_RUNS, or ./runs."""
    return Path(os.environ.get("STOREBENCH_RUNS", "runs"))


def dataset_named(text: str | None, listed: Path | None) -> str:
    """Return the dataset that ``--dataset`` or ``--list`` means."""
    from storebench.datasets.base import CONTAINER_PREFIX, FOLDER_PREFIX, LIST_PREFIX
    from storebench.datasets.catalog import DATASETS, known_dataset
    from storebench.datasets.containers import is_container

    if (text is None) == (listed is None):
        raise errors.UsageError(
            "name the samples with exactly one of --dataset and --list",
            hint="'--dataset PATH' names a folder of images.",
        )
    if text is None:
        return f"{LIST_PREFIX}{listed}"
    is_folder = os.path.isdir(text)  # noqa: PTH112 - Path raises where the text cannot be a path
    if text in DATASETS and is_folder:
        say(f"--dataset {text}: the dataset of that name; write folder:{text} for the folder")
    if known_dataset(text):
        return text
    if is_container(text):
        say(plain(f"--dataset {text}: read as the container {CONTAINER_PREFIX}{text}"))
        return CONTAINER_PREFIX + text
    if not (is_folder or os.sep in text):
        return text
    say(plain(f"--dataset {text}: read as the folder of images folder:{text}"))
    return FOLDER_PREFIX + text


def fail(error: errors.StorebenchError) -> NoReturn:
    """Print the error's one line and exit with its exit code."""
    _show_traceback()
    say(f"storebench: {error}")
    raise typer.Exit(error.exit_code)


def _show_traceback() -> None:
    if debugging() and sys.exc_info()[0] is not None:
        traceback.print_exc()


@contextmanager
def exit_codes() -> Iterator[None]:
    """Turn any error, and an interrupt, into one line and the right exit code."""
    try:
        with interrupts.Raised():
            from storebench.run.resources import sweep

            sweep()  # the remains of killed commands
            yield
    except errors.StorebenchError as error:
        fail(error)
    except KeyboardInterrupt:
        if not interrupts.was_announced():
            with suppress(OSError):  # the terminal has gone
                say(interrupts.LINE)
        raise typer.Exit(errors.EXIT_INTERRUPTED) from None
    except BrokenPipeError:
        # The reader of our standard output (head, less) has gone, which is not an error.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(errors.EXIT_OK) from None
    except OSError as error:
        # The file that the error names, or else the folder that this command writes.
        named = error.filename
        is_named = isinstance(named, str | bytes) and named not in ("", ".", b"", b".")
        place = Path(os.fsdecode(named)) if is_named else (_OutputFolder.folder or Path()).absolute()
        fail(errors.from_os_error(error, place))
    except (typer.Exit, typer.Abort):
        raise
    except Exception as error:  # noqa: BLE001 - the last resort: one line instead of a traceback
        _show_traceback()
        from storebench.probes.environment import issue_line

        say(f"storebench: {unexpected_line(error)}")
        say(f"To report it, paste this line and that file into an issue: {issue_line(error)}")
        raise typer.Exit(errors.EXIT_INTEGRITY) from None


def writes_into(folder: Path) -> None:
    """Remember the folder that this command writes, for errors that name no file."""
    _OutputFolder.folder = folder


class _OutputFolder:
    folder: Path | None = None


class Show(Protocol):
    """Shows how far work is, and what of it runs now."""

    def __call__(self, title: str, done: float, total: int | None, note: str = "", above: str = "") -> None:
        """Show it, if it was not shown just now; on a terminal, with some lines above."""


@contextmanager
def shown(unit: str) -> Iterator[Show]:
    """Yield what shows the progress of some work: in one live bar on a terminal, as a line every 30 s otherwise."""
    if sys.stderr.isatty() and os.environ.get("TERM") != "dumb":
        with _bar() as bar:
            yield bar
        return
    last_s = time.monotonic()

    def show(title: str, done: float, total: int | None, note: str = "", above: str = "") -> None:  # noqa: ARG001
        nonlocal last_s
        if done != total and time.monotonic() - last_s < LOG_EVERY_S:
            return
        last_s = time.monotonic()
        count = "" if total is None else f"{int(done):,} of {total:,} {unit}"
        say(f"{title}: {', '.join(filter(None, (count, note)))}")

    yield show


@contextmanager
def _bar() -> Iterator[Show]:
    """Yield what draws a bar. Nothing else does: a thread that draws would disturb what is measured."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
    from rich.table import Column
    from rich.text import Text

    lines = Text()

    class Bar(Progress):
        def get_renderables(self) -> Iterator[Any]:
            if lines:
                yield lines
            yield from super().get_renderables()

    columns = (
        TextColumn("{task.description}", markup=False, table_column=Column(ratio=1, no_wrap=True)),
        BarColumn(12),
        MofNCompleteColumn(),
        TextColumn("{task.fields[note]}", markup=False),
    )
    bar = Bar(
        *columns,
        console=Console(stderr=True),
        auto_refresh=False,
        redirect_stdout=False,
        transient=True,
        expand=True,
    )
    task, drawn_s = bar.add_task("", total=None, note="", visible=False), -math.inf

    def show(title: str, done: float, total: int | None, note: str = "", above: str = "") -> None:
        nonlocal drawn_s
        lines.plain = above
        bar.update(task, description=plain(title), completed=done, total=total, note=note, visible=True)
        if time.monotonic() - drawn_s >= DRAW_EVERY_S:
            drawn_s = time.monotonic()
            with interrupts.Held(), suppress(OSError):  # the terminal has gone
                bar.refresh()

    try:
        with interrupts.Held(), suppress(OSError):
            bar.start()
        yield show
    finally:
        with interrupts.Held(), suppress(OSError):
            bar.stop()


@contextmanager
def progress(title: str, unit: str = "images") -> Iterator[Advance]:
    """Show the progress of work on many items, with its rate and the time that is left."""
    began_s = time.monotonic()
    with shown(unit) as show:

        def advance(done: int, total: int) -> None:
            rate = done / max(time.monotonic() - began_s, 1e-9)
            left_s = (total - done) / rate if rate else 0.0
            show(title, done, total, f"{rate:,.0f} {unit}/s, {left_s:.0f} s left")

        yield advance


# The error for an invalid command line. Its module differs between releases of typer.
_UNPARSABLE: type[Any] = typer.BadParameter.__mro__[1]


_GROUPS = {
    "What is measured": "dataset listed split size limit image_size skip_unreadable synthetic replicates only against"
    " budget",
    "How it is loaded": "loader workers batch_size model compute device seed epochs max_steps threads",
    "Page cache and place": "cache memory readahead drop_caches tier place",
    "Jobs of several ranks": "ranks global_batch_size pad sync share store_fill store_memory trainers trainer_data"
    " tournament_steps nodes rendezvous node",
}
_GROUP_OF = {name: title for title, names in _GROUPS.items() for name in names.split()}


class GroupedCommand(TyperCommand):
    """A command whose help lists its options by group. With typer's own boxes, they would take twice as many lines."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments, and each group of options."""
        groups: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            other = "Arguments" if param.param_type_name == "argument" else "Output and limits"
            records = groups.setdefault(_GROUP_OF.get(param.name or "", other), [])
            records += filter(None, [param.get_help_record(ctx)])
        for title, records in groups.items():
            with formatter.section(title):
                formatter.write_dl(records)


class OneLineGroup(TyperGroup):
    """The root of the command line. It and its commands report invalid arguments in one line, with exit code 2."""

    def make_context(self, *args: Any, **kwargs: Any) -> Any:
        """Parse the arguments before the command."""
        with _refusing():
            return super().make_context(*args, **kwargs)

    def invoke(self, *args: Any, **kwargs: Any) -> Any:
        """Parse the arguments after the command, and run it."""
        with _refusing():
            return super().invoke(*args, **kwargs)


@contextlib.contextmanager
def _refusing() -> Iterator[None]:
    try:
        yield
    except _UNPARSABLE as error:
        fail(_refusal(error))


def _refusal(error: Any) -> UsageError:
    """Return typer's error as a `UsageError` with the given and the expected value."""
    context, words = error.ctx, list[str]()
    while context is not None and context.parent is not None:
        words.insert(0, str(context.info_name))
        context = context.parent
    command = " ".join(["storebench", *words])
    hint = f"'{command} --help' {'explains it' if words else 'lists all commands'}."
    text = str(error.format_message()).rstrip(".")
    place = text.removeprefix("Invalid value for ")
    if place == text:
        return UsageError(text[:1].lower() + text[1:], hint=hint)
    where, _, what = place.partition(": ")
    # Some releases of typer omit the refused value.
    reasons = getattr(error.__cause__, "errors", None)
    given = f", not {reasons()[0]['input']!r}" if callable(reasons) else ""
    return UsageError(in_few_words(what) + given, where=where.replace("'", ""), hint=hint)
