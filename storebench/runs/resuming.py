"""The command that continues an interrupted run: one spelling for every message."""

import shlex
from pathlib import Path

from storebench.plain_text import plain
from storebench.scenario_files import shipped_scenarios

NAMED_BACKENDS = "run"
"""Name of the scenario of a ``storebench run`` that names its backends."""

CHOSEN_BACKENDS = "first"
"""Name of the scenario of a ``storebench run`` that chooses its backends."""

_ANY_FILE = "SCENARIO.toml"


def resume_command(folder: Path, scenario: str, *, file: str = "", retry_failed: bool = False) -> str:
    """Return the command that continues a run, as one line of plain text.

    Parameters
    ----------
    folder
        The run's folder.
    scenario
        Name of its scenario.
    file
        The scenario's file, as the command line named it. If it is "" and no scenario of that name comes with storebench, the
        command has SCENARIO.toml in its place.
    retry_failed
        Whether failed replicates run again.
    """
    end = ["--resume", *(["--retry-failed"] if retry_failed else []), "--out", str(folder)]
    if scenario in (NAMED_BACKENDS, CHOSEN_BACKENDS):
        return plain(shlex.join(["storebench", "run", *end]))
    known = scenario if scenario in shipped_scenarios() else _ANY_FILE
    return plain(shlex.join(["storebench", "bench", file or known, *end]))
