"""What is wrong with the samples that a loader served."""

import collections
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd

from storebench.arrays import Integers, randomness
from storebench.auditing.audit_report import AuditReport, Fault, FaultKind, Finding, Row
from storebench.auditing.log import Epoch, LoaderLog
from storebench.auditing.samples import DROPPED, NO_LABEL
from storebench.units import number_of

# A shuffle is poor if a batch has fewer than this share of the classes that chance gives.
_POOR_CLASSES = 0.5

# Contents may be equal in a few samples of a sound dataset, and two epochs of a stream may share a few.
_FEW = 0.01

_EXAMPLES = 3


class Served:
    """All that the ranks of one loader served, by epoch; `trains` is whether any loop of theirs differentiates."""

    def __init__(self, logs: Sequence[LoaderLog], *, trains: bool) -> None:
        self.facts, self.has_key = logs[0].facts, logs[0].key is not None
        self.keys = {number: key for log in logs for number, key in log.keys.items()}
        # Of each epoch, those of the ranks.
        self.epochs = list(zip(*(log.seen for log in logs), strict=False))
        self.parts = list(itertools.chain.from_iterable(self.epochs))
        self.whole = [at for at, parts in enumerate(self.epochs) if all(part.is_whole for part in parts)]
        made = pd.concat(
            _table(part).assign(rank=rank, epoch=at)
            for at, parts in enumerate(self.epochs)
            for rank, part in enumerate(parts)
        )
        self.dropped = np.unique(made.number[made.label == DROPPED])
        self.samples = made[made.label != DROPPED]
        self.tables = [table for _, table in self.samples.groupby("epoch")]
        self.sets = [np.unique(table.number) for table in self.tables]
        self.uses_random = any(part.drawn for part in self.parts)
        # Whether samples are known by index or key, not by a digest of their content.
        self.is_exact = self.facts.is_map or self.has_key or bool(self.keys)
        differentiates = any(part.differentiates for part in self.parts)
        self.validates = not differentiates and (trains or all(part.evaluates for part in self.parts))
        self.meant = {*["validation"] * self.validates, *["replacement"] * self.facts.replaces}

    @property
    def is_hidden(self) -> bool:
        """Whether random augmentation makes each serving of a sample look like another sample."""
        again = self.samples.number.duplicated().mean()
        return not self.is_exact and again < _FEW and (len(self.whole) > 1 or self.uses_random)

    @property
    def differ(self) -> bool | None:
        """Whether epochs 0 and 1 differ in their order; None if there is one epoch, or their samples are hidden."""
        if len(self.epochs) < 2 or self.is_hidden:
            return None
        pairs = [(one.order, other.order) for one, other in zip(*self.epochs[:2], strict=True)]
        return not all(
            len(one) > 1 < len(other) and np.array_equal(one[: len(other)], other[: len(one)])
            for one, other in pairs
        )

    def in_several(self, table: pd.DataFrame, column: str) -> Integers:
        """Return the samples with more than one rank, worker or label; none if they may be others of equal content."""
        pairs = table.drop_duplicates(["number", column])
        shared = np.unique(pairs.number[pairs.number.duplicated()])
        enough = 0 if self.is_exact else pairs.groupby(column).size().min() / 2
        return shared if len(shared) > enough else shared[:0]

    def named(self, numbers: Integers) -> str:
        """Return the number of samples in words, with examples by key or index where they are known."""
        names = [self.keys.get(int(number), str(number)) for number in numbers[:_EXAMPLES]]
        examples = f" ({', '.join(names)}{', ...' if len(numbers) > _EXAMPLES else ''})"
        return number_of(len(numbers), "sample") + (examples if self.is_exact else "")

    def faults(self, kind: FaultKind, numbers: Integers, text: str) -> list[Fault]:
        return [Fault(kind, f"{self.named(numbers)} {text}")] if len(numbers) else []


def _table(part: Epoch) -> pd.DataFrame:
    """Return one row per sample, in the order in which they came."""
    batch = np.repeat(np.arange(len(part.sizes), dtype=np.int32), part.sizes)
    labels, workers = (np.frombuffer(values, np.int32) for values in (part.labels, part.workers))
    return pd.DataFrame({"number": part.order, "label": labels, "batch": batch, "worker": workers[batch]})


