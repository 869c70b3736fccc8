"""Where this user's caches are."""

import os
from pathlib import Path


def user_cache_folder() -> Path | None:
    """Return the folder for this user's caches: ``storebench`` in ``$XDG_CACHE_HOME``, or in ``~/.cache``."""
    if home := os.environ.get("XDG_CACHE_HOME"):
        return Path(home) / "storebench"
    try:
        return Path.home() / ".cache" / "storebench"
    except RuntimeError:
        return None
