"""The loader for training scripts: the DataLoader's batches, kept ones, errors, refusals, and what is left behind."""

import gc
import json
import multiprocessing
import os
import random
import signal
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from pickle import PicklingError
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    Subset,
    WeightedRandomSampler,
    default_collate,
    get_worker_info,
    random_split,
)

from storebench import Loader, StoreDataset
from storebench.errors import CellFailedError
from storebench.testing.stores import COUNT
from tests.support.loading_tools import StoreOf

STORES = ["lmdb", "lmdb+jpeg", "files+png", "files+original", "leveldb", "hdf5", "memory"]
MAKERS = [("ring", 0), ("ring", 1), ("ring", 3), ("threads", 1), ("threads", 2)]

pytestmark = [pytest.mark.timeout(120), pytest.mark.usefixtures("nothing_left")]


@pytest.fixture
def dataset(store_of: StoreOf) -> Iterator[StoreDataset]:
    with StoreDataset(store_of("lmdb").path) as opened:
        yield opened


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(7)


def assert_same(ours: list[Any], theirs: list[Any]) -> None:
    """Hold batches to those of the DataLoader, bit by bit."""
    assert len(ours) == len(theirs) > 0
    for mine, torchs in zip(ours, theirs, strict=True):
        assert [part.dtype for part in mine] == [part.dtype for part in torchs]
        assert all(torch.equal(mine_part, part) for mine_part, part in zip(mine, torchs, strict=True))


@pytest.mark.thinned
@pytest.mark.parametrize("text", STORES)
@pytest.mark.parametrize(("kind", "workers"), MAKERS)
def test_kept_batches_are_those_of_the_dataloader(
    text: str, kind: Any, workers: int, store_of: StoreOf
) -> None:
    with StoreDataset(store_of(text).path) as dataset:
        for batch_size, drop_last in ((8, False), (8, True), (256, False)):
            settings: Any = {"batch_size": batch_size, "shuffle": True, "drop_last": drop_last}
            ours = Loader(dataset, workers=workers, kind=kind, generator=seeded(), **settings)
            theirs = DataLoader(dataset, generator=seeded(), **settings)
            assert len(ours) == len(theirs)
            assert_same([*ours, *ours], [*theirs, *theirs])


class Noisy:
    """Draw from every generator that the DataLoader seeds."""

    def __init__(self, *, tells_worker: bool = False) -> None:
        self.tells_worker = tells_worker

    def __call__(self, image: torch.Tensor) -> Any:
        info = get_worker_info()
        noise = random.random() + float(np.random.random()) + torch.rand(3, 1, 1)  # noqa: NPY002
        return image.double() + noise, (info.id, info.seed, info.num_workers) if info else ()


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("persistent", [False, True])
def test_random_transforms_draw_as_in_the_dataloader(
    workers: int, persistent: bool, store_of: StoreOf
) -> None:
    with StoreDataset(store_of("lmdb").path, transform=Noisy()) as dataset:
        batches = []
        for kind in (Loader, DataLoader):
            random.seed(1)
            np.random.seed(1)  # noqa: NPY002
            torch.manual_seed(1)
            settings: Any = {"num_workers": workers, "persistent_workers": persistent and workers > 0}
            loader = kind(dataset, batch_size=16, shuffle=True, **settings)
            batches.append([batch for _ in range(2) for batch in loader])
            del loader
    for (ours, our_labels), (theirs, labels) in zip(*batches, strict=True):
        assert torch.equal(ours[0], theirs[0])
        assert torch.equal(our_labels, labels)
        assert all(map(torch.equal, ours[1], theirs[1]))


class Growing:
    """Batches that are larger in the second epoch."""

    epoch = 0

    def __iter__(self) -> Iterator[list[int]]:
        self.epoch += 1
        return iter([list(range(1 if self.epoch == 1 else 60))] * 9)


SAMPLERS: dict[str, Callable[[StoreDataset], dict[str, Any]]] = {
    "weighted": lambda dataset: {
        "sampler": WeightedRandomSampler(list(range(1, COUNT + 1)), 50, generator=seeded())
    },
    "distributed": lambda dataset: {"sampler": DistributedSampler(dataset, 3, 1)},
    "batches": lambda dataset: {"batch_sampler": BatchSampler(SequentialSampler(dataset), 9, drop_last=True)},
    "growing": lambda dataset: {"batch_sampler": Growing()},
}


