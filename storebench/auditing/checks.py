"""What is wrong with the samples that a loader served."""

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from storebench.arrays import Integers, randomness
from storebench.auditing.audit_report import AuditReport, Fault, FaultKind, Finding, Row
from storebench.auditing.log import LoaderLog
from storebench.auditing.samples import NO_LABEL

# A shuffle is poor if a batch has fewer than this share of the classes that chance gives.
POOR_CLASSES = 0.5

# Contents may be equal in a few samples of a sound dataset, and two epochs of a stream may share a few.
_FEW = 0.01

_EXAMPLES = 3


def _shared(groups: Sequence[Integers]) -> Integers:
    """Return the samples that are in more than one group."""
    return _repeated(np.concatenate([np.unique(group) for group in groups]))


def _repeated(numbers: Integers) -> Integers:
    values, times = np.unique(numbers, return_counts=True)
    return values[times > 1]


class Served:
    """All that the ranks of one loader served, epoch by epoch."""

    def __init__(self, logs: Sequence[LoaderLog]) -> None:
        self.logs = sorted(logs, key=lambda log: log.facts.rank)
        self.facts = self.logs[0].facts
        self.keys = {number: key for log in self.logs for number, key in log.keys.items()}
        # Of each epoch, those of the ranks.
        self.epochs = list(zip(*(log.seen for log in self.logs), strict=False))
        self.parts = list(itertools.chain.from_iterable(self.epochs))
        self.whole = [
            number for number, parts in enumerate(self.epochs) if all(part.is_whole for part in parts)
        ]
        self.sets = [np.unique(np.concatenate([part.order for part in parts])) for parts in self.epochs]
        self.counts = [sum(len(part.order) for part in parts) for parts in self.epochs]
        # Whether samples are known by index or key, not by a digest of their content.
        self.is_exact = self.facts.is_map or self.logs[0].key is not None or bool(self.keys)
        self.uses_random = any(names for part in self.parts for names in part.used.values())

    @property
    def is_hidden(self) -> bool:
        """Whether random augmentation makes each serving of a sample look like another sample."""
        pairs = zip(self.sets, self.counts, strict=True)
        if self.is_exact or any(len(values) < (1 - _FEW) * count for values, count in pairs):
            return False
        if len(self.sets) > 1 and len(np.intersect1d(self.sets[0], self.sets[1])) >= _FEW * len(self.sets[0]):
            return False
        return len(self.whole) > 1 or self.uses_random

    @property
    def differ(self) -> bool | None:
        """Whether epochs 0 and 1 differ in their order; None if there is one epoch, or their samples are hidden."""
        if len(self.epochs) < 2 or self.is_hidden:
            return None
        pairs = [(one.order, other.order) for one, other in zip(*self.epochs[:2], strict=True)]
        equal = [
            len(one) > 1 < len(other) and np.array_equal(one[: len(other)], other[: len(one)])
            for one, other in pairs
        ]
        return not all(equal)

    @property
    def universe(self) -> Integers | None:
        """All samples that the loader has, as far as it tells."""
        if self.logs[0].key is not None or not self.facts.is_map:
            return None
        if self.facts.chosen is not None:
            return np.frombuffer(self.facts.chosen, np.int64)
        return None if self.facts.count is None else np.arange(self.facts.count)

    def named(self, numbers: Integers) -> str:
        """Return the number of samples in words, with examples by key or index where they are known."""
        names = [self.keys.get(int(number), str(number)) for number in numbers[:_EXAMPLES]]
        examples = f" ({', '.join(names)}{', ...' if len(numbers) > _EXAMPLES else ''})"
        return samples(len(numbers)) + (examples if self.is_exact else "")

    def are_many(self, numbers: Integers, groups: Sequence[Integers]) -> bool:
        """Whether samples are so many that no equal contents explain them: more than half of the least group."""
        return len(numbers) > (0 if self.is_exact else min(len(np.unique(group)) for group in groups) / 2)


def samples(count: int) -> str:
    return f"{count:,} sample{'s' * (count != 1)}"


