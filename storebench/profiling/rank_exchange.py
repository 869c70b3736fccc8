"""What the ranks of a node tell each other at their ends: the last one has it all."""

import contextlib
import fcntl
import os
import pickle
import tempfile
from pathlib import Path
from typing import Any

from storebench.errors import UsageError


def rank_count() -> int:
    """Return the number of ranks on this node."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def gather(name: str, mine: Any) -> list[Any]:
    """Put what this rank tells beside what the node's other ranks do; return it by rank in the last one, [] before."""
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    # All ranks were started by one process.
    path = Path(tempfile.gettempdir(), f"storebench-{name}-{os.getuid()}-{os.getppid()}-{attempt}.pickle")
    with path.open("a+b") as file:
        if os.fstat(file.fileno()).st_uid != os.getuid():
            hint = "Set TMPDIR to a folder of your own."
            raise UsageError("this file is another user's", where=str(path), hint=hint)
        fcntl.flock(file, fcntl.LOCK_EX)
        pickle.dump((int(os.environ["RANK"]), mine), file)
        file.flush()
        file.seek(0)
        ranks = dict[int, Any]()
        with contextlib.suppress(EOFError):
            while True:
                ranks.update([pickle.load(file)])  # noqa: S301 - of this user's own ranks
        if len(ranks) < rank_count():
            return []
        path.unlink()
    return [ranks[rank] for rank in sorted(ranks)]
