"""Text that is safe to print: without control characters; in Markdown and workflow commands; and file names as text."""

import re

_SURROGATES = re.compile(r"[\ud800-\udfff]")
_ESCAPES = re.compile(r"\\x([89a-f][0-9a-f]|5c)")
# ``surrogateescape`` turns byte B, 0x80 to 0xff, into the code point 0xdc00 + B.
_FIRST_BYTE = 0xDC00


def printable(text: str) -> str:
    r"""Return text without lone surrogates: bytes that are not UTF-8 become ``\xNN``."""
    return _SURROGATES.sub(_escaped, text)


def text_of_name(name: str) -> str:
    r"""Return a file's name or path as text from which `name_of_text` restores the same name."""
    return printable(_ESCAPES.sub(r"\\x5cx\1", name))


def name_of_text(text: str) -> str:
    """Return the name or path that `text_of_name` wrote as text."""

    def byte(match: re.Match[str]) -> str:
        value = int(match[1], 16)
        return "\\" if value == ord("\\") else chr(_FIRST_BYTE + value)

    return _ESCAPES.sub(byte, printable(text))


def _escaped(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code - _FIRST_BYTE:02x}" if 0x80 <= code - _FIRST_BYTE <= 0xFF else f"\\u{code:04x}"


def plain(text: str) -> str:
    r"""Return text as part of one line: white space becomes spaces, and what cannot be printed is shown as ``\x1b``."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else " " if c.isspace() else ascii(c)[1:-1] for c in text)


def markdown(text: str) -> str:
    """Return text for a line or cell of Markdown, in which no tag begins and no cell ends."""
    return plain(text).replace("|", "\\|").replace("<", "&lt;")
