"""Loaders with a planted fault, and sound ones, that the audit is held against."""

import random
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import (
    ConcatDataset,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    Sampler,
    Subset,
    SubsetRandomSampler,
    WeightedRandomSampler,
    default_collate,
    get_worker_info,
    random_split,
)

import storebench
from storebench.auditing.audit_report import AuditReport, FaultKind
from storebench.auditing.checks import report_of, reports_of
from storebench.auditing.log import Logs
from storebench.profiling import torch_loaders  # noqa: F401 - watches from its import on
from storebench.profiling.watch import watchers

COUNT, CLASSES, BATCH = 600, 20, 32
Make = Callable[[], AuditReport]


class Images(Dataset[tuple[torch.Tensor, int]]):
    """Images of class folders: all of one class, then all of the next."""

    def __init__(self, count: int = COUNT, first: int = 0) -> None:
        self.count, self.first = count, first

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if not 0 <= index < self.count:
            raise IndexError(index)
        number = self.first + index
        return torch.full((3, 8, 8), number, dtype=torch.int32), number * CLASSES // COUNT


class Noisy(Images):
    """Images whose augmentation takes its random numbers of `draw`."""

    def __init__(self, draw: Callable[[], float]) -> None:
        super().__init__()
        self.draw = draw

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        image, label = super().__getitem__(index)
        return image + self.draw(), label


