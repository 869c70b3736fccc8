"""``storebench formats``: list the formats and their readers, and how to install the missing ones."""

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from storebench.cli.common import exit_codes, put, put_json

if TYPE_CHECKING:
    from storebench.formats.base import Format
    from storebench.formats.options import Option

HEADS = ("format", "codecs", "readers", "in memory", "library")
OPTION_HEADS = ("option", "type", "default", "values", "meaning")


def formats(
    as_json: Annotated[bool, typer.Option("--json", help="Print the same as JSON.")] = False,
) -> None:
    """List the formats with their codecs, readers and options.

    A star marks the default codec and the default reader.
    """
    with exit_codes():
        from storebench.formats.registry import format_names

        facts = [_describe(name) for name in format_names()]
        if as_json:
            put_json(facts)
        else:
            put(*aligned([HEADS, *map(_row, facts)]), "", *_details(facts))


def _describe(name: str) -> dict[str, Any]:
    """Return the facts about one format, whether or not it can be used."""
    from storebench.errors import UsageError
    from storebench.formats.registry import BUILTIN, entry_points, get_format

    entry = BUILTIN.get(name) or entry_points()[name]
    row: dict[str, Any] = {
        "name": name,
        "builtin": name in BUILTIN,
        "target": entry.target,
        "install": entry.install,
        "available": True,
        "missing": None,
        "hint": None,
    }
    try:
        return row | _facts(get_format(name))
    except UsageError as error:
        return row | {"available": False, "missing": error.what, "hint": error.hint}


def _facts(format_: "Format") -> dict[str, Any]:
    from storebench.codecs import CODECS

    info = format_.info
    return {
        "summary": info.summary,
        "codecs": list(CODECS),
        "default_codec": info.default_codec,
        "default_reader": info.default_reader,
        "readers": {
            name: {
                "summary": reader.summary,
                "options": {row.name: _option(row) for row in reader.reader.options_type.rows().values()},
                "traits": dataclasses.asdict(format_.traits(name)),
                "note": reader.note,
            }
            for name, reader in format_.readers().items()
        },
    }


def _option(row: "Option") -> dict[str, Any]:
    return {
        "type": str(row.kind),
        "default": row.text(row.default),
        "values": row.allowed.replace("'", ""),
        "meaning": row.meaning,
    }


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return rows of text as a table with a line below its head."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    rule = "  ".join("-" * width for width in widths)
    return [line.rstrip() for line in (lines[0], rule, *lines[1:])]


def _row(facts: dict[str, Any]) -> tuple[str, ...]:
    if not facts["available"]:
        return (facts["name"], "", "", "", facts["install"] or facts["missing"])
    traits = facts["readers"][facts["default_reader"]]["traits"]
    return (
        facts["name"],
        _starred(facts["codecs"], facts["default_codec"]),
        _starred(facts["readers"], facts["default_reader"]),
        "yes" if traits["holds_pixels"] else "no",
        "installed" if facts["builtin"] else f"installed ({facts['target'].partition(':')[0]})",
    )


def _starred(names: list[str], default: str) -> str:
    return " ".join(f"{name}*" if name == default else name for name in names)


def _details(format_facts: list[dict[str, Any]]) -> list[str]:
    lines: list[str] = []
    for facts in format_facts:
        if not facts["available"]:
            lines.append(". ".join(filter(None, [f"{facts['name']}: {facts['missing']}", facts["hint"]])))
            continue
        lines.append(f"{facts['name']}: {facts['summary']}")
        for name, reader in facts["readers"].items():
            lines.append(f"  {facts['name']}:{name}  {reader['summary']}{_holding(reader['traits'])}")
            lines += [f"    {reader['note']}"] if reader["note"] else []
            lines += [f"    {line}" for line in _option_table(reader["options"])]
    return lines


def _option_table(options: dict[str, dict[str, Any]]) -> list[str]:
    """Return a reader's options as a table, one row each; empty if it has none."""
    rows = [(name, *(facts[head] or "" for head in OPTION_HEADS[1:])) for name, facts in options.items()]
    return aligned([OPTION_HEADS, *rows]) if rows else []


def _holding(traits: dict[str, Any]) -> str:
    return "; holds all pixels in memory" if traits["holds_pixels"] else ""
