"""Paths of the step tables of a run's records; a path that leads out of the run's folder is refused."""

from pathlib import Path

from storebench.errors import CorruptDataError
from storebench.runs.records import STEPS_DIR, STEPS_NAME

_HINT = "Use a run folder as 'storebench bench' wrote it."


def step_path(run: Path, name: str) -> Path:
    """Return the path of a step table that is a separate file; there may be no file."""
    parts = Path(name).parts
    inside = parts[:1] == (STEPS_DIR,) and len(parts) > 1 and ".." not in parts and "\0" not in name
    if not inside or _leads_out(run, parts):
        raise CorruptDataError(
            f"the step file {name!r} of a record lies outside of the run's {STEPS_DIR}/",
            where=run,
            hint=_HINT,
        )
    return run.joinpath(*parts)


def merged_path(run: Path) -> Path:
    """Return the path of the file that holds all step tables of a finished run; there may be no file."""
    path = run / STEPS_NAME
    if path.is_symlink():
        raise CorruptDataError("a symbolic link, not a file of the run's own", where=path, hint=_HINT)
    return path


def _leads_out(run: Path, parts: tuple[str, ...]) -> bool:
    places = [run.joinpath(*parts[:count]) for count in range(1, len(parts) + 1)]
    if not any(place.is_symlink() for place in places):
        return False
    return not places[-1].resolve().is_relative_to(run.resolve() / STEPS_DIR)
