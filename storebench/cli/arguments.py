"""Arguments and options that several verbs take, the checks of their values, and the options made from the settings."""

import inspect
import math
import os
import re
import shlex
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from storebench.errors import UsageError, from_os_error
from storebench.filesystem import nearest_folder
from storebench.settings.loop_fields import SETTINGS
from storebench.settings.setting import Setting
from storebench.settings.words import Word

if TYPE_CHECKING:
    from storebench.record.schema import Cell


def finite(number: float | None) -> float | None:
    if number is not None and not math.isfinite(number):
        raise typer.BadParameter(f"must be a finite number, not '{number}'")
    return number


def permitted_to_drop(asked: bool) -> bool:
    """Return the value of --drop-caches; raise `typer.BadParameter` if this process may not drop them."""
    if asked and not os.access("/proc/sys/vm/drop_caches", os.W_OK):
        raise typer.BadParameter("it needs root; without it, files are evicted one by one")
    return asked


def require_devices(cells: Iterable["Cell"], *, nodes: int = 1) -> None:
    """Refuse cells of a device that is not there, and ranks that would have to share a GPU."""
    on_gpus = [cell for cell in cells if cell.device != "cpu"]
    if on_gpus:  # torch takes longer to import than most commands take
        from storebench.training.devices import require_devices as require

        require({cell.device for cell in on_gpus}, ranks=max(cell.ranks // nodes for cell in on_gpus))


def refuse_places(backends: Sequence[str]) -> None:
    """Refuse folders and datasets where backends belong, and say where they belong."""
    from storebench.datasets.catalog import DATASETS
    from storebench.formats.registry import ALIASES, format_names

    for word in backends:
        is_format = re.split(r"[+:?]", word)[0] in {*ALIASES, *format_names()}
        # Path raises where the text cannot be a path.
        if word in DATASETS or (os.path.isdir(word) and not is_format):  # noqa: PTH112
            raise UsageError(
                f"{'a dataset' if word in DATASETS else 'a folder'}, not a backend",
                where=word,
                hint=f"Write '--dataset {shlex.quote(word)}'; without a BACKEND, sensible ones are chosen.",
            )


def require_writable(folder: Path, option: str) -> None:
    """Refuse a folder that this process may not write, before any work."""
    try:
        tempfile.TemporaryFile(dir=nearest_folder(folder)).close()
    except OSError as error:
        failure = from_os_error(error, folder)
        hint = failure.hint and failure.hint.replace("--out", option)
        raise type(failure)(failure.what, where=failure.where, hint=hint) from error


DatasetOption = Annotated[
    str | None,
    typer.Option(
        "--dataset",
        "-d",
        help="mnist, cifar10, imagenet, a folder of images, or files that hold images, such as tar or Parquet.",
    ),
]
ListOption = Annotated[
    Path | None,
    typer.Option("--list", metavar="FILE", help="Image files with labels, one 'PATH LABEL' per line."),
]
SplitOption = Annotated[str, typer.Option(help="train or test.")]
SizeOption = Annotated[
    int | None, typer.Option(min=1, help="Extend or cut the dataset to this many samples.")
]
LimitOption = Annotated[int | None, typer.Option(min=1, help="Use only the first samples.")]
SkipUnreadableOption = Annotated[
    bool,
    typer.Option("--skip-unreadable", help="Leave out image files that cannot be read or do not decode."),
]
SyntheticOption = Annotated[
    bool | None,
    typer.Option(
        "--synthetic/--real",
        help="Use the synthetic stand-in, or refuse it. [default: only without real files]",
    ),
]

DropCachesOption = Annotated[
    bool,
    typer.Option(
        "--drop-caches",
        callback=permitted_to_drop,
        help="For cold: also drop the whole machine's caches, including inodes, as the last step (root).",
    ),
]
RunFolderOption = Annotated[
    Path | None, typer.Option(help="Folder of the run. [default: a new one in ./runs]")
]
StoresOption = Annotated[Path | None, typer.Option(help="Folder of all stores. [default: ./stores]")]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Print cells, stores and bytes; run nothing.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the same as JSON.")]
RecordsAsJsonOption = Annotated[
    bool, typer.Option("--json", help="Print the records (or the plan of a dry run) as JSON.")
]


ResultsArgument = Annotated[
    list[Path],
    typer.Argument(help="Folders that 'storebench run' or 'storebench bench' wrote, or record files."),
]


def timeout_option(default: str) -> Any:
    """Return the option for the time limit of a replicate; `default` says what it is if it is not given."""
    return typer.Option(
        min=1,
        callback=finite,
        metavar="SECONDS",
        help=f"Kill a replicate that takes longer, and record it as failed. [default: {default}]",
    )


def accelerator_option(meaning: str) -> Any:
    """Return the option that names accelerators; `meaning` says what a verb does with one."""
    return typer.Option(
        "--accelerator",
        metavar="NAME[:MODEL]",
        help=f"{meaning}; may be repeated. One that is not listed: NAME=RATE, in images/s.",
    )


# The settings that have an option.
OPTIONS = tuple(row for row in SETTINGS if row.option)


def with_loop_options(verb: Callable[..., None]) -> Callable[..., None]:
    """Give a verb one option per setting of the loop in place of its ``**``; `loop_values` reads their values."""
    signature = inspect.signature(verb)
    parameters: list[inspect.Parameter] = []
    for parameter in signature.parameters.values():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            continue
        parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))
        if parameter.name == "synthetic":  # the last of the options that choose samples
            parameters += [_parameter(row) for row in OPTIONS]
    verb.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    verb.__annotations__ |= {parameter.name: parameter.annotation for parameter in parameters}
    return verb


