"""Does the gate see a slow-down of 1.5 times in a reader, and let a change of nothing pass? Also on a busy machine.

    python -m benchmarks.gate_cases --runs 2 --load 10              every case twice, beside ten busy processes
    python -m benchmarks.gate_cases --runs 1 nothing lmdb+png       some cases, two of them in one run

Each run clones this checkout, plants the case, and compares the clone's working tree with its commit as a pull request
does. One line per run; exit code 1 if a run ends with another code than its case should.
"""

import argparse
import contextlib
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from storebench.check.judge import CellState
from storebench.errors import EXIT_OK, EXIT_REGRESSION

ROOT = Path(__file__).resolve().parents[1]

MATRIX = """
[[matrix]]
dataset = "cifar10"
limit = 2000
synthetic = true
compute = "none"
backends = {backends}
cache = "warm"
warmup_steps = 2
passes = {passes}
batch_size = {batch}
threads = 1
"""
SCENARIO = 'name = "cases"\nreplicates = 5\nceilings = false\ntest_limit = 0\n' + "".join(
    MATRIX.format(backends=backends, passes=passes, batch=batch)
    for backends, passes, batch in (
        ('["memory:native", "lmdb", "leveldb"]', 60, 100),
        ('["hdf5"]', 20, 100),
        ('["png"]', 2, 10),
    )
)

SLOWER = """

def _slower(method):
    import time

    def slow(*arguments):
        start = time.thread_time_ns()
        result = method(*arguments)
        end = time.thread_time_ns()
        while 2 * (time.thread_time_ns() - end) < end - start:
            pass
        return result

    return slow


"""

CASES = {
    "nothing": [("storebench/units.py", "# changed\n")],
    **{
        case: [(f"storebench/{file}", f"{SLOWER}{method} = _slower({method})\n") for file, method in places]
        for case, places in {
            "memory": [("formats/memory/format.py", "MemoryNativeReader._fetch_into")],
            "lmdb": [("formats/lmdb/get.py", "LmdbGetReader._fetch_into")],
            "leveldb": [("formats/leveldb/format.py", "LevelDbGetReader._fetch_into")],
            "hdf5": [("formats/hdf5/get.py", "Hdf5GetReader._fetch_into")],
            "png": [
                ("formats/files/format.py", "FilesReader._fetch"),
                ("codecs/compressed.py", "PngCodec.decode_into"),
            ],
        }.items()
    },
}
"""Case -> texts that are added to files of the clone."""


def main() -> int:
    """Run the cases and print a line for each run."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("cases", nargs="*", default=[*CASES], help="[default: all]")
    parser.add_argument("--runs", type=int, default=1, help="of each case [default: 1]")
    parser.add_argument("--load", type=int, default=0, help="busy processes beside the gate [default: 0]")
    parser.add_argument("--budget", default="2 min", help="of each run [default: 2 min]")
    arguments = parser.parse_args()
    wrong = 0
    with tempfile.TemporaryDirectory() as scratch, busy(arguments.load):
        folder = Path(scratch)
        (folder / "cases.toml").write_text(SCENARIO, encoding="utf-8")
        clone = cloned(folder / "clone")
        for number in range(arguments.runs):
            for case in arguments.cases:
                started = time.monotonic()
                code, line, slower = gated(clone, folder / f"{case}-{number}", case, arguments.budget)
                is_right = code == (EXIT_OK if case == "nothing" else EXIT_REGRESSION)
                wrong += not is_right
                words = f"{case} load {arguments.load}: exit code {code}, {time.monotonic() - started:.0f} s"
                names = ", ".join(slower) or "none"
                print(
                    f"{'as expected' if is_right else 'WRONG'}: {words}; slower: {names}; {line}", flush=True
                )
    return int(wrong > 0)


def cloned(folder: Path) -> Path:
    """Clone this checkout, with the package as it is in the working tree; return the clone."""
    git = ("git", "-C", str(folder), "-c", "user.name=gate", "-c", "user.email=gate@localhost")
    subprocess.run(["git", "clone", "--quiet", "--local", str(ROOT), str(folder)], check=True)
    shutil.rmtree(folder / "storebench")
    shutil.copytree(ROOT / "storebench", folder / "storebench")
    subprocess.run([*git, "add", "--all"], check=True)
    subprocess.run([*git, "commit", "--quiet", "--allow-empty", "--message", "The package"], check=True)
    return folder


def gated(clone: Path, out: Path, case: str, budget: str) -> tuple[int, str, list[str]]:
    """Plant a case, run the gate, and take the case out; return the exit code, a line, and the cells called slower."""
    for file, text in (change for part in case.split("+") for change in CASES[part]):
        with (clone / file).open("a", encoding="utf-8") as source:
            source.write(text)
    try:
        program = (sys.executable, "-m", "storebench")
        words = ("--against", "HEAD", "--budget", budget, "--out", str(out))
        stores = ("--stores", str(out.parent / "stores"))
        bench = [*program, "bench", str(out.parent / "cases.toml"), *words, *stores]
        ran = subprocess.run(bench, cwd=clone, check=False, capture_output=True, text=True)
        if ran.returncode:
            return ran.returncode, ran.stderr.strip().splitlines()[-1], []
        check = [*program, "check", "--json", str(out / "baseline"), str(out / "contender")]
        checked = subprocess.run(check, cwd=clone, check=False, capture_output=True, text=True)
        rounds = next((line for line in ran.stderr.splitlines() if " took " in line), "")
        told = json.loads(checked.stdout)
        slower = [cell["name"] for cell in told["cells"] if cell["state"] == CellState.WORSE]
        return checked.returncode, f"{told['outcome']['line']} ({rounds.partition(';')[0]})", slower
    finally:
        subprocess.run(["git", "-C", str(clone), "checkout", "--quiet", "."], check=True)


@contextlib.contextmanager
def busy(processes: int) -> Iterator[None]:
    """Keep so many processes busy, each in a session of its own: the scheduler shares time between sessions."""
    command = [sys.executable, "-c", "while True: sum(range(100_000))"]
    running = [subprocess.Popen(command, start_new_session=True) for _ in range(processes)]
    try:
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


if __name__ == "__main__":
    sys.exit(main())
