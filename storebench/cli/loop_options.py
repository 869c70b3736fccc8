"""The options of ``storebench run`` that set the loop, made from the rows of its settings."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import typer

from storebench.errors import UsageError
from storebench.settings.loop import SETTINGS
from storebench.settings.rows import Setting

OPTIONS = tuple(row for row in SETTINGS if row.option)
"""The settings that have an option."""


def with_loop_options(verb: Callable[..., None]) -> Callable[..., None]:
    """Give a verb one option per setting of the loop, in the place of its ``**`` parameter.

    The option of an axis takes a list of values, which `loop_values` reads.
    """
    signature = inspect.signature(verb)
    parameters: list[inspect.Parameter] = []
    for parameter in signature.parameters.values():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            continue
        parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))
        if parameter.name == _BEFORE:
            parameters += [_parameter(row) for row in OPTIONS]
    verb.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    verb.__annotations__ |= {parameter.name: parameter.annotation for parameter in parameters}
    return verb


_BEFORE = "synthetic"
"""The options that choose samples come first; the last of them is this one."""


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
    option = typer.Option(
        None if default is None else kind(default),
        *([_flag(row)] if kind is bool else []),
        min=row.least if kind is int else None,
        metavar=row.metavar if row.axis is None else _list_word(row.metavar or ("N" if number else "TEXT")),
        help=row.option,
    )
    annotation = kind | None if default is None else kind
    return inspect.Parameter(row.key, inspect.Parameter.KEYWORD_ONLY, default=option, annotation=annotation)


def _list_word(word: str) -> str:
    return f"{word}[,{word}...]"


def _values(row: Setting, text: str) -> list[Any]:
    words = [word.strip() for word in text.split(",")]
    if "" in words:
        raise UsageError(
            f"an empty value in {text!r}",
            where=_flag(row),
            hint="Separate values by single commas, as in 'a,b'.",
        )
    number = row.kind is int and not row.text
    return [_whole_number(row, word) if number else word for word in words]


def _whole_number(row: Setting, word: str) -> int:
    try:
        return int(word)
    except ValueError:
        raise UsageError(f"{word!r} is not a whole number", where=_flag(row)) from None


def _flag(row: Setting) -> str:
    return f"--{row.key.replace('_', '-')}"


def given_options(context: typer.Context) -> set[str]:
    """Return the names of the parameters that the command line gives a value."""
    sources = {name: context.get_parameter_source(name) for name in context.params}
    return {name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"}
