"""Errors in the command line, in one line each; typer would print a block with the usage."""

import contextlib
from collections.abc import Iterator
from typing import Any

import typer
from typer.core import TyperGroup

from storebench.cli.common import fail
from storebench.errors import UsageError
from storebench.fileio.json_text import in_few_words

_UNPARSABLE: type[Any] = typer.BadParameter.__mro__[1]
"""The error for an invalid command line. Its module differs between releases of typer."""

_INVALID = "Invalid value for "


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
    command = _command(error.ctx)
    hint = f"'{command} --help' {'explains it' if ' ' in command else 'lists all commands'}."
    text = str(error.format_message()).rstrip(".")
    if text.startswith(_INVALID):
        where, _, what = text.removeprefix(_INVALID).partition(": ")
        return UsageError(in_few_words(what) + _given(error), where=where.replace("'", ""), hint=hint)
    return UsageError(text[:1].lower() + text[1:], hint=hint)


def _given(error: Any) -> str:
    """Return the refused value if the message of this release of typer omits it."""
    reasons = getattr(error.__cause__, "errors", None)
    return f", not {reasons()[0]['input']!r}" if callable(reasons) else ""


def _command(context: Any) -> str:
    """Return the command of a context, as typed by the user."""
    words: list[str] = []
    while context is not None and context.parent is not None:
        words.insert(0, str(context.info_name))
        context = context.parent
    return " ".join(["storebench", *words])
