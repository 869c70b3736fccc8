"""One node's part of torchrun: start the ranks of a job there, and end them all as soon as one fails."""

import json
import os
import signal
import sys
import traceback
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from storebench.ranks.launch import LOGS_NAME, MEET_S, Team, blame, write_failure
from storebench.system.processes import end_with_starter, uncollected

if TYPE_CHECKING:  # its import takes seconds, in which this process must already end with its parent
    from torch.distributed.launcher.api import LaunchConfig

_HERE = "127.0.0.1"
_EXIT_FAILED = 1
_LOOPBACK = Path("/sys/class/net/lo")


def main(arguments: Sequence[str]) -> int:
    """Run a job of ranks, and return 0 if all of them did."""
    end_with_starter(signal.SIGTERM)
    text, path, *program = arguments
    folder = Path(path)
    team = Team(**json.loads(text))
    os.environ.setdefault("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "3")
    if team.nodes == 1 and _LOOPBACK.exists():
        # gloo would use the address that the host's name has, which may be none that can be reached.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", _LOOPBACK.name)
    return _run(team, folder, program)


def _run(team: Team, folder: Path, program: Sequence[str]) -> int:
    with uncollected():
        from torch.distributed.elastic.multiprocessing import SignalException
        from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
        from torch.distributed.launcher.api import elastic_launch

    try:
        # torchrun replaces ${local_rank} in arguments.
        elastic_launch(_config(team, folder), sys.executable)(
            *(argument.replace("$", "$$") for argument in program)
        )
    except ChildFailedError as error:
        blame(folder, team, {rank: failure.exitcode for rank, failure in error.failures.items()})
        return _EXIT_FAILED
    except SignalException as error:
        return 128 + error.sigval
    except RuntimeError:  # of torch.distributed, which has many kinds
        if team.nodes == 1:
            raise
        traceback.print_exc()
        why = f"node {team.node}: the other nodes cannot be reached at {team.rendezvous} within {MEET_S} s"
        write_failure(folder, None, why, see_log=True)
        return _EXIT_FAILED
    return 0


def _config(team: Team, folder: Path) -> "LaunchConfig":
    """Return torchrun's settings for the ranks: a free port on one node, the first node's address on several."""
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std
    from torch.distributed.launcher.api import LaunchConfig

    alone = team.nodes == 1
    return LaunchConfig(
        min_nodes=team.nodes,
        max_nodes=team.nodes,
        nproc_per_node=team.local_ranks,
        run_id=uuid.uuid4().hex if alone else team.rendezvous,
        rdzv_backend="c10d" if alone else "static",
        rdzv_endpoint=f"{_HERE}:0" if alone else team.rendezvous,
        rdzv_configs={} if alone else {"rank": team.node, "timeout": MEET_S},
        local_addr=_HERE if alone else None,
        max_restarts=0,
        logs_specs=DefaultLogsSpecs(log_dir=str(folder / LOGS_NAME), redirects=Std.ALL),
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