def _coverage(served: Served) -> Iterator[Finding]:
    facts, universe, parts = served.facts, served.universe, served.epochs[0]
    count = facts.count if universe is None else len(universe)
    for epoch, (numbers, served_count) in enumerate(zip(served.sets, served.counts, strict=True)):
        again = served_count - len(numbers)
        is_padding = facts.is_map and again < facts.ranks
        words = [
            f"epoch {epoch}: {served_count:,} served",
            f"{len(numbers):,} different" + ("" if count is None else f" of {count:,}"),
            (f"{again:,} again" + " to give all ranks as many" * is_padding) * (again > 0),
            f"by {len(parts)} ranks" * (facts.ranks > 1),
            "the loop stopped early" * (epoch not in served.whole),
        ]
        yield Row("coverage", ", ".join(filter(None, words)))
    dropped = np.unique(np.array([number for part in served.parts for number in part.dropped], np.int64))
    may_lack = facts.drops_last * len(parts) * max(1, facts.workers) * max(parts[0].sizes)
    if len(dropped):
        yield Fault(
            FaultKind.DROPPED, f"{served.named(dropped)} are None, and the collate function leaves them out"
        )
    elif (
        not facts.is_map
        and not facts.replaces
        and 0 in served.whole
        and served.counts[0] + may_lack < (count or 0)
    ):
        yield Fault(FaultKind.DROPPED, f"the dataset says it has {count:,}, and {served.counts[0]:,} came")
    are_equal = len(served.sets) > 1 and all(
        np.array_equal(numbers, served.sets[0]) for numbers in served.sets
    )
    if not are_equal or served.is_hidden:
        return
    missing = np.setdiff1d([] if universe is None else universe, np.union1d(served.sets[0], dropped))
    if len(missing):
        why = "drop_last" if facts.drops_last and 0 in served.whole else "the loop stops early"
        yield Fault(FaultKind.NEVER_SERVED, f"every epoch leaves out the same {served.named(missing)}: {why}")
    elif universe is None and not served.whole and len(served.sets[0]) == served.counts[0]:
        yield Fault(FaultKind.NEVER_SERVED, f"every epoch stops after the same {samples(served.counts[0])}")


def _repeats(served: Served) -> Iterator[Finding]:
    """Find samples that come from several ranks, from several workers, or twice from one process."""
    facts, parts = served.facts, served.epochs[0]
    ranks, workers = [part.order for part in parts], [part.by_worker() for part in parts]
    both = _shared(ranks)
    # Samplers repeat up to a batch per rank to give all ranks as many.
    if len(both) > len(parts) * max(max(part.sizes) for part in parts) and served.are_many(both, ranks):
        yield Fault(
            FaultKind.RANKS_OVERLAP, f"{served.named(both)} come from more than one of {len(parts)} ranks"
        )
    sizes = [len(part.sizes) for part in parts]
    if 0 in served.whole and len(set(sizes)) > 1:
        text = f"{min(sizes):,} to {max(sizes):,} batches per epoch: some wait forever for the others"
        yield Fault(FaultKind.RANKS_DIFFER, text)
    twice = np.concatenate([_repeated(numbers) for numbers in itertools.chain(*workers)])
    if facts.is_map:
        drawn = np.concatenate([_repeated(numbers) for numbers in ranks])
        if len(drawn) and facts.is_shuffled is None and not facts.replaces and 0 in served.whole:
            means = "sound if it means to; then give it an attribute `replacement = True`"
            yield f"the sampler draws {served.named(drawn)} twice or more: {means}"
        return
    both = _shared(workers[0])
    if len(workers[0]) > 1 and served.are_many(both, workers[0]):
        text = f"{served.named(both)} come from more than one of {len(workers[0])} workers"
        yield Fault(FaultKind.WORKERS_REPEAT, text)
    elif 0 in served.whole and len(twice) and served.are_many(twice, [np.concatenate(ranks)]):
        yield Fault(
            FaultKind.REPEATED, f"{served.named(twice)} come twice or more from one process in epoch 0"
        )
    elif not served.is_exact and not facts.replaces and 0 in served.whole:
        alike = served.counts[0] - sum(len(np.unique(numbers)) for numbers in itertools.chain(*workers))
        if alike > _FEW * served.counts[0]:
            remedy = "if they are others, name a key (key=, --key FIELD)"
            yield f"{samples(alike)} have the content of others: {remedy}"


def _order(served: Served) -> Iterator[Finding]:
    order = served.epochs[0][0].order
    if served.facts.is_map and len(order) > 1:
        displacement, neighbours = randomness(np.argsort(np.argsort(order, kind="stable")))
        yield Row("order", f"{displacement:.2f} of a uniform shuffle, {neighbours:.0%} of neighbours kept")
    told = "one epoch was seen" if len(served.epochs) < 2 else "not known which sample is which"
    yield Row(
        "epochs", {True: "0 and 1 differ", False: "0 and 1 have the same order", None: told}[served.differ]
    )
    if served.facts.is_shuffled and served.differ is False:
        yield Fault(FaultKind.SAME_ORDER, "epochs 0 and 1 are alike, although the loader shuffles")