def _coverage(served: Served) -> Iterator[Finding]:
    facts, parts, came = served.facts, served.epochs[0], len(served.tables[0])
    count = None if facts.members is None else len(facts.members)
    for epoch, (table, numbers) in enumerate(zip(served.tables, served.sets, strict=True)):
        again = len(table) - len(numbers)
        is_padding = facts.is_map and again < len(parts)
        words = [
            f"epoch {epoch}: {len(table):,} served",
            f"{len(numbers):,} different" + ("" if count is None else f" of {count:,}"),
            (f"{again:,} again" + " to give all ranks as many" * is_padding) * (again > 0),
            f"by {len(parts)} ranks" * (len(parts) > 1),
            "the loop stopped early" * (epoch not in served.whole),
        ]
        yield Row("coverage", ", ".join(filter(None, words)))
    why = "are None, and the collate function leaves them out"
    yield from served.faults(FaultKind.DROPPED, served.dropped, why)
    may_lack = facts.drops_last * sum(len(set(part.workers)) for part in parts) * max(parts[0].sizes)
    is_short = not facts.is_map and not facts.replaces and came + may_lack < (count or 0)
    if is_short and 0 in served.whole and not len(served.dropped):
        yield Fault(FaultKind.DROPPED, f"the dataset says it has {count:,}, and {came:,} came")
    are_equal = len(served.sets) > 1 and all(np.array_equal(each, served.sets[0]) for each in served.sets)
    if not are_equal or served.is_hidden:
        return
    if facts.is_map and not served.has_key and facts.members is not None:
        missing = np.setdiff1d(facts.members, np.union1d(served.sets[0], served.dropped))
        why = "drop_last" if facts.drops_last and 0 in served.whole else "the loop stops early"
        yield from served.faults(FaultKind.NEVER_SERVED, missing, f"are left out of every epoch: {why}")
    elif not served.whole and len(served.sets[0]) == came:
        yield Fault(FaultKind.NEVER_SERVED, f"every epoch stops after the same {number_of(came, 'sample')}")


def _repeats(served: Served) -> Iterator[Finding]:
    """Find samples that come from several ranks, from several workers, or twice from one process."""
    facts, parts, table, is_whole = served.facts, served.epochs[0], served.tables[0], 0 in served.whole
    both = served.in_several(table, "rank")
    # Samplers repeat up to a batch per rank to give all ranks as many.
    if len(both) > len(parts) * max(max(part.sizes) for part in parts):
        text = f"come from more than one of {len(parts)} ranks"
        yield from served.faults(FaultKind.RANKS_OVERLAP, both, text)
    sizes = [len(part.sizes) for part in parts]
    if is_whole and len(set(sizes)) > 1:
        text = f"{min(sizes):,} to {max(sizes):,} batches per epoch: some wait forever for the others"
        yield Fault(FaultKind.RANKS_DIFFER, text)
    again = table.number[table.duplicated(["rank", "number", *["worker"] * (not facts.is_map)])]
    twice = np.unique(again)
    if not is_whole or facts.replaces:
        twice = twice[:0]
    if facts.is_map:
        is_drawn_once = facts.members is not None and len(parts[0].order) <= len(facts.members)
        if served.has_key and is_drawn_once:
            yield from served.faults(FaultKind.REPEATED, twice, "come for more than one index in epoch 0")
        elif len(twice) and facts.is_shuffled is None:
            means = "sound if it means to; then give it an attribute `replacement = True`"
            yield f"the sampler draws {served.named(twice)} twice or more: {means}"
        return
    both = served.in_several(table[table["rank"] == 0], "worker")
    text = f"come from more than one of {len(set(parts[0].workers))} workers"
    yield from served.faults(FaultKind.WORKERS_REPEAT, both, text)
    if len(both):
        return
    if len(twice) > (0 if served.is_exact else len(served.sets[0]) / 2):
        text = "come twice or more from one process in epoch 0"
        yield from served.faults(FaultKind.REPEATED, twice, text)
    elif len(twice) and len(again) > _FEW * len(table):
        remedy = "if they are others, name a key (key=, --key FIELD)"
        yield f"{number_of(len(again), 'sample')} have the content of others: {remedy}"


def _order(served: Served) -> Iterator[Finding]:
    order, is_shuffled = served.epochs[0][0].order, served.facts.is_shuffled
    if served.facts.is_map and len(order) > 1:
        displacement, neighbours = randomness(np.argsort(np.argsort(order, kind="stable")))
        yield Row("order", f"{displacement:.2f} of a uniform shuffle, {neighbours:.0%} of neighbours kept")
    told = "one epoch was seen" if len(served.epochs) < 2 else "not known which sample is which"
    words = {True: "0 and 1 differ", False: "0 and 1 have the same order", None: told}
    yield Row("epochs", words[served.differ])
    if is_shuffled and served.differ is False:
        yield Fault(FaultKind.SAME_ORDER, "epochs 0 and 1 are alike, although the loader shuffles")
    elif is_shuffled and len(served.epochs) < 2 and not served.validates:
        yield "one epoch was seen of a loader that shuffles: let it run for two, which should differ"


