"""One node's part of torchrun: start the ranks of a job there, and end them all as soon as one fails.

The launcher starts ``python -P -m storebench.ranks.agent RANKS FOLDER ARGUMENTS...``; each rank is
``python ARGUMENTS...``. It is torchrun by its own interface, for two reasons: its command line sets OMP_NUM_THREADS to 1
where several ranks run, so that cells of one rank and of many would compute with different numbers of threads; and it
would outlive the process that started it.
"""

import os
import signal
import sys
import uuid
from collections.abc import Sequence
from pathlib import Path

from storebench.ranks.endings import write_exits
from storebench.system.processes import end_with_parent

LOGS_NAME = "logs"
"""Folder of the output of each rank, inside the job's folder."""

_HERE = "127.0.0.1"
_SHUTDOWN_S = "3"
_EXIT_FAILED = 1
_LOOPBACK = Path("/sys/class/net/lo")


def main(arguments: Sequence[str]) -> int:
    """Run a job of ranks, and return 0 if all of them did."""
    end_with_parent(signal.SIGTERM)
    ranks, folder, *program = arguments
    os.environ.setdefault("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", _SHUTDOWN_S)
    if _LOOPBACK.exists():
        # gloo would use the address that the host's name has, which may be none that can be reached.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", _LOOPBACK.name)
    return _run(int(ranks), Path(folder), program)


def _run(ranks: int, folder: Path, program: Sequence[str]) -> int:
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException, Std
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=ranks,
        run_id=uuid.uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint=f"{_HERE}:0",
        local_addr=_HERE,
        max_restarts=0,
        logs_specs=DefaultLogsSpecs(log_dir=str(folder / LOGS_NAME), redirects=Std.ALL),
    )
    try:
        # torchrun replaces ${local_rank} in arguments.
        elastic_launch(config, sys.executable)(*(one.replace("$", "$$") for one in program))
    except ChildFailedError as error:
        write_exits(folder, {rank: failure.exitcode for rank, failure in error.failures.items()})
        return _EXIT_FAILED
    except SignalException as error:
        return 128 + error.sigval
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