def loop_values(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of the loop as a matrix of a scenario has them: axes are lists."""
    rows = {row.key: row for row in OPTIONS}
    return {
        key: value if value is None or rows[key].axis is None else _values(rows[key], value)
        for key, value in options.items()
    }


def _parameter(row: Setting) -> inspect.Parameter:
    number = row.kind is int and not row.text
    kind: Any = bool if row.kind is bool else int if number and row.axis is None else str
    default = row.asked_default
    word = row.metavar or ("N" if number else "TEXT")
    option = typer.Option(
        None if default is None else kind(default),
        *([_flag(row)] if kind is bool else []),
        min=row.least if kind is int else None,
        metavar=row.metavar if row.axis is None else f"{word}[,{word}...]",
        help=_help(row),
    )
    annotation = kind | None if default is None else kind
    return inspect.Parameter(row.key, inspect.Parameter.KEYWORD_ONLY, default=option, annotation=annotation)


def _help(row: Setting) -> str:
    """Return the meaning of a scenario's key, with the words that it may be."""
    meaning, _, default = row.meaning.replace("`", "").partition(" Default: ")
    words = f" ({', '.join(row.kind)})" if issubclass(row.kind, Word) else ""
    return f"{meaning.removesuffix('.')}{words}." + (
        f" [default: {default.removesuffix('.')}]" if default else ""
    )


def _values(row: Setting, text: str) -> list[Any]:
    words = [word.strip() for word in text.split(",")]
    if "" in words:
        raise UsageError(
            f"an empty value in {text!r}",
            where=_flag(row),
            hint="Separate values by single commas, as in 'a,b'.",
        )
    if row.kind is not int or row.text:
        return list(words)
    for word in words:
        if not re.fullmatch(r"[+-]?\d+", word):
            raise UsageError(f"{word!r} is not a whole number", where=_flag(row))
    return [int(word) for word in words]


def _flag(row: Setting) -> str:
    return f"--{row.key.replace('_', '-')}"


def given_options(context: typer.Context) -> set[str]:
    """Return the names of the parameters that the command line gives a value."""
    sources = {name: context.get_parameter_source(name) for name in context.params}
    return {name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"}