def _classes(served: Served) -> Iterator[Finding]:
    """Find how well epoch 0 mixes its labels, beside chance; samplers may group classes on purpose."""
    labels, sizes = np.array(served.epochs[0][0].labels, np.int64), np.array(served.epochs[0][0].sizes)
    kinds, labels, counts = np.unique(labels, return_inverse=True, return_counts=True)
    if len(kinds) < 2 or kinds[0] == NO_LABEL:
        return
    shares, batch = counts / len(labels), int(np.median(sizes))
    classes = len(np.unique(np.repeat(np.arange(len(sizes)), sizes) * len(kinds) + labels)) / len(sizes)
    expected = float((1 - (1 - shares) ** batch).sum())
    run, chance = len(labels) / (1 + np.count_nonzero(np.diff(labels))), 1 / (1 - (shares**2).sum())
    words = f"a batch of {batch} has {classes:.1f} classes, {expected:.1f} expected"
    yield Row("classes", f"{words}; runs of one label {run:.1f}, {chance:.1f} expected")
    shuffles = served.facts.is_shuffled or (not served.facts.is_map and served.differ)
    if shuffles and classes < POOR_CLASSES * expected:
        yield Fault(FaultKind.CLUSTERED, words)


def _random_numbers(served: Served) -> Iterator[Finding]:
    """Find generators that workers or epochs share; those of a stream may be, so that all workers shuffle alike."""
    if served.facts.is_shuffled is False or not served.facts.is_map:
        return
    shared = dict[str, set[int]]()
    for part in served.epochs[0]:
        for (one, states), (other, others) in itertools.combinations(part.states.items(), 2):
            for name in part.used[one] & part.used[other] & states.keys():
                if others.get(name) == states[name]:
                    shared.setdefault(name, set()).update((one, other))
    if shared:
        workers = ", ".join(map(str, sorted(set().union(*shared.values()))))
        text = f"{', '.join(sorted(shared))} in workers {workers}: their augmentations are equal"
        yield Fault(FaultKind.EQUAL_RANDOM, text)
    names = {
        name
        for parts in itertools.pairwise(served.epochs)
        for first, second in zip(*parts, strict=True)
        for worker, states in first.states.items()
        for name in (first.used[worker] & states.keys()) - shared.keys()
        if second.states.get(worker, {}).get(name) == states[name]
    }
    if names:
        yield Fault(
            FaultKind.REPEATED_RANDOM, f"{', '.join(sorted(names))}: each sample is augmented as before"
        )


def _contents(served: Served) -> Iterator[Finding]:
    """Find batches and labels that change; samples of equal content may have their own labels."""
    if count := sum(part.overwritten for part in served.parts):
        yield Fault(FaultKind.OVERWRITTEN, f"{count:,} batches changed while the next was fetched")
    if served.is_hidden:
        yield "random augmentation hides which sample is which: name a key (key=, --key FIELD)"
    if not served.is_exact:
        return
    numbers, labels = (
        np.concatenate([getattr(part, name) for part in served.parts]) for name in ("order", "labels")
    )
    by_number = np.argsort(numbers[labels != NO_LABEL], kind="stable")
    numbers, labels = (values[labels != NO_LABEL][by_number] for values in (numbers, labels))
    changing = np.unique(numbers[1:][(numbers[1:] == numbers[:-1]) & (labels[1:] != labels[:-1])])
    if len(changing) and served.uses_random:  # a rotation that was drawn, or another sample
        yield "labels change, and random numbers are used: sound if they are drawn"
    elif len(changing):
        yield Fault(FaultKind.LABELS_CHANGE, f"{served.named(changing)} with more than one label")


def starts_differ(first: list[Any], second: list[Any]) -> Iterator[Finding]:
    """Compare what `LoaderLog.told` says of two starts with one seed."""
    if first == second:
        yield Row("repeat", "two starts serve the same samples in the same order")
    elif [order for order, _ in first] == [order for order, _ in second]:
        yield Fault(FaultKind.STARTS_DIFFER, "with one seed, the same samples are augmented differently")
    else:
        yield Fault(FaultKind.STARTS_DIFFER, "with one seed, other samples come, or in another order")


def report_of(logs: Sequence[LoaderLog], *trials: Finding) -> AuditReport:
    """Return the report on a loader, of the logs of its ranks and of trials of it."""
    served, findings = Served(logs), list[Finding]()
    if any(log.is_blind for log in logs):
        findings.append(
            "some batches came without their samples: made before the audit began, or other than by torch's fetchers"
        )
    if not served.epochs:
        findings.append("no batch was served")
    is_validation = all(part.evaluates for part in served.parts)
    ways = {"validation": is_validation, "replacement": served.facts.replaces}
    for find in (_coverage, _repeats, _order, _classes, _random_numbers, _contents) if served.epochs else ():
        findings += [
            found
            for found in find(served)
            if not (isinstance(found, Fault) and any(map(ways.get, found.kind.meant_by)))
        ]
    findings += trials
    return AuditReport(
        faults=tuple(found for found in findings if isinstance(found, Fault)),
        doubts=tuple(found for found in findings if isinstance(found, str)),
        rows=tuple(found for found in findings if isinstance(found, Row)),
        name=served.facts.name,
    )
