"""Profile the torch DataLoaders that a script iterates: ``storebench profile``."""

import dataclasses
import json
import os
import statistics
from pathlib import Path
from typing import ClassVar

from storebench.profiling.guard import say
from storebench.profiling.loops import loops
from storebench.profiling.profile_report import ProfileReport
from storebench.profiling.rank_exchange import gather, rank_count
from storebench.profiling.recorder import Recorder
from storebench.profiling.script import Watcher, run_script
from storebench.profiling.verdict import LEAST_GAIN
from storebench.settings.words import Limit
from storebench.system.whole_files import write_whole

_NOTHING_SEEN = (
    "storebench profile: this process iterated no torch DataLoader; those that it started other than by fork were not"
    " seen: wrap the loader there, storebench.profile(loader), or start them by"
    " torchrun --nproc-per-node N -m storebench profile SCRIPT"
)


class _Profiler(Watcher):
    hooks: ClassVar = {
        "torch.utils.data": "storebench.profiling.torch_loaders",
        "storebench.loading.torch_loader": "storebench.profiling.store_loader",
    }

    def begin(self) -> None:
        loops.begin_script()

    def has_seen(self) -> bool:
        return bool(loops.here())

    def write(self, out: str | None) -> int:
        report, recorder = loops.verdict() or (ProfileReport(bound=Limit.UNKNOWN), Recorder())
        if rank_count() > 1:
            _conclude_ranks(report)
            out = out and f"{out}/rank{os.environ['RANK']}"
        elif not recorder.epochs:
            say(_NOTHING_SEEN)
            return 0
        else:
            say(str(report))
        if out is not None:
            Path(out).mkdir(parents=True, exist_ok=True)
            facts = {**dataclasses.asdict(report), "bound": str(report.bound), "text": str(report)}
            write_whole(Path(out, "profile.json"), json.dumps(facts, indent=1))
        return 0


def main() -> None:
    run_script(_Profiler())


def _conclude_ranks(report: ProfileReport) -> None:
    """Write this rank's times, and put them beside those of the node's other ranks; the last one writes the verdict.

    It is the first rank's, or that of a rank whose longer waits the others wait for in each step.
    """
    number = int(os.environ["RANK"])
    times = f"{1e3 * report.step_s:,.2f} ms per step, waiting {1e3 * report.wait_s:,.2f} ms"
    say(f"storebench profile: rank {number}: {times}")
    ranks = gather("profile", (number, report.wait_s, report.step_s, str(report)))
    if not ranks:
        return
    slow, longest_s, step_s, verdict = max(ranks, key=lambda rank: rank[1])
    saved_s = longest_s - statistics.median(
        [wait_s for rank, wait_s, *_ in ranks if rank != slow] or [longest_s]
    )
    gain = step_s / max(step_s - saved_s, 1e-9)
    if gain < LEAST_GAIN:
        say(ranks[0][-1])
        return
    say(
        f"storebench profile: limited by a slow rank: rank {slow} waits {1e3 * saved_s:,.2f} ms longer per step\n"
        f"  if it waited like the others: {gain:.2f} times as fast (predicted); its own verdict:\n{verdict}"
    )
