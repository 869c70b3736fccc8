"""Write the documents that are made from the code: ``python -m tests.docs.generate`` (``make docs``)."""

import enum
import inspect
import re
import shlex
import subprocess
import sys
import types
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import typer

from storebench.cli.main import app
from tests.docs.scenario_reference import scenario_reference
from tests.docs.schema_page import schema_markdown

ROOT = Path(__file__).resolve().parents[2]

MADE = re.compile(
    r"(?<=<!-- from here on, made by 'make docs' -->\n).*?(?=<!-- up to here -->|\Z)", re.DOTALL
)
"""The part of a document that is made."""

VALUE_WORDS = {int: "N", float: "X", str: "TEXT", Path: "PATH"}


def cli_reference() -> str:
    """Return the commands of docs/cli.md."""
    found = sorted(verbs(), key=lambda pair: pair[0])
    lines = ["| command | what it does |", "|---|---|"]
    lines += [f"| [`storebench {name}`](#{_anchor(name)}) | {_first_line(verb)} |" for name, verb in found]
    for name, verb in found:
        lines += ["", *_section(name, verb)]
    return "\n".join(lines) + "\n"


def planner_page() -> str:
    """Return docs/planner.md with the output of each of its commands that a block of text follows."""

    def ran(match: re.Match[str]) -> str:
        words = shlex.split(match["command"].replace("\\\n", " "))[1:]
        command = [sys.executable, "-m", "storebench", *words]
        done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
        return f"```bash\n{match['command']}\n```\n\n```text\n{done.stdout}```"

    text = (ROOT / "docs/planner.md").read_text(encoding="utf-8")
    blocks = r"```bash\n(?P<command>storebench plan [^`]*)\n```\n\n```text\n[^`]*```"
    return re.sub(blocks, ran, text)


MADE_OF: dict[str, Callable[[], str]] = {
    "docs/cli.md": cli_reference,
    "docs/scenarios.md": scenario_reference,
    "docs/schema.md": schema_markdown,
}
"""Document -> what makes the text between its marks."""


def page(name: str) -> str:
    """Return a document with what the code makes of it now."""
    text = (ROOT / name).read_text(encoding="utf-8")
    return MADE.sub(lambda _: f"\n{MADE_OF[name]()}\n", text).rstrip() + "\n"


def verbs() -> Iterator[tuple[str, Any]]:
    """Yield every command of the real application, those of a group as "data list"."""
    for name, command in typer.main.get_command(app).commands.items():  # type: ignore[attr-defined]
        children = getattr(command, "commands", None)
        if children is None:
            yield name, command
        else:
            yield from ((f"{name} {child}", verb) for child, verb in children.items())


def _anchor(name: str) -> str:
    return f"storebench-{name.replace(' ', '-')}"


def _first_line(verb: Any) -> str:
    return inspect.cleandoc(verb.help or "").split("\n\n")[0].replace("\n", " ")


def _section(name: str, verb: Any) -> list[str]:
    arguments = [param for param in verb.params if param.param_type_name == "argument"]
    options = [param for param in verb.params if param.param_type_name == "option" and param.name != "help"]
    words = [_word(argument) for argument in arguments] + (["[OPTIONS]"] if options else [])
    lines = [f"## storebench {name}", "", _description(verb.help or ""), ""]
    lines += ["```text", " ".join(["storebench", name, *words]), "```"]
    kinds = typing.get_type_hints(verb.callback)
    if arguments:
        lines += ["", "| argument | meaning |", "|---|---|"]
        lines += [f"| `{_cell(_word(argument))}` | {_meaning(argument)} |" for argument in arguments]
    if options:
        lines += ["", "| option | meaning |", "|---|---|"]
        lines += [f"| `{_cell(_usage(option, kinds))}` | {_meaning(option)} |" for option in options]
    return lines


def _description(text: str) -> str:
    """Return the text of a help, its examples as a block of code."""
    return re.sub(r"\x08\n((?: +.*\n)+)", r"```bash\n\1```\n", inspect.cleandoc(text)).replace("\n  ", "\n")


def _word(argument: Any) -> str:
    word = argument.metavar or argument.name.upper()
    if argument.nargs == -1 and not word.endswith("..."):
        word += "..."
    return word if argument.required else f"[{word}]"


def _usage(option: Any, kinds: dict[str, Any]) -> str:
    names = ", ".join(sorted(option.opts, key=len))
    if option.secondary_opts:
        return f"{names} / {', '.join(option.secondary_opts)}"
    if option.is_flag:
        return names
    return f"{names} {option.metavar or _value_word(_plain(kinds[option.name]))}"


def _value_word(kind: Any) -> str:
    if issubclass(kind, enum.Enum):
        return "|".join(str(one.value) for one in kind)
    return VALUE_WORDS[kind]


def _plain(kind: Any) -> Any:
    """Return the type of one value: `int | None` and `list[int]` are ints on a command line."""
    if isinstance(kind, types.UnionType):
        kind = next(one for one in typing.get_args(kind) if one is not type(None))
    return typing.get_args(kind)[0] if typing.get_origin(kind) is list else kind


def _meaning(parameter: Any) -> str:
    text = re.sub(r"\[default: (.*)\]", r"Default: \1.", _cell(parameter.help or ""))
    if parameter.required:
        return f"{text} Required."
    if isinstance(parameter.show_default, str):
        return f"{text} Default: {parameter.show_default}."
    silent = parameter.default is None or parameter.default is False or "Default: " in text
    return text if silent else f"{text} Default: `{parameter.default}`."


def _cell(text: str) -> str:
    """Return text that may stand in a cell of a Markdown table."""
    return text.replace("|", "\\|")


def main() -> None:
    """Write every generated document."""
    for name in MADE_OF:
        (ROOT / name).write_text(page(name), encoding="utf-8")
    (ROOT / "docs/planner.md").write_text(planner_page(), encoding="utf-8")


if __name__ == "__main__":
    main()