@pytest.mark.parametrize(("kind", "workers"), [("ring", 0), ("ring", 2), ("threads", 2)])
def test_a_subset_of_a_store_gives_its_samples_only(kind: Any, workers: int, dataset: StoreDataset) -> None:
    drawn, rest = random_split(dataset, [30, COUNT - 30], seeded())
    nested = Subset(Subset(dataset, np.arange(40, 0, -1)), [7, 3, 3, 39])  # type: ignore[arg-type]
    for subset in (drawn, rest, nested, Subset(dataset, [])):
        ours = Loader(subset, 8, workers, kind=kind)
        theirs = DataLoader(subset, 8)
        assert len(ours) == len(theirs)
        for _ in range(2):
            assert [batch[1].tolist() for batch in ours] == [batch[1].tolist() for batch in theirs]
        if len(subset):
            assert_same(list(ours), list(theirs))
    settings: Any = {"sampler": DistributedSampler(drawn, 3, 1), "batch_size": 4}
    assert_same(list(Loader(drawn, **settings)), list(DataLoader(drawn, **settings)))


@pytest.mark.parametrize("name", SAMPLERS)
def test_samplers_decide_the_order(name: str, dataset: StoreDataset) -> None:
    ours, theirs = (
        Loader(dataset, workers=2, persistent_workers=True, **SAMPLERS[name](dataset)),
        DataLoader(dataset, **SAMPLERS[name](dataset)),
    )
    orders = []
    for epoch in range(2):
        for loader in (ours, theirs):
            if isinstance(loader.sampler, DistributedSampler):
                loader.sampler.set_epoch(epoch)
        orders.append(list(ours))
        assert_same(orders[epoch], list(theirs))
    if name == "distributed":
        assert not torch.equal(*(torch.cat([labels for _, labels in batches]) for batches in orders))


def scaled(images: torch.Tensor) -> dict[str, Any]:
    return {"images": images.float() / 255, "few": (images[:, :, ::2, 1:], 3)}


@pytest.mark.parametrize(
    ("kind", "workers", "method"),
    [
        ("ring", 0, None),
        ("ring", 2, "fork"),
        ("ring", 1, "spawn"),
        ("threads", 2, None),
    ],
)
def test_a_transform_is_given_each_batch(
    kind: Any, workers: int, method: str | None, dataset: StoreDataset
) -> None:
    """Its results are larger than the pixels, and differ in size."""
    settings: Any = {"batch_sampler": [[1], list(range(30)), list(range(60)), [4], *[[9, 8]] * 8]}
    loader = Loader(
        dataset, kind=kind, workers=workers, multiprocessing_context=method, transform=scaled, **settings
    )
    for (ours, labels), (images, right) in zip(list(loader), DataLoader(dataset, **settings), strict=True):
        assert torch.equal(labels, right)
        assert torch.equal(ours["images"], images.float() / 255)
        assert torch.equal(ours["few"][0], images[:, :, ::2, 1:])


def small_and_size(image: Image.Image) -> tuple[torch.Tensor, tuple[int, int]]:
    return torch.from_numpy(np.array(image.resize((20, 30)))), image.size


def by_name(samples: list[Any]) -> dict[str, Any]:
    (images, sizes), labels = default_collate(samples)
    return {"images": images.float(), "sizes": sizes, "labels": labels}


@pytest.mark.thinned
@pytest.mark.parametrize("collate", [None, by_name])
@pytest.mark.parametrize(("kind", "workers"), MAKERS)
def test_images_of_their_own_sizes_are_transformed_and_collated(
    collate: Any, kind: Any, workers: int, photos: Path
) -> None:
    settings: Any = {"batch_size": 5, "collate_fn": collate}
    with StoreDataset(photos, pil=True, transform=small_and_size) as dataset:
        ours = list(Loader(dataset, workers=workers, kind=kind, **settings))
        assert str(ours) == str(list(DataLoader(dataset, **settings)))


def regions() -> list[range]:
    """Return the addresses of the regions that are mapped here."""
    lines = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    spans = [line.split()[0].split("-") for line in lines if "memfd:storebench-ring" in line]
    return [range(int(start, 16), int(end, 16)) for start, end in spans]


def shared_bytes() -> int:
    """Return the memory of all regions."""
    handles = [path for path in Path("/proc/self/fd").iterdir() if "memfd:storebench" in str(path.resolve())]
    return sum(path.stat().st_blocks * 512 for path in handles)


