"""Audit the torch DataLoaders that a script iterates: ``storebench audit``."""

import functools
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from storebench.errors import EXIT_INCONCLUSIVE
from storebench.profiling.guard import say
from storebench.profiling.rank_exchange import gather, rank_count
from storebench.profiling.script import ScriptOptions, Watcher, options, run_script
from storebench.profiling.watch import watchers
from storebench.system.whole_files import write_whole

if TYPE_CHECKING:
    from storebench.auditing.log import LoaderLog, Logs

_NOTHING_SEEN = (
    "storebench audit: cannot be told: this process iterated no torch DataLoader. Audit another loader,"
    " such as storebench.Loader, by storebench.audit(loader)"
)


class _Auditor(Watcher):
    hooks: ClassVar = {"torch.utils.data": "storebench.profiling.torch_loaders"}

    def __init__(self, asked: ScriptOptions) -> None:
        self._key, self._starts = asked.key, asked.starts

    @functools.cached_property
    def _logs(self) -> "Logs":
        from storebench.auditing.log import (
            Logs,
        )  # imports numpy: any earlier, it would miss the script's settings

        return Logs(self._key)

    def begin(self) -> None:
        watchers.append(self._log_of)

    def _log_of(self, loader: Any) -> "LoaderLog":
        return self._logs.log_of(loader)

    def has_seen(self) -> bool:
        return bool(self._logs.here())

    def write(self, out: str | None) -> int:
        from storebench.auditing.checks import reports_of  # as above

        ranks, first = [self._logs.here()], None
        if self._starts is not None:
            with os.fdopen(self._starts, "r+") as file:
                first = json.loads(file.read() or "null")
                if first is None:
                    json.dump([log.told() for log in ranks[0]], file)
                    return 0  # the second start reports
        if rank_count() > 1 and not (ranks := gather("audit", ranks[0])):
            return 0
        reports = reports_of(ranks, first)
        if not reports:
            say(_NOTHING_SEEN)
            return EXIT_INCONCLUSIVE
        for report in reports:
            say(str(report))
        if out is not None:
            Path(out).mkdir(parents=True, exist_ok=True)
            facts = json.dumps([report.as_dict() for report in reports], indent=1)
            write_whole(Path(out, "audit.json"), facts)
        codes = {report.exit_code for report in reports}
        return 1 if 1 in codes else max(codes)


def main() -> None:
    run_script(_Auditor(options()))
