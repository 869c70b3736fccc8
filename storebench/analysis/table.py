"""A table of results: text for people, raw values for programs; each column is declared once."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from storebench.analysis.comparison import Estimate, Ratio
from storebench.analysis.labels import number, with_interval
from storebench.plain_text import markdown

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table for people (`head`, `rows`) and for programs (`raw_head`, `raw`)."""

    caption: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    raw_head: tuple[str, ...] = ()
    raw: tuple[tuple[Any, ...], ...] = ()
    kind: str = "table"
    """Name of the CSV file that tables of this kind share."""
    anchor: str = ""
    """Where the page's matrix finds it."""
    marks: tuple[str, ...] = ()
    """For each row why it must not be read like the others, or ""."""
    verdicts: tuple[str, ...] = ()
    """For each row "faster", "slower", "equal" or "", for its colour."""
    notes: tuple[str, ...] = ()

    def to_markdown(self) -> str:
        lines = [self.head, ("---", *("---:" for _ in self.head[1:])), *self.rows]
        body = "\n".join("| " + " | ".join(map(markdown, line)) + " |" for line in lines)
        notes = "".join(f"- {markdown(note)}\n" for note in self.notes)
        return f"**{markdown(self.caption)}**\n\n{body}\n" + (f"\n{notes}" if notes else "")


@dataclass(frozen=True)
class Column(Generic[T]):
    """A column for people (`head`), for programs (`name`), or both; an interval has three raw columns."""

    head: str
    name: str
    value: Callable[[T], Any]
    text: Callable[[Any], str] | None = None
    interval: bool = False

    def shown(self, item: T) -> str:
        value = self.value(item)
        if self.text is not None:
            return self.text(value)
        if isinstance(value, Estimate | Ratio):
            return with_interval(value)
        return number(value) if isinstance(value, float) else "" if value is None else str(value)

    def raw_names(self) -> tuple[str, ...]:
        return (self.name, f"{self.name}_lo", f"{self.name}_hi") if self.interval else (self.name,)

    def raw(self, item: T) -> tuple[Any, ...]:
        value = self.value(item)
        return ends(value) if self.interval else (value,)


def make_table(
    kind: str, caption: str, columns: Sequence[Column[T]], items: Sequence[T], **more: Any
) -> Table:
    shown, kept = [c for c in columns if c.head], [c for c in columns if c.name]
    return Table(
        kind=kind,
        caption=caption,
        head=tuple(column.head for column in shown),
        rows=tuple(tuple(column.shown(item) for column in shown) for item in items),
        raw_head=tuple(name for column in kept for name in column.raw_names()),
        raw=tuple(tuple(value for column in kept for value in column.raw(item)) for item in items),
        **more,
    )


def ends(value: Estimate | Ratio | None) -> tuple[float | None, float | None, float | None]:
    return (value.mid, value.low, value.high) if value else (None, None, None)