class TestMemory:
    def test_is_used_again_unless_a_batch_is_kept(self, dataset: StoreDataset) -> None:
        loader = Loader(dataset, batch_sampler=[[1, 2, 3]] * 60, workers=1)
        places = {images.data_ptr() for images, _ in loader}
        assert len(places) < 8
        labels = [labels for _, labels in loader]  # these keep no pixels
        assert not regions()
        kept = [images[1, 0] for images, _ in loader]
        assert len({image.data_ptr() for image in kept}) == len(labels) == 60
        assert all(torch.equal(image, dataset[2][0][0]) for image in kept)

    def test_goes_back_when_many_batches_are_dropped(self, dataset: StoreDataset) -> None:
        loader = Loader(dataset, batch_sampler=[list(range(60))] * 60, workers=1, persistent_workers=True)
        kept = list(loader)
        assert shared_bytes() > 60 * 60 * dataset[0][0].numel()
        kept.clear()
        assert shared_bytes() < 10 * 60 * dataset[0][0].numel()
        assert len(list(loader)) == 60

    def test_outlives_the_loader(self, dataset: StoreDataset) -> None:
        images, _ = next(iter(Loader(dataset, 9, 2)))
        gc.collect()
        assert torch.equal(images[3], dataset[3][0])
        images += 1  # it is the script's own


class Failing:
    def __init__(self, kind: type[Exception] | None = None) -> None:
        self.kind = kind

    def __call__(self, images: torch.Tensor) -> Any:
        if self.kind is None:
            return lambda: images  # cannot be pickled
        raise self.kind("a transform failed")


class TestErrors:
    @pytest.mark.parametrize(("kind", "workers"), MAKERS)
    def test_one_of_a_transform_is_raised_with_its_traceback(
        self, kind: Any, workers: int, dataset: StoreDataset
    ) -> None:
        loader = Loader(dataset, 8, workers, kind=kind, transform=Failing(KeyError))
        for _ in range(2):
            with pytest.raises(KeyError, match="a transform failed") as caught:
                list(loader)
            where = "".join(traceback.format_exception(caught.value))
            assert "in __call__" in where

    @pytest.mark.thinned
    @pytest.mark.parametrize("end", [SystemExit, KeyboardInterrupt])
    @pytest.mark.parametrize(("kind", "workers"), MAKERS[1:])
    def test_the_end_of_a_worker_is_no_end_of_the_loop(
        self, end: Any, kind: Any, workers: int, dataset: StoreDataset
    ) -> None:
        with pytest.raises(RuntimeError, match=end.__name__):
            list(Loader(dataset, 8, workers, kind=kind, transform=Failing(end)))

    def test_a_result_that_cannot_be_sent_is_reported(self, dataset: StoreDataset) -> None:
        with pytest.raises((AttributeError, RuntimeError, PicklingError), match="pickle"):
            list(Loader(dataset, 8, 1, transform=Failing()))

    @pytest.mark.parametrize("persistent", [False, pytest.param(True, marks=pytest.mark.full)])
    def test_a_killed_worker_is_named(self, persistent: bool, dataset: StoreDataset) -> None:
        loader = Loader(dataset, batch_sampler=[[1, 2]] * 5_000, workers=2, persistent_workers=persistent)
        batches = iter(loader)
        next(batches)
        victim = multiprocessing.active_children()[0]
        victim.kill()
        with pytest.raises(CellFailedError, match=f"{victim.pid} was killed by SIGKILL") as caught:
            list(batches)
        assert "\n" not in str(caught.value)
        assert len(list(loader)) == 5_000


