"""Words as the real command line takes them: which verb, which options, which arguments."""

from collections.abc import Sequence
from typing import Any

from tests.docs.generate import verbs


def resolve(words: Sequence[str]) -> tuple[Any, str, list[str]]:
    """Return the command that WORDS of ``storebench WORDS`` name, its name, and the words behind it."""
    known = dict(verbs())
    for size in (2, 1):
        name = " ".join(words[:size])
        if name in known:
            return known[name], name, list(words[size:])
    raise AssertionError(f"no command is called 'storebench {' '.join(words[:2])}'")


def parse(words: Sequence[str]) -> None:
    """Let the real command parse the words; an unknown option or a missing one raises."""
    command, name, rest = resolve(words)
    command.make_context(name, rest)


def options_of(words: Sequence[str]) -> set[str]:
    """Return every option that the command knows, by each of its names."""
    command = resolve(words)[0]
    return {"--help", *(name for param in command.params for name in (*param.opts, *param.secondary_opts))}
