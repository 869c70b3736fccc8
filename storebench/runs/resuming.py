"""The command that continues an interrupted run: one spelling for every message."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from storebench.plain_text import plain
from storebench.scenario_files import shipped_scenarios

NAMED_BACKENDS = "run"
"""Name of the scenario of a ``storebench run`` that names its backends."""

CHOSEN_BACKENDS = "first"
"""Name of the scenario of a ``storebench run`` that chooses its backends."""

_ANY_FILE = "SCENARIO.toml"


@dataclass(frozen=True, kw_only=True)
class Begun:
    """How a run was begun, as far as its folder does not tell."""

    file: str = ""
    stores: Path | None = None
    drop_caches: bool = False
    nodes: Sequence[str] = ()


def resume_command(
    folder: Path, scenario: str, begun: Begun | None = None, *, retry_failed: bool = False
) -> str:
    """Return the command that continues a run, as one line of plain text."""
    begun = begun or Begun()
    end = ["--resume", *(["--retry-failed"] if retry_failed else []), "--out", str(folder)]
    end += [] if begun.stores is None else ["--stores", str(begun.stores)]
    end += ["--drop-caches"] if begun.drop_caches else []
    end += begun.nodes
    if not begun.file and scenario in (NAMED_BACKENDS, CHOSEN_BACKENDS):
        return plain(shlex.join(["storebench", "run", *end]))
    known = scenario if scenario in shipped_scenarios() else _ANY_FILE
    return plain(shlex.join(["storebench", "bench", begun.file or known, *end]))