class OwnGenerator(Images):
    """Images that are augmented with a generator of their own, which each worker gets a copy of."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.rng: Any = np.random.default_rng(0) if kind == "numpy" else random.Random(0)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        image, label = super().__getitem__(index)
        return image + self.rng.random(), label


class Holes(Images):
    """Images of which some cannot be read, which the dataset hides by None."""

    def __getitem__(self, index: int) -> Any:
        return None if index % 50 == 7 else super().__getitem__(index)


class InPlace(Images):
    """Images of which some cannot be read: the next one, or any, is given in the place of each."""

    def __init__(self, *, next_one: bool = True) -> None:
        super().__init__()
        self.next_one = next_one

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if index % 50 == 7:
            return self[index + 1 if self.next_one else random.randrange(self.count)]
        return super().__getitem__(index)


class LabelsByPosition(Images):
    """Images whose labels come from another iterator, which goes on in its own order."""

    def __init__(self) -> None:
        super().__init__()
        self.labels = 0

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        self.labels += 1
        return super().__getitem__(index)[0], self.labels * 7 % CLASSES


class Stream(IterableDataset[Any]):
    """A stream over images: split by worker or not, with a shuffle buffer of some samples."""

    def __init__(
        self,
        *,
        splits: bool = True,
        buffer: int = 0,
        keys: bool = False,
        hides: int = 0,
        noise: bool = False,
        repeats: int = 1,
        rank: tuple[int, int] = (0, 1),
    ) -> None:
        self.splits, self.buffer, self.keys, self.hides = splits, buffer, keys, hides
        self.noise, self.repeats, self.rank, self.images = noise, repeats, rank, Images()

    def __len__(self) -> int:
        return len(self.images) // self.rank[1]

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        worker, workers = (info.id, info.num_workers) if info and self.splits else (0, 1)
        rank, ranks = self.rank
        mine = list(range(COUNT))[rank::ranks][worker::workers]
        if self.hides:
            mine = [index for index in mine if index % self.hides]
        generator = random.Random(int(torch.randint(2**60, ())))
        buffered: list[int] = []
        for index in mine * self.repeats:
            buffered.append(index)
            if len(buffered) > self.buffer:
                yield self._sample(buffered.pop(generator.randrange(len(buffered))))
        generator.shuffle(buffered)
        yield from map(self._sample, buffered)

    def _sample(self, index: int) -> Any:
        image, label = self.images[index]
        if self.noise:
            image = image + random.random()
        return {"__key__": f"{index:06d}", "image": image, "label": label} if self.keys else (image, label)


class Seeded(Stream):
    """A stream that shuffles by the seed of the epoch that it is told."""

    def __init__(self) -> None:
        super().__init__(buffer=COUNT)
        self.shuffle, self.epoch = True, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[Any]:
        torch.manual_seed(self.epoch)
        return super().__iter__()


class Endless(Stream):
    """A stream that begins anew, for loops that count their steps."""

    def __iter__(self) -> Iterator[Any]:
        while True:
            yield from super().__iter__()


class Rotated(Images):
    """Images whose label is the rotation that was drawn."""

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        rotation = random.randrange(4)
        return torch.rot90(super().__getitem__(index)[0], rotation, (1, 2)), rotation


class FixedOrder(Sampler[int]):
    """Draws a given order, the same in every epoch."""

    def __init__(self, order: list[int]) -> None:
        self.order = order

    def __iter__(self) -> Iterator[int]:
        return iter(self.order)

    def __len__(self) -> int:
        return len(self.order)


class ReusedMemory:
    """A loader that puts each batch into the same memory."""

    def __init__(self, *, copies: bool = False) -> None:
        self.copies = copies

    def __iter__(self) -> Iterator[Any]:
        out = torch.empty((BATCH, 3, 8, 8), dtype=torch.int32)
        for start in np.random.default_rng().permutation(COUNT // BATCH) * BATCH:
            for row in range(BATCH):
                out[row] = int(start) + row
            yield (out.clone() if self.copies else out), list(range(BATCH))


class Resumable:
    """A loader over numbers with a state; `slip` is by how many batches a resume misses its place."""

    def __init__(self, *, slip: int = 0, reshuffles: bool = False) -> None:
        self.slip, self.reshuffles, self.seed, self.start, self.place = slip, reshuffles, 0, 0, 0

    def __iter__(self) -> Iterator[torch.Tensor]:
        generator = torch.Generator().manual_seed(self.seed)
        order = torch.randperm(COUNT, generator=generator).split(BATCH)
        if self.reshuffles and self.start:
            order = order[: self.start] + order[self.start :][::-1]
        start, self.start = self.start, 0
        for self.place in range(start, len(order)):
            yield order[self.place][:, None]
        self.seed += 1

    def state_dict(self) -> dict[str, int]:
        return {"seed": self.seed, "place": self.place + 1}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.seed, self.start = state["seed"], state["place"] + self.slip


def _without_none(samples: list[Any]) -> Any:
    return default_collate([sample for sample in samples if sample is not None])


def _seed_numpy(_worker: int) -> None:
    np.random.seed(42)  # noqa: NPY002 - as people do


def _seed_random(_worker: int) -> None:
    random.seed(0)


def audited(
    loader: Any, *, before_epoch: Callable[[], object] = lambda: None, steps: int | None = None
) -> AuditReport:
    """Audit two epochs of a loop as those of a script are audited."""
    logs = Logs()
    watchers.append(logs.log_of)
    for _ in range(2):
        before_epoch()
        for step, _batch in enumerate(loader, start=1):
            if step == steps:
                break
    watchers.remove(logs.log_of)
    return reports_of([logs])[0]


def validated() -> AuditReport:
    """Audit validation: without gradients, with augmentation and order that are the same each time."""
    with torch.no_grad():
        return audited(
            load(Noisy(np.random.rand), shuffle=True, drop_last=True), before_epoch=lambda: _seed(0)
        )


def validated_beside_training() -> AuditReport:
    """Audit validation that stops early, and enters `no_grad` in its loop, of a script that trains."""
    logs, network = Logs(), torch.nn.Linear(3 * 8 * 8, CLASSES)
    train, validation = load(Images(), shuffle=True), load(Images())
    watchers.append(logs.log_of)
    for _ in range(2):
        for images, labels in train:
            torch.nn.functional.cross_entropy(network(images.flatten(1).float()), labels).backward()
        for step, (images, _labels) in enumerate(validation):
            if step == 5:
                break
            with torch.no_grad():
                network(images.flatten(1).float())
    watchers.remove(logs.log_of)
    return reports_of([logs])[1]


def _first_pixel(sample: tuple[torch.Tensor, int]) -> int:
    return int(sample[0].flatten()[0])


def _seed(seed: int) -> None:
    _seed_numpy(seed)
    torch.manual_seed(seed)


def with_length(dataset: Any) -> AuditReport:
    """Audit a loader whose length its program asks for."""
    loader = load(dataset)
    len(loader)
    return storebench.audit(loader)


def load(dataset: Any, **options: Any) -> DataLoader[Any]:
    return DataLoader(dataset, **{"batch_size": BATCH, "num_workers": 0, **options})


def seeded_by_epoch() -> AuditReport:
    stream = Seeded()
    return storebench.audit(load(stream, num_workers=2), set_epoch=stream.set_epoch)


def of(dataset: Any, **options: Any) -> Make:
    return lambda: storebench.audit(load(dataset, **options))


def weighted() -> WeightedRandomSampler:
    return WeightedRandomSampler([1.0 + index % 3 for index in range(COUNT)], COUNT)


HALVES = random_split(Images(), [0.5, 0.5], generator=torch.Generator().manual_seed(0))
OVERLAPPING = Subset(Images(), range(400)), Subset(Images(), range(390, COUNT))

FAULTY: dict[str, tuple[FaultKind, Make]] = {
    "a stream that every worker repeats": (FaultKind.WORKERS_REPEAT, of(Stream(splits=False), num_workers=2)),
    "with keys, four workers": (FaultKind.WORKERS_REPEAT, of(Stream(splits=False, keys=True), num_workers=4)),
    "in persistent workers": (
        FaultKind.WORKERS_REPEAT,
        of(Stream(splits=False), num_workers=2, persistent_workers=True),
    ),
    "a stream that goes round twice": (FaultKind.REPEATED, of(Stream(repeats=2))),
    "that goes round twice, in workers": (
        FaultKind.REPEATED,
        of(Stream(repeats=2, keys=True), num_workers=2),
    ),
    "drop_last without a shuffle": (FaultKind.NEVER_SERVED, of(Images(), drop_last=True)),
    "drop_last in workers": (FaultKind.NEVER_SERVED, of(Images(), drop_last=True, num_workers=2)),
    "a limit without a shuffle": (FaultKind.NEVER_SERVED, lambda: audited(load(Images()), steps=5)),
    "a limit of a stream": (FaultKind.NEVER_SERVED, lambda: audited(load(Stream()), steps=5)),
    "samples of None": (FaultKind.DROPPED, of(Holes(), shuffle=True, collate_fn=_without_none)),
    "samples of None, in workers": (
        FaultKind.DROPPED,
        of(Holes(), shuffle=True, collate_fn=_without_none, num_workers=2),
    ),
    "a stream that passes over errors": (FaultKind.DROPPED, lambda: with_length(Stream(hides=50))),
    "the next in the place of a broken one": (
        FaultKind.REPEATED,
        lambda: storebench.audit(load(InPlace(), shuffle=True), key=_first_pixel),
    ),
    "a stream that is shuffled alike": (FaultKind.SAME_ORDER, of(Seeded())),
    "shuffled alike, in workers": (FaultKind.SAME_ORDER, of(Seeded(), num_workers=2)),
    "a generator that is seeded in each epoch": (
        FaultKind.SAME_ORDER,
        lambda: audited(load(Images(), shuffle=True), before_epoch=lambda: torch.manual_seed(0)),
    ),
    "seeded in each epoch, workers": (
        FaultKind.SAME_ORDER,
        lambda: audited(
            load(Images(), shuffle=True, num_workers=2), before_epoch=lambda: torch.manual_seed(0)
        ),
    ),
    "a buffer smaller than a class": (FaultKind.CLUSTERED, of(Stream(buffer=10))),
    "a small buffer in workers": (FaultKind.CLUSTERED, of(Stream(buffer=5, keys=True), num_workers=2)),
    "numpy seeded alike in workers": (
        FaultKind.EQUAL_RANDOM,
        of(Noisy(np.random.rand), shuffle=True, num_workers=2, worker_init_fn=_seed_numpy),
    ),
    "Python's random seeded alike": (
        FaultKind.EQUAL_RANDOM,
        of(Noisy(random.random), shuffle=True, num_workers=3, worker_init_fn=_seed_random),
    ),
    "a generator of the dataset": (
        FaultKind.EQUAL_RANDOM,
        of(OwnGenerator("numpy"), shuffle=True, num_workers=2),
    ),
    "a Python generator of the dataset": (
        FaultKind.EQUAL_RANDOM,
        of(OwnGenerator("random"), shuffle=True, num_workers=2),
    ),
    "one worker, the same numbers in each epoch": (
        FaultKind.REPEATED_RANDOM,
        of(OwnGenerator("numpy"), shuffle=True, num_workers=1),
    ),
    "numpy seeded in each epoch": (
        FaultKind.REPEATED_RANDOM,
        lambda: audited(load(Noisy(np.random.rand), shuffle=True), before_epoch=lambda: _seed_numpy(0)),
    ),
    "memory that is used again": (FaultKind.OVERWRITTEN, lambda: storebench.audit(ReusedMemory())),
    "labels by position": (FaultKind.LABELS_CHANGE, of(LabelsByPosition(), shuffle=True)),
    "labels by position, in workers": (
        FaultKind.LABELS_CHANGE,
        of(LabelsByPosition(), shuffle=True, num_workers=2),
    ),
    "a resume that repeats a batch": (FaultKind.RESUME, lambda: storebench.audit(Resumable(slip=-1))),
    "a resume that skips a batch": (FaultKind.RESUME, lambda: storebench.audit(Resumable(slip=1))),
    "a resume in another order": (FaultKind.RESUME, lambda: storebench.audit(Resumable(reshuffles=True))),
    "training images in the validation": (
        FaultKind.OVERLAP,
        lambda: storebench.audit(load(OVERLAPPING[0], shuffle=True), against=load(OVERLAPPING[1])),
    ),
}

SOUND: dict[str, Make] = {
    "a shuffle": of(Images(), shuffle=True),
    "in two workers": of(Images(), shuffle=True, num_workers=2),
    "in four persistent workers": of(Images(), shuffle=True, num_workers=4, persistent_workers=True),
    "with a key": lambda: storebench.audit(load(Images(), shuffle=True), key=_first_pixel),
    "images of equal content": of([(torch.ones(3), 0)] * COUNT, shuffle=True),
    "in stored order": of(Images()),
    "drop_last and a shuffle": of(Images(), shuffle=True, drop_last=True),
    "weights, with replacement": of(Images(), sampler=weighted()),
    "a random sampler with replacement": of(Images(), sampler=RandomSampler(Images(), replacement=True)),
    "a subset at random": of(Images(), sampler=SubsetRandomSampler(range(0, COUNT, 2))),
    "a part of it": of(Subset(Images(), range(100)), shuffle=True),
    "two datasets in one": of(ConcatDataset([Images(300), Images(300, 300)]), shuffle=True, num_workers=2),
    "a curriculum": of(Images(), sampler=FixedOrder(sorted(range(COUNT), key=lambda index: index % 37))),
    "of single images": of(Images(), shuffle=True, batch_size=1),
    "numpy's random numbers in workers": of(Noisy(np.random.rand), shuffle=True, num_workers=2),
    "in spawned workers": of(Images(), shuffle=True, num_workers=2, multiprocessing_context="spawn"),
    "a stream split by worker": of(Stream(), num_workers=2),
    "a stream with a large buffer": of(Stream(buffer=COUNT)),
    "a stream that is told the epoch": seeded_by_epoch,
    "a stream with keys and noise": of(Stream(keys=True, noise=True, buffer=COUNT), num_workers=2),
    "a loader that copies its batches": lambda: storebench.audit(ReusedMemory(copies=True)),
    "an endless stream by steps": lambda: audited(load(Endless(buffer=COUNT)), steps=40),
    "validation that begins with the same seed": validated,
    "validation that stops early, beside training": validated_beside_training,
    "objects without a digest": of(
        Images(), shuffle=True, collate_fn=lambda samples: (default_collate(samples), {Path(), object()})
    ),
    "a resume in its place": lambda: storebench.audit(Resumable()),
    "two halves": lambda: storebench.audit(load(HALVES[0], shuffle=True), against=load(HALVES[1])),
}


class Light(Dataset[tuple[torch.Tensor, int]]):
    """A million small images in memory, each of which takes some microseconds."""

    def __init__(self) -> None:
        self.images = np.zeros((1000, 28, 28), np.uint8)

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        image = torch.from_numpy(self.images[index % 1000]).float().div_(255.0)
        return image.sub_(0.13).div_(0.31)[2:26, 2:26].flip(1), index % 10


def cost(workers: int) -> str:
    """Measure two epochs of a light dataset without the audit and with it, in turn."""
    loader, logs, seconds = (
        load(Light(), batch_size=256, shuffle=True, num_workers=workers),
        Logs(),
        [0.0, 0.0],
    )
    for turn in range(4):
        watchers[:] = [logs.log_of] * (turn % 2)
        began = time.perf_counter()
        for _ in loader:
            pass
        seconds[turn % 2] += time.perf_counter() - began
    watchers.clear()
    arrays = [
        getattr(epoch, name) for epoch in logs[0].epochs for name in ("numbers", "labels", "sizes", "workers")
    ]
    held, count = sum(map(sys.getsizeof, arrays)), len(logs[0].epochs[0].order)
    began = time.perf_counter()
    report = report_of(logs)
    took = time.perf_counter() - began
    if report.exit_code:
        raise SystemExit(str(report))
    each_us, more = 1e6 * seconds[0] / 2 / count, seconds[1] / seconds[0] - 1
    return f"| {workers} | {count:,} | {each_us:.1f} | {more:+.1%} | {held / count:.1f} | {took:.1f} |"


def main() -> int:
    """Print one row per case; the exit code is 1 if a fault was not named, or a sound loader accused."""
    if "--cost" in sys.argv:
        print(
            "| workers | samples | µs per sample | longer with the audit | bytes held per sample | report (s) |"
        )
        print("|---:|---:|---:|---:|---:|---:|")
        for workers in (0, 2):
            print(cost(workers), flush=True)
        return 0
    rows = [(name, {kind}, make()) for name, (kind, make) in FAULTY.items()]
    rows += [(name, set(), make()) for name, make in SOUND.items()]
    wrong = 0
    print("| loader | planted | found |")
    print("|---|---|---|")
    for name, planted, report in rows:
        found = {fault.kind for fault in report.faults}
        wrong += found != planted
        print(f"| {name} | {', '.join(planted) or 'nothing'} | {', '.join(found) or 'nothing'} |")
    print(f"\n{len(FAULTY)} faulty and {len(SOUND)} sound loaders, {wrong} judged wrong")
    return int(wrong > 0)


if __name__ == "__main__":
    raise SystemExit(main())
