"""What is wrong with the samples that a loader served: one function per kind of fault."""

import enum
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from storebench.arrays import Integers
from storebench.auditing.epochs import Epoch, LoaderFacts, LoaderLog
from storebench.auditing.samples import NO_LABEL

# A shuffle is poor if a batch has fewer than this share of the classes that chance gives.
POOR_CLASSES = 0.5

# Contents may be equal in a few samples of a sound dataset, and two epochs of a stream may share a few.
_FEW = 0.01

_EXAMPLES = 3


class FaultKind(enum.StrEnum):
    WORKERS_REPEAT = "workers repeat each other"
    RANKS_OVERLAP = "ranks overlap"
    RANKS_DIFFER = "ranks differ in length"
    REPEATED = "repeated samples"
    NEVER_SERVED = "samples that are never served"
    DROPPED = "dropped samples"
    SAME_ORDER = "same order in every epoch"
    CLUSTERED = "poorly shuffled"
    EQUAL_RANDOM = "equal random numbers in workers"
    REPEATED_RANDOM = "equal random numbers in every epoch"
    OVERWRITTEN = "overwritten batches"
    LABELS_CHANGE = "changing labels"
    RESUME = "wrong resume"
    OVERLAP = "overlapping datasets"


@dataclass(frozen=True)
class Fault:
    kind: FaultKind
    text: str
    remedy: str


class Served:
    """All that the ranks of one loader served, epoch by epoch."""

    def __init__(self, logs: Sequence[LoaderLog]) -> None:
        self.logs = sorted(logs, key=lambda log: log.facts.rank)
        self.facts: LoaderFacts = self.logs[0].facts
        self.keys = {number: key for log in self.logs for number, key in log.keys.items()}
        self.epochs: list[tuple[Epoch, ...]] = list(zip(*(log.seen for log in self.logs), strict=False))
        """Of each epoch, those of the ranks."""

    def numbers(self, epoch: int) -> Integers:
        return np.concatenate([part.order for part in self.epochs[epoch]])

    def is_whole(self, epoch: int) -> bool:
        return all(part.is_whole for part in self.epochs[epoch])

    @property
    def whole(self) -> list[int]:
        return [epoch for epoch in range(len(self.epochs)) if self.is_whole(epoch)]

    @property
    def is_exact(self) -> bool:
        """Whether samples are known by index or key, not by a digest of their content."""
        return self.facts.is_map or self.facts.has_key or bool(self.keys)

    @property
    def evaluates(self) -> bool:
        """Whether every batch was asked for without gradients, as those of validation are."""
        return all(part.evaluates for parts in self.epochs for part in parts)

    @property
    def is_hidden(self) -> bool:
        """Whether random augmentation makes each serving of a sample look like another sample."""
        if self.is_exact or not self.epochs:
            return False
        if any(
            len(np.unique(self.numbers(e))) < (1 - _FEW) * len(self.numbers(e))
            for e in range(len(self.epochs))
        ):
            return False
        if len(self.epochs) >= 2:
            first, second = (np.unique(self.numbers(epoch)) for epoch in range(2))
            if len(np.intersect1d(first, second)) >= _FEW * len(first):
                return False
            if len(self.whole) >= 2:
                return True
        return any(names for part in self.epochs[0] for names in part.used.values())

    @property
    def universe(self) -> Integers | None:
        """All samples that the loader has, as far as it tells."""
        if self.facts.has_key:
            return None
        if self.facts.chosen is not None:
            return np.unique(np.array(self.facts.chosen, np.int64))
        if self.facts.is_map and self.facts.count is not None:
            return np.arange(self.facts.count)
        return None

    def examples(self, numbers: Integers) -> str:
        """Return a few samples in words, by key where known; "" if neither index nor key is known."""
        if not self.is_exact:
            return ""
        names = [self.keys.get(int(number), str(number)) for number in numbers[:_EXAMPLES]]
        return f" ({', '.join(names)}{', ...' if len(numbers) > _EXAMPLES else ''})"


def samples(count: int) -> str:
    return f"{count:,} sample{'s' * (count != 1)}"


def repeated(numbers: Integers) -> Integers:
    values, counts = np.unique(numbers, return_counts=True)
    return values[counts > 1]


def _shared(groups: Sequence[Integers]) -> Integers:
    """Return the numbers that are in more than one group."""
    return (
        repeated(np.concatenate([np.unique(group) for group in groups])) if groups else np.empty(0, np.int64)
    )


