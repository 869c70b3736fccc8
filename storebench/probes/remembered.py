"""Keep what a probe found for other processes: small JSON files that are replaced whole."""

import contextlib
import json
import os
from pathlib import Path
from typing import Any

from storebench.errors import CorruptDataError
from storebench.fileio.json_text import parse_json
from storebench.fileio.reading import read_small_file
from storebench.fileio.whole_files import made_folder, write_whole


def user_cache_folder() -> Path:
    """Return the folder for this user's caches: ``storebench`` in ``$XDG_CACHE_HOME``, or in ``~/.cache``."""
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "storebench"


def recall(path: Path) -> dict[str, Any]:
    """Return what `path` holds; empty where there is no such file, or none that can be read."""
    with contextlib.suppress(OSError, CorruptDataError):
        found = parse_json(read_small_file(path), path)
        if isinstance(found, dict):
            return found
    return {}


def remember(path: Path, values: dict[str, Any]) -> str:
    """Replace what `path` holds; return why that was not possible, or ""."""
    try:
        with made_folder(path.parent):
            write_whole(path, json.dumps(values))
    except OSError as error:
        return f"{path.parent}: {error.strerror}"
    return ""
