"""The documents of the project, and the commands and code that stand in them."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [
    *sorted(ROOT.glob("*.md")),
    *sorted((ROOT / "docs").glob("*.md")),
    ROOT / "results" / "README.md",
]
PLUGIN_GUIDE = "adding-a-format.md"
"""Its blocks are the files of a plugin, and its commands need that: test_adding_a_format.py runs both."""

SHELL = ("", "sh", "bash", "shell", "console", "yaml")
PROGRAMS = ("storebench", "make")

_FENCE = re.compile(
    r"^(?P<indent> *)(?P<mark>```+)(?P<lang>[\w-]*)[^\n]*\n(?P<body>.*?)^(?P=indent)(?P=mark) *$",
    re.MULTILINE | re.DOTALL,
)
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z_0-9]*=")


@dataclass(frozen=True, kw_only=True)
class Fence:
    """A block of code in a document, and the line where it begins."""

    document: Path
    line: int
    language: str
    text: str


@dataclass(frozen=True, kw_only=True)
class Command:
    """One command of a document: its words, without variables before it and pipes behind it."""

    document: Path
    line: int
    words: tuple[str, ...]

    def __str__(self) -> str:
        return f"{name_of(self.document)}:{self.line}: {shlex.join(self.words)}"


def name_of(document: Path) -> str:
    """Return a document's path in the project."""
    return str(document.relative_to(ROOT))


def fences(document: Path) -> list[Fence]:
    """Return the fenced blocks of a document."""
    text = document.read_text(encoding="utf-8")
    return [
        Fence(
            document=document,
            line=text.count("\n", 0, found.start()) + 2,
            language=found["lang"],
            text=found["body"],
        )
        for found in _FENCE.finditer(text)
    ]


def prose(document: Path) -> str:
    """Return a document without its fenced blocks, line for line."""
    text = document.read_text(encoding="utf-8")
    return _FENCE.sub(lambda found: "\n" * found[0].count("\n"), text)


def commands(document: Path) -> list[Command]:
    """Return every storebench and make command in the shell blocks of a document, in order."""
    return [command for fence in fences(document) if fence.language in SHELL for command in _commands(fence)]


def _commands(fence: Fence) -> Iterator[Command]:
    body = re.sub(r"\\\n\s*", lambda found: " " * len(found[0]), fence.text)
    for number, line in enumerate(body.splitlines()):
        for part in re.split(r"&&|;(?!;)|\|\|", line.strip().removeprefix("$ ").removeprefix("- ")):
            words = _words(part)
            if words:
                yield Command(document=fence.document, line=fence.line + number, words=words)


def _words(part: str) -> tuple[str, ...]:
    """Return the words of a command of ours, or nothing."""
    bare = re.split(r"\s[|>]|\s2>", part.split(" #", maxsplit=1)[0])[0]
    if not re.search(rf"\b({'|'.join(PROGRAMS)})\b", bare):
        return ()
    words = shlex.split(bare)
    while words and _ASSIGNMENT.match(words[0]):
        words.pop(0)
    if words[:2] == ["python", "-m"]:
        words = words[2:]
    if not words or Path(words[0]).name not in PROGRAMS:
        return ()
    return (Path(words[0]).name, *words[1:])


def spans(document: Path) -> list[Command]:
    """Return the storebench and make commands that stand in the prose, between backticks."""
    text = prose(document)
    return [
        Command(
            document=document,
            line=text.count("\n", 0, found.start()) + 1,
            words=tuple(shlex.split(found[1].replace("\n", " "))),
        )
        for found in re.finditer(rf"`((?:{'|'.join(PROGRAMS)}) [^`]+)`", text)
    ]