def _by_worker(part: Epoch) -> list[Integers]:
    workers = part.workers_of_samples()
    return [part.order[workers == worker] for worker in np.unique(workers)]


def workers_repeat(served: Served) -> Iterator[Fault]:
    if served.facts.is_map or served.facts.replaces or served.facts.workers < 2:
        return
    groups = _by_worker(served.epochs[0][0])
    shared = _shared(groups)
    least = min(map(len, groups))
    if len(groups) > 1 and least > 1 and (_are_alike(groups) or _are_alike([g[:least] for g in groups])):
        text = f"each of {len(groups)} worker processes yields all {samples(len(shared))}"
        remedy = "split by torch.utils.data.get_worker_info()"
    elif served.is_exact and len(shared):
        text = f"{samples(len(shared))} come from more than one worker{served.examples(shared)}"
        remedy = "give each worker a part of its own"
    else:
        return
    yield Fault(FaultKind.WORKERS_REPEAT, f"the workers repeat each other: {text}", remedy)


def _are_alike(groups: Sequence[Integers]) -> bool:
    """Whether groups have the same samples, each as often."""
    first = np.sort(groups[0])
    return all(np.array_equal(np.sort(group), first) for group in groups[1:])


def ranks_overlap(served: Served) -> Iterator[Fault]:
    parts = served.epochs[0]
    if len(parts) < 2 or served.facts.replaces or served.evaluates:
        return
    sizes = [len(part.sizes) for part in parts]
    if served.is_whole(0) and len(set(sizes)) > 1:
        yield Fault(
            FaultKind.RANKS_DIFFER,
            f"the ranks get {min(sizes):,} to {max(sizes):,} batches per epoch: some wait forever for the others",
            "give each rank the same number of samples, as DistributedSampler does",
        )
    shared = _shared([part.order for part in parts])
    # Samplers repeat up to a batch per rank to give all ranks as many.
    if len(shared) <= len(parts) * max(max(part.sizes) for part in parts):
        return
    yield Fault(
        FaultKind.RANKS_OVERLAP,
        f"ranks read the same samples: {samples(len(shared))} in more than one rank{served.examples(shared)}",
        "DistributedSampler" if served.facts.is_map else "split by rank, then by worker",
    )


def samples_repeat(served: Served) -> Iterator[Fault]:
    """Yield a fault for samples that one process of a stream yields twice before the epoch ends."""
    if served.facts.is_map or served.facts.replaces:
        return
    for epoch in served.whole:
        groups = [group for part in served.epochs[epoch] for group in _by_worker(part)]
        twice = np.concatenate([repeated(group) for group in groups])
        # A few samples of a sound dataset may have equal contents.
        if len(twice) and (served.is_exact or len(twice) == sum(len(np.unique(group)) for group in groups)):
            yield Fault(
                FaultKind.REPEATED,
                f"epoch {epoch}: {samples(len(twice))} twice or more in one process{served.examples(twice)}",
                "let the stream end after one pass",
            )
            return


def never_served(served: Served) -> Iterator[Fault]:
    """Yield a fault for samples that every epoch leaves out; a single batch is a look at the data."""
    if len(served.epochs) < 2 or served.facts.replaces or served.is_hidden or served.evaluates:
        return
    if not served.whole and all(len(part.sizes) < 2 for parts in served.epochs for part in parts):
        return
    sets = [np.unique(served.numbers(epoch)) for epoch in range(len(served.epochs))]
    if not all(np.array_equal(numbers, sets[0]) for numbers in sets):
        return
    universe = served.universe
    if universe is not None:
        dropped = [number for parts in served.epochs for part in parts for number in part.dropped]
        missing = np.setdiff1d(universe, np.union1d(sets[0], np.array(dropped, np.int64)))
        if not len(missing):
            return
        is_last = served.facts.drops_last and served.is_whole(0)
        yield Fault(
            FaultKind.NEVER_SERVED,
            f"every epoch leaves out the same {samples(len(missing))}{served.examples(missing)}:"
            f" {'drop_last' if is_last else 'the loop stops early'}",
            "shuffle, or keep the last batch" if is_last else "shuffle, or let each epoch end",
        )
    elif not served.whole and len(sets[0]) == len(served.numbers(0)):
        yield Fault(
            FaultKind.NEVER_SERVED,
            f"every epoch stops after the same {len(sets[0]):,} samples: the others are never served",
            "shuffle, or go on where the last epoch stopped",
        )