class TestLeaving:
    """The fixture `nothing_left` looks for processes, threads, descriptors and memory."""

    @pytest.mark.thinned
    @pytest.mark.parametrize("persistent", [False, True])
    @pytest.mark.parametrize(("kind", "workers"), MAKERS[1:])
    def test_the_loop(self, kind: Any, workers: int, persistent: bool, dataset: StoreDataset) -> None:
        loader = Loader(dataset, 2, workers, kind=kind, persistent_workers=persistent)
        for _ in range(2):
            for _images, labels in loader:
                assert len(labels) == 2
                break
        assert len(list(loader)) == len(loader)

    @pytest.mark.parametrize(("kind", "workers"), MAKERS[2:])
    def test_by_an_interrupt_at_any_moment_of_the_start(
        self, kind: Any, workers: int, dataset: StoreDataset
    ) -> None:
        before = signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGINT))
        try:
            for moment_s in np.linspace(0.0001, 0.04, 10):
                loader = Loader(dataset, 2, workers, kind=kind, transform=slow, persistent_workers=True)
                with pytest.raises(KeyboardInterrupt):
                    begin(loader, moment_s)
        finally:
            signal.signal(signal.SIGALRM, before)

    def test_two_iterators_at_once_are_independent(self, dataset: StoreDataset) -> None:
        loader = Loader(dataset, 8, 1)
        pairs = list(zip(loader, loader, strict=True))
        assert len(pairs) == len(loader)
        assert all(torch.equal(one[1], other[1]) for one, other in pairs)

    def test_a_forked_child_starts_its_own_workers(self, dataset: StoreDataset) -> None:
        loader = Loader(dataset, 8, 2, persistent_workers=True, transform=process_number)
        workers = {worker for worker, _ in loader}
        child = os.fork()
        if not child:
            others = {worker for worker, _ in loader}
            os._exit(0 if len(others) == 2 and not workers & others else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert {worker for worker, _ in loader} == workers


RESUMED: dict[str, Callable[[StoreDataset], dict[str, Any]]] = {
    "in order": lambda dataset: {},
    "shuffled": lambda dataset: {"shuffle": True},
    "seeded": lambda dataset: {"shuffle": True, "generator": seeded()},
    "drop_last": lambda dataset: {"shuffle": True, "generator": seeded(), "drop_last": True},
    "subset": lambda dataset: {
        "dataset": Subset(dataset, range(5, 60)),
        "shuffle": True,
        "generator": seeded(),
    },
    "one of three ranks": lambda dataset: {"sampler": DistributedSampler(dataset, 3, 1, seed=5)},
    "its own generator": lambda dataset: {
        "sampler": WeightedRandomSampler([1.0] * COUNT, COUNT, generator=seeded()),
        "generator": torch.Generator().manual_seed(9),
    },
    "with replacement": lambda dataset: {
        "sampler": RandomSampler(dataset, replacement=True, num_samples=200, generator=seeded())
    },
    "batches": lambda dataset: {"batch_sampler": BatchSampler(RandomSampler(dataset), 4, drop_last=True)},
}


class TestResume:
    @staticmethod
    def make(name: str, dataset: StoreDataset, **settings: Any) -> Loader:
        chosen = RESUMED[name](dataset)
        if "batch_sampler" not in chosen:
            chosen["batch_size"] = 4
        return Loader(**{"dataset": dataset, **settings, **chosen})

    @staticmethod
    def epochs(loader: Loader, numbers: range) -> Iterator[list[list[int]]]:
        """Yield who the samples of each epoch's batches are."""
        for number in numbers:
            if isinstance(loader.sampler, DistributedSampler):
                loader.sampler.set_epoch(number)
            yield list(map(trained, loader))

    @pytest.mark.thinned
    @pytest.mark.parametrize(
        "settings",
        [
            {"workers": 0},
            {"workers": 2},
            {"workers": 2, "persistent_workers": True},
            {"workers": 2, "kind": "threads"},
            {"workers": 1, "kind": "threads", "persistent_workers": True},
        ],
        ids=str,
    )
    @pytest.mark.parametrize("name", RESUMED)
    def test_goes_on_with_the_rest_and_the_next_epochs(
        self, name: str, settings: dict[str, Any], dataset: StoreDataset
    ) -> None:
        torch.manual_seed(3)
        loader = self.make(name, dataset, **settings)
        right = list(self.epochs(loader, range(3)))
        count = len(right[1])
        # Before all, in the middle of an epoch, between two, and after a last batch.
        for epoch, place in [(0, 0), (0, 3), (1, 0), (1, count // 2), (1, count)]:
            torch.manual_seed(3)
            stopped = self.make(name, dataset, **settings)
            list(self.epochs(stopped, range(epoch)))
            if isinstance(stopped.sampler, DistributedSampler):
                stopped.sampler.set_epoch(epoch)
            batches = iter(stopped) if place else iter(())
            assert [trained(next(batches)) for _ in range(place)] == right[epoch][:place]
            state, random_state = json.loads(json.dumps(stopped.state_dict())), torch.get_rng_state()
            del batches, stopped
            assert (state["epoch"], state["place"]) == (epoch, place)
            torch.manual_seed(0)  # as another program begins
            resumed = self.make(name, dataset, **settings)
            resumed.load_state_dict(state)
            assert resumed.state_dict() == state
            torch.set_rng_state(random_state)
            rest = list(self.epochs(resumed, range(epoch, 3)))
            assert rest == [right[epoch][place:], *right[epoch + 1 :]], (epoch, place)
            assert resumed.state_dict()["epoch"] == 3

    def test_has_a_small_state_that_other_workers_and_all_ranks_load(self, dataset: StoreDataset) -> None:
        def rank(number: int, workers: int, epoch: int = 2) -> Loader:
            sampler: Any = DistributedSampler(dataset, 3, number)
            sampler.set_epoch(epoch)
            return Loader(dataset, 4, workers, sampler=sampler)

        first = rank(0, 2)
        next(iter(first))
        state = first.state_dict()
        assert len(json.dumps(state)) < 200
        for number in range(3):
            resumed = rank(number, 0, epoch=0)
            resumed.load_state_dict(state)
            assert list(map(trained, resumed)) == list(map(trained, rank(number, 0)))[1:]
        shuffled = Loader(dataset, 4, shuffle=True)
        next(iter(shuffled))
        assert len(json.dumps(shuffled.state_dict())) < 5000

    def test_another_loaders_state_is_refused(self, dataset: StoreDataset) -> None:
        def make(**settings: Any) -> Loader:
            usual: dict[str, Any] = {"dataset": dataset, "batch_size": 4, "generator": seeded()}
            usual["shuffle"] = None if "sampler" in settings else True
            return Loader(**{**usual, **settings})

        state = make().state_dict()
        ranks = make(sampler=DistributedSampler(dataset, 3, 0))
        for name, other in {
            "samples": make(dataset=Subset(dataset, range(9))),
            "batch_size": make(batch_size=8),
            "drop_last": make(drop_last=True),
            "seed": make(generator=torch.Generator().manual_seed(8)),
            "sampler": make(shuffle=False),
        }.items():
            with pytest.raises(ValueError, match=f"{name}=.* this one has {name}=") as caught:
                other.load_state_dict(state)
            assert "\n" not in str(caught.value)
        with pytest.raises(ValueError, match="ranks=3, and this one has ranks=2"):
            make(sampler=DistributedSampler(dataset, 2, 0)).load_state_dict(ranks.state_dict())
        with pytest.raises(ValueError, match="not the state of"):
            make().load_state_dict({"epoch": 1})

    def test_in_another_epoch_than_the_samplers_is_refused(self, dataset: StoreDataset) -> None:
        def make() -> Loader:
            sampler: Any = DistributedSampler(dataset, 3, 1)
            return Loader(dataset, 4, sampler=sampler)

        stopped, resumed = make(), make()
        assert isinstance(stopped.sampler, DistributedSampler)
        assert isinstance(resumed.sampler, DistributedSampler)
        stopped.sampler.set_epoch(2)
        next(iter(stopped))
        resumed.load_state_dict(stopped.state_dict())
        resumed.sampler.set_epoch(0)
        with pytest.raises(ValueError, match=r"epoch 2, .* 0: go on with set_epoch\(2\)"):
            list(resumed)


def trained(batch: Any) -> list[int]:
    """Return who the samples of a batch are, and draw from torch's generator as a training step does."""
    torch.rand(1)
    return [hash(image.numpy().tobytes()) for image in batch[0]]


def begin(loader: Loader, interrupted_after_s: float) -> None:
    signal.setitimer(signal.ITIMER_REAL, interrupted_after_s)
    list(loader)


def process_number(images: torch.Tensor) -> int:
    assert len(images)
    return os.getpid()


def slow(images: torch.Tensor) -> torch.Tensor:
    time.sleep(0.1)
    return images


@pytest.mark.parametrize(
    ("error", "settings"),
    [
        (ValueError, {"batch_size": None}),
        (ValueError, {"kind": "processes"}),
        (ValueError, {"kind": "threads", "workers": 1, "worker_init_fn": print}),
        (ValueError, {"kind": "threads", "workers": 1, "multiprocessing_context": "spawn"}),
        (ValueError, {"transform": print, "collate_fn": print}),
        (TypeError, {"workers": True}),
        (TypeError, {"dataset": [1, 2]}),
    ],
    ids=lambda value: "" if isinstance(value, type) else ",".join(value),
)
def test_bad_settings_are_refused(
    error: type[Exception], settings: dict[str, Any], dataset: StoreDataset
) -> None:
    with pytest.raises(error) as caught:
        Loader(**{"dataset": dataset, **settings})
    assert "\n" not in str(caught.value)