def _classes(served: Served) -> Iterator[Finding]:
    """Find how well epoch 0 mixes its labels, beside chance; samplers may group classes on purpose."""
    mine = served.tables[0][served.tables[0]["rank"] == 0]
    shares = mine.label.value_counts(normalize=True)
    if len(shares) < 2 or NO_LABEL in shares:
        return
    batches = mine.groupby("batch").label
    batch, classes = int(batches.size().median()), batches.nunique().mean()
    expected = (1 - (1 - shares) ** batch).sum()
    run, chance = len(mine) / np.count_nonzero(mine.label.diff()), 1 / (1 - (shares**2).sum())
    words = f"a batch of {batch} has {classes:.1f} classes, {expected:.1f} expected"
    yield Row("classes", f"{words}; runs of one label {run:.1f}, {chance:.1f} expected")
    shuffles = served.facts.is_shuffled or (not served.facts.is_map and served.differ)
    if shuffles and classes < _POOR_CLASSES * expected:
        yield Fault(FaultKind.CLUSTERED, words)


def _random_numbers(served: Served) -> Iterator[Finding]:
    """Find generators that workers or epochs share; those of a stream may be, so that all workers shuffle alike."""
    if served.facts.is_shuffled is False or not served.facts.is_map:
        return
    alike = collections.defaultdict[tuple[Any, ...], set[int]](set)
    for rank, part in enumerate(served.epochs[0]):
        for (name, number, worker), state in part.drawn.items():
            alike[name, number, state, rank].add(worker)
    shared = {name: workers for (name, *_), workers in alike.items() if len(workers) > 1}
    if shared:
        workers = ", ".join(map(str, sorted(set().union(*shared.values()))))
        text = f"{', '.join(sorted(shared))} in workers {workers}: their augmentations are equal"
        yield Fault(FaultKind.EQUAL_RANDOM, text)
    pairs = [pair for epochs in itertools.pairwise(served.epochs) for pair in zip(*epochs, strict=True)]
    again = {name for one, other in pairs for (name, *_), _ in one.drawn.items() & other.drawn.items()}
    if names := again - shared.keys():
        text = f"{', '.join(sorted(names))}: each sample is augmented as before"
        yield Fault(FaultKind.REPEATED_RANDOM, text)


def _contents(served: Served) -> Iterator[Finding]:
    """Find batches and labels that change; samples of equal content may have their own labels."""
    if count := sum(part.overwritten for part in served.parts):
        yield Fault(FaultKind.OVERWRITTEN, f"{count:,} batches changed while the next was fetched")
    if served.is_hidden:
        yield "random augmentation hides which sample is which: name a key (key=, --key FIELD)"
    changing = served.in_several(served.samples[served.samples.label != NO_LABEL], "label")
    if served.is_exact and served.uses_random and len(changing):
        yield f"the labels of {served.named(changing)} change: sound if drawn, and no other samples in their place"
    elif served.is_exact:
        yield from served.faults(FaultKind.LABELS_CHANGE, changing, "have more than one label")


def reports_of(ranks: Sequence[Sequence[LoaderLog]], first: list[Any] | None = None) -> list[AuditReport]:
    """Return the report on each loader of a script, of the logs of its ranks, and of what the first start told."""
    # A loader is the same line, as often as it was reached, in every rank that has it.
    loaders = collections.defaultdict[tuple[str, int], list[LoaderLog]](list)
    for logs in ranks:
        reached = collections.Counter[str]()
        for log in logs:
            loaders[log.facts.name, reached[log.facts.name]].append(log)
            reached[log.facts.name] += 1
    trains = any(epoch.differentiates for logs in ranks for log in logs for epoch in log.seen)
    starts = itertools.chain(first or [], itertools.repeat([]))
    return [
        report_of(logs, *([] if first is None else [compared(start, logs[0].told())]), trains=trains)
        for logs, start in zip(loaders.values(), starts, strict=False)
    ]


def compared(first: list[Any], second: list[Any]) -> Finding:
    """Compare what `LoaderLog.told` says of two starts with one seed."""
    if first == second:
        return Row("repeat", "two starts serve the same samples in the same order")
    if [order for order, _ in first] == [order for order, _ in second]:
        return Fault(FaultKind.STARTS_DIFFER, "with one seed, the same samples are augmented differently")
    return Fault(FaultKind.STARTS_DIFFER, "with one seed, other samples come, or in another order")


def report_of(logs: Sequence[LoaderLog], *trials: Finding, trains: bool = False) -> AuditReport:
    """Return the report on a loader, of the logs of its ranks and of trials of it."""
    name, findings, meant = logs[0].facts.name, list(trials), set[str]()
    if all(log.seen for log in logs):
        served = Served(logs, trains=trains)
        checks = _coverage, _repeats, _order, _classes, _random_numbers, _contents
        findings[:0] = itertools.chain.from_iterable(check(served) for check in checks)
        meant = served.meant
    else:
        findings.append("no batch was served")
    if any(log.is_blind for log in logs):
        findings.append("some batches were made before the audit began, or other than by torch's fetchers")
    return AuditReport(
        name,
        tuple(
            found for found in findings if isinstance(found, Fault) and meant.isdisjoint(found.kind.meant_by)
        ),
        tuple(found for found in findings if isinstance(found, str)),
        tuple(found for found in findings if isinstance(found, Row)),
    )
