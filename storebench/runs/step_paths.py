"""Where a record's table of steps lies: in the ``steps`` folder of its run, and nowhere else."""

from pathlib import Path

from storebench.errors import CorruptDataError
from storebench.runs.records import STEPS_DIR


def step_path(run: Path, name: str) -> Path:
    """Return the path of a table of steps; there may be no file.

    Parameters
    ----------
    run
        The run's folder.
    name
        A record's `steps_file`, which whoever wrote the record has chosen.

    Raises
    ------
    CorruptDataError
        It would lead out of the run's ``steps`` folder: an absolute path, "..", or a symbolic link.
    """
    parts = Path(name).parts
    inside = parts[:1] == (STEPS_DIR,) and len(parts) > 1 and ".." not in parts and "\0" not in name
    if not inside or _leads_out(run, parts):
        raise CorruptDataError(
            f"the step file {name!r} of a record lies outside of the run's {STEPS_DIR}/",
            where=run,
            hint="Use a run folder as 'storebench bench' wrote it.",
        )
    return run.joinpath(*parts)


def _leads_out(run: Path, parts: tuple[str, ...]) -> bool:
    places = [run.joinpath(*parts[:count]) for count in range(1, len(parts) + 1)]
    if not any(place.is_symlink() for place in places):
        return False
    return not places[-1].resolve().is_relative_to(run.resolve() / STEPS_DIR)
