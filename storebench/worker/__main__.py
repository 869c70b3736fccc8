"""The program of a replicate's process: import everything, then run the job.

The runner starts ``python -P -m storebench.worker JOB.json``, a fresh process for every replicate; in a job of ranks,
torchrun starts it once per rank.
"""

import gc
import sys

from storebench.system.imports import uncollected

if __name__ == "__main__":
    with uncollected():
        from storebench.worker.replicate import main

    code = main(sys.argv[1:])
    gc.freeze()  # to leave in no time: the collector would go through everything that is left
    sys.exit(code)
