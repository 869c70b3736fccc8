"""What must hold after a fault, whatever it was: each function returns what does not, one line each.

Stores, runs and outputs are judged by storebench's own readers, which are tested elsewhere; how a command ended is
judged by its exit code and its lines.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

from storebench.errors import EXIT_INTEGRITY, EXIT_INTERRUPTED, EXIT_USAGE, DataNotFoundError, StorebenchError
from storebench.record.lines import RECORDS_NAME, STEPS_DIR, read_records
from storebench.record.schema import Status
from storebench.stores.verify import verify_store
from tests.faults.engine import DEADLY, SIGNALS, Ending, Fault
from tests.support.findings import validate

KILLED = -9
LEFTOVER = re.compile(r"\.tmp(?:-|\.|$)|\.lock$|^\.?storebench-|^pymp-|^\.convert-")

ENDS = {".html": b"</html>", ".svg": b"</svg>"}
"""How a whole file of each kind ends; others are known but for their figures."""

NOISE = re.compile(r"Traceback|Exception ignored|Warning:|leaked|core dumped")


def ending_problems(ending: Ending, fault: Fault, *, normal: int, complete: Iterable[str]) -> list[str]:
    """Return what is wrong with how a command ended at which `fault` happened."""
    if ending.code is None:
        return ["it hangs"]
    found = [f"it left the process {name!r}" for name in ending.orphans]
    found += [f"standard error has {line!r}" for line in ending.stderr.splitlines() if NOISE.search(line)]
    if ending.code == KILLED:
        if fault.kind in DEADLY and (ending.in_main or fault.kind == "power"):
            return found
        return [*found, "it was killed, but not by the fault"]
    if ending.code == normal:
        return [*found, *(f"exit code {normal}, but {problem}" for problem in complete)]
    allowed = _codes(fault, ending)
    if ending.code not in allowed:
        found.append(
            f"exit code {ending.code}, not {' or '.join(map(str, sorted(allowed)))}: {_last(ending)!r}"
        )
    return found + _line_problems(ending, fault)


def _codes(fault: Fault, ending: Ending) -> set[int]:
    """Return the exit codes that a fault may lead to."""
    if fault.kind in DEADLY:
        return {EXIT_INTEGRITY} if not ending.in_main else set()
    if fault.kind in SIGNALS:
        return {EXIT_INTERRUPTED}
    return {EXIT_INTEGRITY} if fault.kind == "full" else {EXIT_USAGE, EXIT_INTEGRITY}


def _line_problems(ending: Ending, fault: Fault) -> list[str]:
    """Return what is wrong with the one line in which a command says why it ended."""
    lines = [line for line in ending.stderr.splitlines() if line.startswith("storebench: ")]
    if len(lines) != 1 or lines[0] != _last(ending):
        return [f"{len(lines)} lines say why it ended, the last is {_last(ending)!r}"]
    found = [f"its line names a temporary file: {lines[0]!r}"] if LEFTOVER.search(_names(lines[0])) else []
    if fault.kind not in ("full", "eio", "read"):
        return found
    if "/" not in lines[0] and not re.search(r"\w\.(json|jsonl|toml|xml|md|html)\b", lines[0]):
        found.append(f"its line names no file: {lines[0]!r}")
    if fault.kind == "full" and "full" not in lines[0]:
        found.append(f"its line does not say that the disk is full: {lines[0]!r}")
    return found


def _names(line: str) -> str:
    """Return the last parts of all paths in a line, in lines of their own."""
    return "\n".join(word.rstrip(":;,.'\"").rpartition("/")[2] for word in line.split())


def _last(ending: Ending) -> str:
    lines = ending.stderr.splitlines()
    return lines[-1] if lines else ""


def recovery_problems(ending: Ending, *, normal: int) -> list[str]:
    """Return what is wrong with how a command ended that was run again, without a fault."""
    if ending.code != normal:
        return [f"run again, it ends with {ending.code}: {_last(ending)!r}"]
    return [f"run again, it left the process {name!r}" for name in ending.orphans] + [
        f"run again, standard error has {line!r}" for line in ending.stderr.splitlines() if NOISE.search(line)
    ]


def leftovers(work: Path, segments: Iterable[Path] = ()) -> list[str]:
    """Return what a command left behind: temporary files and folders, locks, segments of shared memory."""
    found = [
        f"left behind: {path.relative_to(work)}"
        for path in sorted(work.rglob("*"))
        if LEFTOVER.search(path.name) or path.parent == work / "tmp"
    ]
    return [*found, *(f"left behind: {path}" for path in segments if path.exists())]


def store_problems(store: Path, *, absent: bool = False) -> list[str]:
    """Return why the store is not whole; `absent` says that there may be none."""
    if not store.exists():
        return [] if absent else [f"{store.name} is not there"]
    try:
        verify_store(store)
    except StorebenchError as error:
        return [f"{store.name} is not whole: {error}"]
    return []


def run_problems(run: Path) -> list[str]:
    """Return what is wrong with the folder of a run that may have been interrupted at any point."""
    found = _broken_lines(run / RECORDS_NAME)
    try:
        return [*found, *(f"validate: {finding}" for finding in validate(run))]
    except DataNotFoundError:
        return found  # nothing is recorded yet
    except StorebenchError as error:
        return [*found, f"validate: {error}"]


def _broken_lines(path: Path) -> list[str]:
    """Return the lines before the last that are no whole JSON."""
    if not path.exists():
        return []
    *lines, _ = path.read_bytes().split(b"\n")
    return [
        f"line {number} of {path.name} is not whole"
        for number, line in enumerate(lines, 1)
        if not _is_json(line)
    ]


def _is_json(text: bytes) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def complete_run_problems(run: Path, replicates: int, epochs: int) -> list[str]:
    """Return what a run of one cell lacks: each epoch once, all sound, all step tables, none besides."""
    try:
        records = read_records(run)
    except StorebenchError as error:
        return [str(error)]
    seen = Counter((record.replicate, record.epoch) for record in records)
    wanted = Counter((replicate, epoch) for replicate in range(replicates) for epoch in range(epochs))
    found = [] if seen == wanted else [f"recorded (replicate, epoch): {sorted(seen.elements())}"]
    found += [f"failed: {record.failure}" for record in records if record.status is not Status.OK]
    tables = {f"{STEPS_DIR}/{path.name}" for path in (run / STEPS_DIR).iterdir()}
    found += [f"{record.steps_file} is not there" for record in records if record.steps_file not in tables]
    text = "".join(path.read_text(errors="replace") for path in run.glob("*.jsonl"))
    found += [f"no record names {name}" for name in sorted(tables) if name not in text]
    return [*found, *(f"validate: {finding}" for finding in validate(run))]


def failures_name_a_file(run: Path) -> list[str]:
    """Return the failed records of a run whose reason names no file."""
    try:
        records = read_records(run)
    except StorebenchError:
        return []
    failed = [str(record.failure) for record in records if record.status is not Status.OK]
    return [f"a failed record names no file: {failure!r}" for failure in failed if "/" not in failure]


def file_problems(folder: Path, known: Mapping[str, list[bytes]]) -> list[str]:
    """Return the files of `folder` that are not whole."""
    return [
        f"{path.relative_to(folder.parent)} is not whole ({path.stat().st_size} bytes)"
        for path in sorted(folder.rglob("*"))
        if path.is_file()
        and not any(map(LEFTOVER.search, path.relative_to(folder).parts))
        and not is_whole(path, known.get(str(path.relative_to(folder)), []))
    ]


def is_whole(path: Path, known: Iterable[bytes] = ()) -> bool:
    """Return whether a file is whole: it ends as its kind does, or is as long and as structured as a known one."""
    content = path.read_bytes()
    if path.suffix in ENDS:
        return content.rstrip().endswith(ENDS[path.suffix])
    return any(_without_digits(content) == _without_digits(text) for text in known)


def _without_digits(content: bytes) -> bytes:
    return re.sub(rb"[\d.,:]+", b"0", content)
