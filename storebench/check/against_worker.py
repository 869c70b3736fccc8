"""One side of ``bench --against``, run by each revision's own interpreter with that revision's storebench.

It makes the run's folder and the stores and writes a line; then it runs the replicate of every line "CELL REPLICATE" on
standard input, and writes a line; "start ROUND" starts the interpreter of a round. Of either revision it uses only
`Scenario`, `Run.create`, `prepare`, `execute`, `Silent`, `ForkServer` and `claimed`.
"""

import contextlib
import ctypes
import dataclasses
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

# The package's `end_with_parent` cannot be used: earlier revisions do not have it.
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def main(job: dict[str, Any]) -> int:
    """Serve one side until standard input ends, or until the comparing process does."""
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    import storebench
    from storebench.errors import StorebenchError
    from storebench.run.execute import Silent, execute, prepare
    from storebench.run.folder import Run
    from storebench.run.scenario import Scenario
    from storebench.system.lock import claimed
    from storebench.worker.forks import ForkServer

    if not Path(storebench.__file__).resolve().is_relative_to(Path(job["tree"]).resolve()):
        sys.stderr.write(f"storebench: imported from {storebench.__file__}, not from {job['tree']}\n")
        return 5
    # Output of cells belongs in their logs; standard output is for this protocol alone.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    try:
        scenario = Scenario.model_validate(job["scenario"], strict=False)
        cells = scenario.cells()
        kept = [cells[position] for position in job["cells"]]
        with contextlib.ExitStack() as running:
            running.enter_context(claimed(Path(job["folder"])))
            run = Run.create(scenario, Path(job["folder"]), kept)
            prepare(dict.fromkeys(kept), scenario, Path(job["stores"]), Silent())
            server = running.enter_context(ForkServer())
            answers.write(f"{run.run_id}\n")
            for line in sys.stdin:
                if line.startswith("start "):
                    server.start(int(line.split()[1]), run.folder / "start.log", scenario.timeout_s)
                    answers.write("done\n")
                    continue
                position, replicate = map(int, line.split())
                single = dataclasses.replace(
                    run,
                    cells=[cells[position]],
                    scenario=scenario.model_copy(update={"replicates": replicate + 1}),
                )
                execute(single, Path(job["stores"]), drop_caches=job["drop_caches"], server=server)
                answers.write("done\n")
    except StorebenchError as error:
        sys.stderr.write(f"storebench: {error}\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
