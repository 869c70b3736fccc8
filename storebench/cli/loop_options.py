"""The options of ``storebench run`` that set the loop, made from the rows of its settings."""

import inspect
from collections.abc import Callable
from typing import Any

import typer

from storebench.settings.loop import SETTINGS
from storebench.settings.rows import Setting

OPTIONS = tuple(row for row in SETTINGS if row.option)
"""The settings that have an option."""


def with_loop_options(verb: Callable[..., None]) -> Callable[..., None]:
    """Give a verb one option per setting of the loop, in the place of its ``**`` parameter."""
    signature = inspect.signature(verb)
    parameters: list[inspect.Parameter] = []
    for parameter in signature.parameters.values():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            continue
        parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))
        if parameter.name == _BEFORE:
            parameters += [_parameter(row) for row in OPTIONS]
    verb.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    verb.__annotations__ |= {one.name: one.annotation for one in parameters}
    return verb


_BEFORE = "synthetic"
"""The options that choose samples come first; the last of them is this one."""


def _parameter(row: Setting) -> inspect.Parameter:
    kind: Any = int if row.kind is int and not row.text else str
    default = row.asked_default
    option = typer.Option(
        None if default is None else kind(default),
        min=row.least if kind is int else None,
        metavar=row.metavar,
        help=row.option,
    )
    annotation = kind | None if default is None else kind
    return inspect.Parameter(row.key, inspect.Parameter.KEYWORD_ONLY, default=option, annotation=annotation)
