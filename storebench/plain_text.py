"""Print text of others: on a terminal, in a log that CI reads as commands, in Markdown, CSV, JUnit and workflow commands.

Names of datasets, classes, backends and cells, words in records, and paths come from files that somebody else may have
written. `plain` is the one way in which such text gets into a line; the other functions are `plain` first, and then
what their format needs. HTML needs nothing else: its templates escape every value.
"""

import re

_UNPRINTED = re.compile(
    r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]"
)
"""Control characters of ASCII and Latin-1 (terminal escapes begin with one), what changes the direction of the text
around it, separators of lines, halves of characters, which stand for bytes that are no UTF-8, and what no XML may hold."""

_WHITE = frozenset("\t\n\v\f\r\x1c\x1d\x1e\x1f\x85\u2028\u2029")
_COMMAND = re.compile(r"(^|\s)(::+)", re.MULTILINE)
_OLD_COMMAND = "##["
_LINKS = re.compile(r"\](?=[(:])")
_FORMULA = ("=", "+", "-", "@")


def plain(text: str) -> str:
    r"""Return text as a part of one line: nothing in it moves a cursor, ends the line, or is a command to CI.

    White space becomes spaces, and other characters that are not printed are shown as ``\x1b`` or ``\u202e``. A pair of
    colons that could begin a line is taken apart. What is plain stays as it is.
    """
    return inert(_UNPRINTED.sub(_shown, text))


def inert(lines: str) -> str:
    """Return lines of our own in which no runner of GitHub Actions finds a command, however they were folded.

    A command begins a line, after any space (``::error::``), or stands anywhere in it (``##[error]``).
    """
    apart = _COMMAND.sub(lambda match: match[1] + " ".join(match[2]), lines)
    return apart.replace(_OLD_COMMAND, "## [")


def markdown(text: str) -> str:
    """Return text for a line or a cell of Markdown: no tag, cell's end, link, image or formula begins in it."""
    escaped = plain(text).replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").replace("$", r"\$")
    return _LINKS.sub(r"]\\", escaped)


def csv_cell(text: str) -> str:
    """Return text for a cell of CSV, with ``'`` before what a spreadsheet would take for a formula."""
    shown = plain(text)
    is_formula = text[:1] in ("\t", "\r") or shown.lstrip().startswith(_FORMULA)
    return f"'{shown}" if is_formula else shown


def json_text(text: str) -> str:
    """Return JSON that means the same and in which CI finds no command: a bracket in a string is spelt out."""
    return text.replace(_OLD_COMMAND, r"##\u005b")


def workflow_message(text: str) -> str:
    """Return text for the message of a workflow command of GitHub Actions."""
    return plain(text).replace("%", "%25")


def workflow_property(text: str) -> str:
    """Return text for the value of a property of a workflow command, such as its title."""
    return workflow_message(text).replace(":", "%3A").replace(",", "%2C")


def _shown(match: re.Match[str]) -> str:
    if match[0] in _WHITE:
        return " "
    code = ord(match[0])
    if 0xDC80 <= code <= 0xDCFF:
        code -= 0xDC00  # a byte of a path that is no UTF-8, as Python keeps it
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
