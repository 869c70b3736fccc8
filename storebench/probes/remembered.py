"""Keep what a probe found for other processes: small JSON files that are replaced whole."""

import contextlib
import json
import os
from pathlib import Path
from typing import Any


def user_cache_folder() -> Path:
    """Return the folder for this user's caches: ``storebench`` in ``$XDG_CACHE_HOME``, or in ``~/.cache``."""
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "storebench"


def recall(path: Path) -> dict[str, Any]:
    """Return what `path` holds; empty where there is no such file, or none that can be read."""
    with contextlib.suppress(OSError, ValueError):
        found = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(found, dict):
            return found
    return {}


def remember(path: Path, values: dict[str, Any]) -> str:
    """Replace what `path` holds; return why that was not possible, or ""."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished.write_text(json.dumps(values), encoding="utf-8")
        unfinished.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            unfinished.unlink()
        return f"{path.parent}: {error.strerror}"
    return ""
