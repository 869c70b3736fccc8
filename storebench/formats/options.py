"""Typed options of readers: one row per option, with its name, type, default, allowed values and meaning."""

import dataclasses
import difflib
import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self

from storebench.errors import UnknownNameError, UsageError
from storebench.fileio.json_text import brief

OptionValue = bool | int | str | None

AUTO = "auto"
"""The word for a value that the reader or the harness chooses."""

_ROW = "option"
_MOST_DIGITS = 18


class OptionType(enum.StrEnum):
    """The type of an option's value."""

    FLAG = "flag"
    INTEGER = "integer"
    SIZE = "size"
    """An integer whose name ends in its unit (``window_mib=16``); the reader receives bytes."""
    CHOICE = "choice"


@dataclass(frozen=True, kw_only=True)
class Option:
    """One row of the table of options."""

    name: str  # the option's name in a backend
    kind: OptionType  # the type of its value
    default: OptionValue  # the value that holds where the backend does not name the option
    meaning: str  # effect of the option, in one line
    least: int = 0
    most: int = 0  # the range of an integer or a size, both ends included; a size is counted in `unit`
    words: Mapping[str, OptionValue] = dataclasses.field(default_factory=dict)
    unit: int = 1  # bytes per 1 of a size; 1 for every other kind

    @property
    def allowed(self) -> str:
        """The accepted values, as a clause: "'on' or 'off'", "a whole number from 4 to 64"."""
        numbers = [f"a whole number from {self.least} to {self.most}"] if self._is_number else []
        parts = [*numbers, *map(repr, self.words)]
        return " or ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)

    def value(self, text: str, reader: str) -> OptionValue:
        """Return the value of `text`."""
        if text in self.words:
            return self.words[text]
        if self._is_number and _is_whole(text) and self.least <= int(text) <= self.most:
            return int(text) * self.unit
        near = difflib.get_close_matches(text, self.words, n=1, cutoff=0.6)
        raise UsageError(
            f"{self.name} must be {self.allowed}, not {brief(text)}",
            where=reader,
            hint=f"Did you mean {near[0]!r}?" if near else None,
        )

    def text(self, value: OptionValue) -> str:
        """Return the canonical spelling of a value."""
        for word, meant in self.words.items():
            if meant == value:
                return word
        assert isinstance(value, int), "only numbers have values without a word"
        return str(value // self.unit)

    @property
    def _is_number(self) -> bool:
        return self.kind in (OptionType.INTEGER, OptionType.SIZE)


def _is_whole(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS


def flag(*, default: bool, meaning: str, name: str = "") -> Any:
    """Declare an option that is "on" or "off"; the reader receives a bool."""
    words: Mapping[str, OptionValue] = {"on": True, "off": False}
    return _field(Option(name=name, kind=OptionType.FLAG, default=default, meaning=meaning, words=words))


def integer(
    *,
    default: int | None,
    least: int,
    most: int,
    meaning: str,
    none: str = "off",
    name: str = "",
) -> Any:
    """Declare an option that is a whole number."""
    words: Mapping[str, OptionValue] = {none: None} if default is None else {}
    row = Option(
        name=name,
        kind=OptionType.INTEGER,
        default=default,
        meaning=meaning,
        least=least,
        most=most,
        words=words,
    )
    return _field(row)


def size(
    *,
    default: int | None,
    least: int,
    most: int,
    unit: int,
    meaning: str,
    name: str,
    none: str = "auto",
) -> Any:
    """Declare an option that is a size, written as a whole number of units; the reader receives bytes."""
    in_bytes = None if default is None else default * unit
    words: Mapping[str, OptionValue] = {none: None} if default is None else {}
    row = Option(name=name, kind=OptionType.SIZE, default=in_bytes, meaning=meaning, least=least, most=most)
    return _field(dataclasses.replace(row, unit=unit, words=words))


def choice(*, default: str, among: Iterable[str], meaning: str, name: str = "") -> Any:
    """Declare an option that is one of some words; the reader receives the word."""
    words: Mapping[str, OptionValue] = {word: word for word in among}
    return _field(Option(name=name, kind=OptionType.CHOICE, default=default, meaning=meaning, words=words))


def _field(row: Option) -> Any:
    return dataclasses.field(default=row.default, metadata={_ROW: row})


def as_text(value: bool | int | str) -> str:
    """Return an option's value as a backend's name spells it: ``True`` is "on", 16 is "16"."""
    if isinstance(value, bool):
        return "on" if value else "off"
    return str(value)


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of a reader, as typed values; this class itself has none."""

    @classmethod
    def rows(cls) -> dict[str, Option]:
        """Return the rows by the option's name, in the order of the fields."""
        return {row.name: row for row in cls._fields().values()}

    @classmethod
    def spelled(cls, given: Iterable[tuple[str, str]], reader: str) -> tuple[tuple[str, str], ...]:
        """Check options and return them in their canonical spelling, sorted by name."""
        rows = cls.rows()
        texts: dict[str, str] = {}
        for name, text in given:
            if name not in rows:
                raise UnknownNameError.of(f"option of {reader}", name, rows)
            if name in texts:
                raise UsageError(f"{name} is given twice", where=reader, hint="Name it once.")
            texts[name] = rows[name].text(rows[name].value(text, reader))
        return tuple(sorted(texts.items()))

    @classmethod
    def parse(cls, given: Iterable[tuple[str, str]], reader: str) -> Self:
        """Return the typed values of options; those that are not given have their defaults."""
        texts = dict(cls.spelled(given, reader))
        values: dict[str, Any] = {
            name: row.value(texts[row.name], reader)
            for name, row in cls._fields().items()
            if row.name in texts
        }
        return cls(**values)

    @classmethod
    def _fields(cls) -> dict[str, Option]:
        """Return the rows by the name of their field."""
        rows = {
            attribute.name: attribute.metadata[_ROW]
            for attribute in dataclasses.fields(cls)
            if _ROW in attribute.metadata
        }
        return {field: dataclasses.replace(row, name=row.name or field) for field, row in rows.items()}
