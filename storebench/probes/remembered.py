"""Store the findings of a probe for other processes, in small JSON files that are replaced as a whole."""

import contextlib
import json
from pathlib import Path
from typing import Any

from storebench.errors import CorruptDataError
from storebench.fileio.json_text import parse_json
from storebench.fileio.reading import read_small_file
from storebench.fileio.whole_files import made_folder, write_whole


def recall(path: Path) -> dict[str, Any]:
    """Return the content of `path`; empty if the file is missing or cannot be read."""
    with contextlib.suppress(OSError, CorruptDataError):
        content = parse_json(read_small_file(path), path)
        if isinstance(content, dict):
            return content
    return {}


def remember(path: Path, values: dict[str, Any]) -> str:
    """Replace the content of `path`; return why that failed, or ""."""
    try:
        with made_folder(path.parent):
            write_whole(path, json.dumps(values))
    except OSError as error:
        return f"{path.parent}: {error.strerror}"
    return ""
