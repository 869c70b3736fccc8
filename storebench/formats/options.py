"""Typed options of readers: one row per option, with its name, type, default, allowed values and meaning."""

import dataclasses
import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self

from storebench.errors import UnknownNameError, UsageError
from storebench.system.json_text import brief

OptionValue = bool | int | str | None

AUTO = "auto"  # the word for a value that the reader or the harness chooses
_ROW = "option"


@dataclass(frozen=True, kw_only=True)
class Option:
    """One row of the table of options."""

    name: str  # the option's name in a backend
    default: OptionValue  # the value that holds where the backend does not name the option
    meaning: str  # effect of the option, in one line
    least: int = 0
    most: int | None = None  # the end of the range of a number, counted in `unit`; None for words only
    words: Mapping[str, OptionValue] = dataclasses.field(default_factory=dict)
    unit: int = 1  # bytes per 1 of a size; 1 for every other option

    @property
    def kind(self) -> str:
        """The type of its value, in words."""
        if self.most is not None:
            return "integer" if self.unit == 1 else "size"
        return "flag" if isinstance(self.default, bool) else "choice"

    @property
    def allowed(self) -> str:
        """The accepted values, as a clause: "'on' or 'off'", "a whole number from 4 to 64"."""
        numbers = [] if self.most is None else [f"a whole number from {self.least} to {self.most}"]
        parts = [*numbers, *map(repr, self.words)]
        return " or ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)

    def value(self, text: str, reader: str) -> OptionValue:
        if text in self.words:
            return self.words[text]
        whole = text.isascii() and text.isdecimal() and len(text) <= 18
        if whole and self.most is not None and self.least <= int(text) <= self.most:
            return int(text) * self.unit
        raise UsageError(f"{self.name} must be {self.allowed}, not {brief(text)}", where=reader)

    def text(self, value: OptionValue) -> str:
        """Return the canonical spelling of a value."""
        for word, meant in self.words.items():
            if meant == value:
                return word
        assert isinstance(value, int), "only numbers have values without a word"
        return str(value // self.unit)


def flag(*, default: bool, meaning: str, name: str = "") -> Any:
    return _field(Option(name=name, default=default, meaning=meaning, words={"on": True, "off": False}))


def integer(
    *,
    default: int | None,
    least: int,
    most: int,
    meaning: str,
    none: str = "off",
    name: str = "",
    unit: int = 1,
) -> Any:
    words: Mapping[str, OptionValue] = {none: None} if default is None else {}
    value = None if default is None else default * unit
    return _field(
        Option(name=name, default=value, meaning=meaning, least=least, most=most, words=words, unit=unit)
    )


# A size is written as a whole number of units, in which its name ends; the reader receives bytes.
size = functools.partial(integer, none=AUTO)


def choice(*, default: str, among: Iterable[str], meaning: str, name: str = "") -> Any:
    """Declare an option that is one of some words; the reader receives the word."""
    return _field(Option(name=name, default=default, meaning=meaning, words={word: word for word in among}))


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
        return {
            field.name: dataclasses.replace(row, name=row.name or field.name)
            for field in dataclasses.fields(cls)
            if (row := field.metadata.get(_ROW)) is not None
        }
