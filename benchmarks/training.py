"""Does the epoch get shorter as the spans predict when the reader gets faster? ``python -m benchmarks.training``.

The prediction for training from ``lmdb:direct`` uses no figure of that training itself:

- C: the compute, and copying to the device, of the same epoch fed by LMDB without readahead. Plain LMDB's
  read-ahead might take processor time from the network; the script prints how much longer the network computes.
- W: the warm time of the direct reader with nothing to compute. The loop copies its batches in its own thread.
- R: its cold time with nothing to compute. Reading ahead continues while the network computes.

The epoch should take max(C + W, R). The script prints measured over predicted time, paired by round, with a 95% interval,
and how much shorter the epoch is than from LMDB.

    python -m benchmarks.training [--run FOLDER] [--replicates N] [--stores FOLDER]
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.runs import records_asked_for
from storebench.results import Record, Status
from storebench.stats import Comparison, compare

SCENARIO = Path(__file__).parents[1] / "scenarios" / "training.toml"
OFF_FRAC = 0.10
PLAIN, SLOW, DIRECT = "lmdb", "lmdb?readahead=off", "lmdb:direct"

Rounds = dict[int, Record]


def rounds(records: Sequence[Record], **wanted: object) -> Rounds:
    """Return the usable records of one cell by round."""
    return {
        record.replicate: record
        for record in records
        if record.status is Status.OK and wanted.items() <= record.cell.fields().items()
    }


def predicted_s(slow: Record, warm: Record, cold: Record) -> float:
    """Return the seconds that the epoch from the direct reader should take."""
    return max(slow.compute_s + slow.h2d_s + warm.timed_s, cold.timed_s)


def held_against(records: Sequence[Record], dataset: str) -> dict[str, Comparison]:
    """Return measured over predicted time, and time over that from LMDB, for one dataset."""
    of = {"dataset": dataset}
    plain, slow, direct = (
        rounds(records, backend=name, compute="real", **of) for name in (PLAIN, SLOW, DIRECT)
    )
    cold, warm = (
        rounds(records, backend=DIRECT, compute="none", cache=cache, **of) for cache in ("cold", "warm")
    )
    shared = sorted(plain.keys() & slow.keys() & direct.keys() & cold.keys() & warm.keys())
    measured = [direct[number].timed_s for number in shared]
    predictions = [predicted_s(slow[number], warm[number], cold[number]) for number in shared]
    return {
        "measured over predicted": compare(predictions, measured),
        f"of the epoch from {PLAIN}": compare([plain[number].timed_s for number in shared], measured),
        f"of the epoch from {SLOW}": compare([slow[number].timed_s for number in shared], measured),
        f"compute while {PLAIN} reads ahead, over compute beside {SLOW}": compare(
            [slow[number].compute_s for number in shared], [plain[number].compute_s for number in shared]
        ),
    }


def main() -> int:
    """Run the scenario, or read a run, and print one block per dataset."""
    records = records_asked_for(SCENARIO.read_text(encoding="utf-8"), __doc__)
    missed = 0
    for dataset in sorted({record.cell.data.name for record in records}):
        print(f"\n{dataset}")
        for words, compared in held_against(records, dataset).items():
            print(
                f"  {words}: {compared.ratio:.3f} [{compared.low:.3f}, {compared.high:.3f}], {compared.rounds} rounds"
            )
            missed += words.startswith("measured") and abs(compared.ratio - 1) > OFF_FRAC
    print(f"\n{missed} predictions are off by more than {OFF_FRAC:.0%}")
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