def samples_drop(served: Served) -> Iterator[Fault]:
    parts = served.epochs[0]
    dropped = np.array([number for part in parts for number in part.dropped], np.int64)
    if len(dropped):
        yield Fault(
            FaultKind.DROPPED,
            f"{samples(len(dropped))} of epoch 0 are None, and the collate function leaves them out"
            f"{served.examples(np.unique(dropped))}",
            "mend or list these samples; raise instead of returning None",
        )
    count, facts = served.facts.count, served.facts
    if facts.is_map or count is None or facts.replaces or not served.is_whole(0):
        return
    got = len(served.numbers(0))
    least = count - facts.drops_last * len(parts) * max(1, facts.workers) * max(parts[0].sizes)
    if got < least:
        yield Fault(
            FaultKind.DROPPED,
            f"the dataset says it has {count:,} samples, and {got:,} came",
            "look for errors that a reader passes over, and for samples that no worker or rank reads",
        )


def same_order(served: Served) -> Iterator[Fault]:
    if served.facts.is_shuffled and not served.evaluates and _equal_orders(served):
        is_distributed = served.facts.sampler == "DistributedSampler" or not served.facts.is_map
        yield Fault(
            FaultKind.SAME_ORDER,
            "epochs 0 and 1 have the same order, although the loader shuffles",
            "call set_epoch(epoch) before each epoch"
            if is_distributed
            else "seed the generator once, not per epoch",
        )


def _equal_orders(served: Served) -> bool:
    pairs = [(log.seen[0].order, log.seen[1].order) for log in served.logs if len(log.seen) > 1]
    lengths = [min(len(first), len(second)) for first, second in pairs]
    return bool(pairs) and all(
        n > 1 and np.array_equal(first[:n], second[:n])
        for n, (first, second) in zip(lengths, pairs, strict=True)
    )


def epochs_differ(served: Served) -> bool | None:
    """Whether epochs 0 and 1 differ in their order; None if there is one epoch, or their samples are hidden."""
    if len(served.epochs) < 2 or served.is_hidden:
        return None
    return not _equal_orders(served)


@dataclass(frozen=True, kw_only=True)
class Mixing:
    """How well classes are mixed: those of a batch, and how long runs of one label are, both beside chance."""

    batch: int
    classes: float
    expected_classes: float
    run: float
    expected_run: float


def mixing(served: Served) -> Mixing | None:
    """Return how well epoch 0 mixes its labels; None without labels, or with one class."""
    part = served.epochs[0][0]
    labels, sizes = part.classes, np.frombuffer(part.sizes, np.int32)
    if not len(labels) or (labels == NO_LABEL).any() or (labels[0] == labels).all():
        return None
    _, counts = np.unique(labels, return_counts=True)
    shares = counts / len(labels)
    ends = np.cumsum(sizes)
    batches = [labels[end - size : end] for size, end in zip(sizes, ends, strict=True)]
    batch = int(np.median(sizes))
    return Mixing(
        batch=batch,
        classes=float(np.mean([len(np.unique(labels)) for labels in batches])),
        expected_classes=float((1 - (1 - shares) ** batch).sum()),
        run=len(labels) / (1 + int((labels[1:] != labels[:-1]).sum())),
        expected_run=1 / float(1 - (shares**2).sum()),
    )


def clustered(served: Served) -> Iterator[Fault]:
    """Yield a fault for a stream that shuffles, but not enough; samplers may group classes on purpose."""
    found = mixing(served)
    shuffles = served.facts.is_shuffled or (not served.facts.is_map and epochs_differ(served))
    if (
        found is None
        or not shuffles
        or served.evaluates
        or found.classes >= POOR_CLASSES * found.expected_classes
    ):
        return
    yield Fault(
        FaultKind.CLUSTERED,
        f"poorly shuffled: a batch of {found.batch} has {found.classes:.1f} classes, chance gives"
        f" {found.expected_classes:.1f}",
        "a larger shuffle buffer, or shuffle the samples before they are stored",
    )


