"""Audit the torch DataLoaders that a script iterates: ``storebench audit``."""

import contextlib
import fcntl
import json
import os
import pickle
import tempfile
from collections import Counter
from pathlib import Path

from storebench.auditing.audit_report import report_of
from storebench.auditing.checks import Served
from storebench.auditing.epochs import LoaderLog
from storebench.auditing.watching import watch
from storebench.errors import EXIT_INCONCLUSIVE, UsageError
from storebench.profiling.guard import say
from storebench.profiling.script import Watcher, options, run_script
from storebench.system.whole_files import write_whole

_NOTHING_SEEN = (
    "storebench audit: cannot be told: this process iterated no torch DataLoader. Audit another loader by"
    " storebench.audit(loader)"
)


class _Auditor(Watcher):
    hooks = "storebench.auditing.torch_hooks"

    def __init__(self, key: str | None) -> None:
        self._key = key

    def begin(self) -> None:
        watch.key, watch.is_on = self._key, True

    def has_seen(self) -> bool:
        return bool(watch.here())

    def write(self, out: str | None) -> int:
        ranks = [watch.here()]
        if (count := int(os.environ.get("LOCAL_WORLD_SIZE", "1"))) > 1:
            ranks = _logs_of_ranks(ranks[0])
            if len(ranks) < count:
                return 0  # the last one reports
        reports = [report_of(Served(logs)) for logs in _by_loader(ranks)]
        if not reports:
            say(_NOTHING_SEEN)
            return EXIT_INCONCLUSIVE
        for report in reports:
            say(str(report))
        if out is not None:
            Path(out).mkdir(parents=True, exist_ok=True)
            write_whole(
                Path(out, "audit.json"), json.dumps([report.as_dict() for report in reports], indent=1)
            )
        codes = {report.exit_code for report in reports}
        return 1 if 1 in codes else max(codes)


def _by_loader(ranks: list[list[LoaderLog]]) -> list[list[LoaderLog]]:
    """Put the logs of each loader together: the same line, as often as it was reached, in every rank that has it."""
    groups: dict[tuple[str, int], list[LoaderLog]] = {}
    for logs in ranks:
        reached = Counter[str]()
        for log in logs:
            groups.setdefault((log.facts.name, reached[log.facts.name]), []).append(log)
            reached[log.facts.name] += 1
    return list(groups.values())


def _logs_of_ranks(logs: list[LoaderLog]) -> list[list[LoaderLog]]:
    """Put this rank's logs beside those of the node's other ranks, and return all that are there."""
    # All ranks were started by one process.
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    path = Path(tempfile.gettempdir(), f"storebench-audit-{os.getuid()}-{os.getppid()}-{attempt}.pickle")
    with path.open("a+b") as file:
        if os.fstat(file.fileno()).st_uid != os.getuid():
            raise UsageError(
                "this file is another user's", where=str(path), hint="Set TMPDIR to a folder of your own."
            )
        fcntl.flock(file, fcntl.LOCK_EX)
        pickle.dump(logs, file)
        file.flush()
        file.seek(0)
        ranks = list[list[LoaderLog]]()
        with contextlib.suppress(EOFError):
            while True:
                ranks.append(pickle.load(file))  # noqa: S301 - of this user's own ranks
        if len(ranks) == int(os.environ["LOCAL_WORLD_SIZE"]):
            path.unlink()
    return ranks


def main() -> None:
    run_script(_Auditor(options().key))
