"""Print untrusted text: names and paths that anyone may have written, on a terminal, in Markdown, CSV and CI's commands."""

import re

_LINKS = re.compile(r"\](?=[(:])")
_FORMULA = ("=", "+", "-", "@")


def plain(text: str) -> str:
    r"""Return text as part of one line: white space becomes spaces, and what cannot be printed is shown as ``\x1b``."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else " " if c.isspace() else ascii(c)[1:-1] for c in text)


def markdown(text: str) -> str:
    """Return text for a line or cell of Markdown, in which no tag, cell end, link, image or formula begins."""
    escaped = plain(text).replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").replace("$", r"\$")
    return _LINKS.sub(r"]\\", escaped)


def csv_cell(text: str) -> str:
    """Return text for a cell of CSV, with ``'`` before anything that a spreadsheet would take for a formula."""
    shown = plain(text)
    is_formula = text[:1] in ("\t", "\r") or shown.lstrip().startswith(_FORMULA)
    return f"'{shown}" if is_formula else shown


def workflow_message(text: str) -> str:
    """Return text for the message of a workflow command of GitHub Actions."""
    return plain(text).replace("%", "%25")


def workflow_property(text: str) -> str:
    """Return text for the value of a property of a workflow command, such as its title."""
    return workflow_message(text).replace(":", "%3A").replace(",", "%2C")
