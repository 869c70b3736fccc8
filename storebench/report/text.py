"""A table as plain text, for a terminal or a log."""

import textwrap
from collections.abc import Sequence

from storebench.analysis.table import Table
from storebench.plain_text import plain

# Lines of a table; columns beyond them are named, and not shown.
_MOST_LINES = 45

# Longer cells may be broken into lines.
_LONGEST = 40

# The same for cells of the first column.
_LONGEST_NAME = 28

# Head and cells.
_Column = tuple[str, Sequence[str]]


def text(table: Table, width: int) -> str:
    """Return a table as blocks of columns that fit the width, under a title with the words that all heads share."""
    heads = [plain(head).split(", ") for head in table.head[1:]]
    shared = [word for word in heads[0] if len(heads) > 1 and all(word in other for other in heads)]
    short = [", ".join(word for word in head if word not in shared) for head in heads]
    cells = [[plain(row[number]) for row in table.rows] for number in range(len(table.head))]
    columns = list(zip((plain(table.head[0]), *short), cells, strict=True))
    # The least widths that cut no word of a head, and no cell of usual length.
    least = [
        max(1, *map(len, head.split()), *(min(len(cell), _LONGEST) for cell in column))
        for head, column in columns
    ]
    longest_word = max((len(word) for cell in cells[0] for word in cell.split()), default=0)
    least[0] = max(longest_word, min(least[0], _LONGEST_NAME))
    title = [", ".join(shared)] if shared else []
    lines, start = [*title, *textwrap.wrap(plain(table.caption), width)], 1
    while start < len(columns):
        end = start + 1
        while end < len(columns) and least[0] + sum(need + 2 for need in least[start : end + 1]) <= width:
            end += 1
        block = [0, *range(start, end)]
        made = _block([columns[n] for n in block], [least[n] for n in block], width)
        if start > 1 and len(lines) + len(made) > _MOST_LINES:
            lines.append(f"Columns not shown: {', '.join(head for head, _ in columns[start:])}.")
            break
        lines += ["", *made] if start > 1 else made
        start = end
    return "".join(f"{line}\n" for line in lines)


def _block(columns: Sequence[_Column], least: Sequence[int], width: int) -> list[str]:
    """Return some columns as lines, without rows that are empty but for their name; heads get the room that is left."""
    more = max(0, width - sum(least) - 2 * (len(least) - 1)) // len(least)
    widths = [max(need, min(need + more, len(head))) for need, (head, _) in zip(least, columns, strict=True)]
    heads = _row([head for head, _ in columns], widths, last=True)
    rows = [row for row in zip(*(cells for _, cells in columns), strict=True) if any(row[1:])]
    rule = "-" * (sum(widths) + 2 * (len(widths) - 1))
    return [*heads, rule, *(line for row in rows for line in _row(row, widths))]


def _row(cells: Sequence[str], widths: Sequence[int], *, last: bool = False) -> list[str]:
    """Return the lines of one row; shorter cells stand on its first lines, or on its last."""
    wrapped = [
        textwrap.wrap(cell, width, break_on_hyphens=False) for cell, width in zip(cells, widths, strict=True)
    ]
    height = max(map(len, wrapped))
    filled = [
        [""] * (height - len(lines)) + lines if last else lines + [""] * (height - len(lines))
        for lines in wrapped
    ]
    first, others = widths[0], widths[1:]
    return [
        "  ".join([name.ljust(first), *map(str.rjust, texts, others)]).rstrip()
        for name, *texts in zip(*filled, strict=True)
    ]