def equal_random(served: Served) -> Iterator[Fault]:
    """Yield faults for generators that workers, or epochs, share and that samples are made with.

    Those of a stream may be shared so that all workers shuffle alike, and those of validation so that it is repeated.
    """
    if not served.facts.is_map or served.facts.is_shuffled is False or served.evaluates:
        return
    told = set[str]()
    for part in served.epochs[0]:
        groups: dict[tuple[str, int], list[int]] = {}
        for worker, states in part.states.items():
            for name in part.used[worker] & states.keys():
                groups.setdefault((name, states[name]), []).append(worker)
        equal = {name: workers for (name, _), workers in groups.items() if len(workers) > 1}
        if equal:
            told = set(equal)
            name, workers = next(iter(equal.items()))
            yield Fault(
                FaultKind.EQUAL_RANDOM,
                f"the same random numbers in workers {', '.join(map(str, sorted(workers)))}: their augmentations"
                f" are equal ({', '.join(equal)})",
                f"seed {name} in worker_init_fn, from torch.initial_seed()",
            )
            break
    if len(served.epochs) < 2:
        return
    names = {
        name
        for first, second in zip(*served.epochs[:2], strict=True)
        for worker, states in first.states.items()
        for name in (first.used[worker] & states.keys()) - told
        if second.states.get(worker, {}).get(name) == states[name]
    }
    if names:
        yield Fault(
            FaultKind.REPEATED_RANDOM,
            f"epochs 0 and 1 use the same random numbers ({', '.join(sorted(names))}): augmentations repeat",
            "seed once, not per epoch; seed a dataset's own generator in worker_init_fn",
        )


def overwritten(served: Served) -> Iterator[Fault]:
    count = sum(part.overwritten for parts in served.epochs for part in parts)
    if count:
        yield Fault(
            FaultKind.OVERWRITTEN,
            f"{count:,} batches changed while the next was fetched: their memory is used again",
            "copy a batch that is kept, or have the loader make new ones",
        )


def labels_change(served: Served) -> Iterator[Fault]:
    changing = _changing(served)
    # With random numbers, the second field may be what was drawn: a rotation, or another sample.
    if len(changing) and not _uses_random(served):
        yield Fault(
            FaultKind.LABELS_CHANGE,
            f"{samples(len(changing))} with more than one label{served.examples(changing)}",
            "join labels by key, not by position",
        )


def _changing(served: Served) -> Integers:
    if not served.is_exact:  # samples of equal content may have their own labels
        return np.empty(0, np.int64)
    parts = list(itertools.chain.from_iterable(served.epochs))
    numbers, labels = (
        np.concatenate([getattr(part, name) for part in parts]) for name in ("order", "classes")
    )
    known = labels != NO_LABEL
    return repeated(np.unique(np.stack([numbers[known], labels[known]]), axis=1)[0])


def _uses_random(served: Served) -> bool:
    return any(names for parts in served.epochs for part in parts for names in part.used.values())


CHECKS: tuple[Callable[[Served], Iterator[Fault]], ...] = (
    workers_repeat,
    ranks_overlap,
    samples_repeat,
    never_served,
    samples_drop,
    same_order,
    clustered,
    equal_random,
    overwritten,
    labels_change,
)


def faults_of(served: Served) -> list[Fault]:
    return [fault for check in CHECKS for fault in check(served)] if served.epochs else []


def doubts_of(served: Served) -> Iterator[str]:
    """Yield what cannot be told, with the remedy."""
    if any(log.is_blind for log in served.logs):
        yield "some batches came without their samples: made before the audit began, or other than by torch's fetchers"
    if not served.epochs:
        yield "no batch was served"
        return
    facts = served.facts
    if served.is_hidden:
        yield "random augmentation hides which sample is which: name a key (key=, --key FIELD)"
    elif (
        not served.is_exact and not facts.replaces and served.is_whole(0) and not any(samples_repeat(served))
    ):
        groups = [np.unique(group) for part in served.epochs[0] for group in _by_worker(part)]
        alike = len(served.numbers(0)) - len(np.unique(np.concatenate(groups)))
        if alike > _FEW * len(served.numbers(0)) and not any(workers_repeat(served)):
            yield f"{samples(alike)} have the content of others: if they are others, name a key (key=, --key FIELD)"
    if (
        facts.is_map
        and facts.sampler
        and facts.is_shuffled is None
        and not facts.replaces
        and served.is_whole(0)
    ):
        twice = np.unique(np.concatenate([repeated(part.order) for part in served.epochs[0]]))
        if len(twice):
            yield (
                f"{facts.sampler} draws {samples(len(twice))} twice or more{served.examples(twice)}:"
                " sound if it means to; then give it an attribute `replacement = True`"
            )
    if len(_changing(served)) and _uses_random(served):
        yield "labels change, and random numbers are used: sound if they are drawn"
