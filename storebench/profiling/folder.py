"""The folder of a profile: its figures, with its verdict as "text"."""

import json
from pathlib import Path
from typing import Any

PROFILE_NAME = "profile.json"


def read_profile(folder: Path) -> dict[str, Any] | None:
    """Return the figures of a profile, with its verdict as "text"; None if this is the folder of something else."""
    path = folder / PROFILE_NAME
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else None
