"""Run a script or module under the profiler: ``python start.py OPTIONS NAME [arguments]``, which ``storebench profile`` becomes."""

import os
import sys

if __name__ == "__main__":
    before = set(sys.modules)
    given = sys.path[not sys.flags.safe_path :]  # Python has put the folder of this file before
    library = os.path.dirname(os.__file__)  # noqa: PTH120 - nothing is imported yet
    root = os.path.abspath(f"{__file__}/../../..")  # noqa: PTH100
    # No module of the script's project is imported in place of one of Python.
    sys.path = [*(path for path in given if path.startswith(library)), root, *given]

    from storebench.profiling.script import main

    main(given, before)
