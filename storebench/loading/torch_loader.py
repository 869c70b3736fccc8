"""A DataLoader over a store whose workers hand batches over without copying them: `storebench.Loader`."""

import base64
import collections
import contextlib
import functools
import itertools
import multiprocessing
import os
import random
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing import util as process_util
from multiprocessing.context import BaseContext
from typing import Any, Literal, cast

import numpy as np
import torch
import torch.utils.data as torch_data
from torch.utils.data._utils import pin_memory as torch_pinning
from torch.utils.data._utils import worker as torch_worker

from storebench.errors import StorebenchError
from storebench.formats.base import Indices, Reader
from storebench.loading.batch import Allocate, EpochPlan, LoadedBatch, LoadJob
from storebench.loading.ring import RingLoader
from storebench.loading.threads import ThreadLoader
from storebench.loading.torch_dataset import OPENED_BEFORE_A_FORK, StoreDataset
from storebench.loading.worker_queues import LaneLoader

# Batches per worker that are drawn from the sampler at once; a sampler may be endless.
_PLANNED = 1_000

_KINDS: dict[str, type[LaneLoader]] = {"ring": RingLoader, "threads": ThreadLoader}


@dataclass(frozen=True, kw_only=True)
class _Prepare:
    """The transforms of a training script."""

    dataset: StoreDataset
    transform: Callable[[Any], Any] | None
    collate: Callable[[list[Any]], Any] | None
    init: Callable[[int], None] | None
    workers: int
    seed: int

    @property
    def by_sample(self) -> bool:
        return self.dataset.pil or self.dataset.transform is not None or self.collate is not None

    @property
    def is_view(self) -> bool:
        return self.transform is None and not self.by_sample

    def __call__(self, pixels: torch.Tensor, /) -> Any:
        images = pixels.permute(0, 3, 1, 2)
        return images if self.transform is None else self.transform(images)

    def batch(self, reader: Reader, indices: Indices, allocate: Allocate, /) -> Any:
        samples = self.dataset.samples(reader, indices, allocate)
        if self.collate is not None:
            return self.collate(samples)
        images = torch_data.default_collate([image for image, _ in samples])
        return images if self.transform is None else self.transform(images)

    def enter(self, worker: int, /) -> None:
        """Seed a worker process as the DataLoader does, so that random transforms draw the same."""
        seed = self.seed + worker
        random.seed(seed)
        torch.manual_seed(seed)
        state = torch_worker._generate_state(self.seed, worker)  # type: ignore[no-untyped-call]  # noqa: SLF001
        np.random.seed(state)  # noqa: NPY002
        torch_worker._worker_info = torch_worker.WorkerInfo(  # noqa: SLF001
            id=worker, num_workers=self.workers, seed=seed, dataset=self.dataset
        )
        if self.init is not None:
            self.init(worker)


@dataclass(kw_only=True)
class _Progress:
    """How far an epoch has been served, and the random state that its order is drawn from."""

    epoch: int
    batches: int = 0  # served
    begun: bool = False  # nothing more is drawn for its workers
    random: torch.Tensor | None = None  # state of the order's generator before the order is drawn
    ended: bool = False


class Loader(torch_data.DataLoader[Any]):
    """Load batches of a store as `torch.utils.data.DataLoader` does, but hand them over without copying.

    With the same arguments and seed it yields the same batches. Images are in the memory format
    ``channels_last``, because stores keep them so; ``transform=torch.Tensor.contiguous`` changes that.
    A batch stays valid for as long as anything refers to it.

    Parameters
    ----------
    dataset
        The store, or a `torch.utils.data.Subset` of one. Its transform is applied to each image.
    batch_size, shuffle, sampler, batch_sampler, drop_last, generator, persistent_workers, worker_init_fn
        As for the DataLoader. `sampler` may be a `DistributedSampler`, whose `set_epoch` is called as usual.
    workers
        Producers beside the loop; with 0 the loop's own thread makes the batches.
    kind
        ``"ring"`` for worker processes that share memory with the loop; ``"threads"`` for threads of this process,
        which suit readers and transforms that release the GIL, and which share its random state.
    transform
        Called in the workers with each batch's images, uint8 [n, C, H, W]; its result takes their place.
        It must be picklable unless workers are forked, and its result in any case.
    collate_fn
        As for the DataLoader: called in the workers with each batch's samples, it returns the loop's batch. In place
        of `transform`, for batches other than images and labels.
    pin_memory
        Whether batches are copied to page-locked memory, if there is an accelerator.
    multiprocessing_context
        How worker processes start: ``"fork"``, ``"spawn"``, ``"forkserver"``; None for Python's default.
    num_workers
        The DataLoader's name of `workers`.

    Raises
    ------
    TypeError
        `dataset` is not a `StoreDataset`, or a subset of one.
    ValueError
        An impossible value or combination.
    CellFailedError
        While iterating: a worker process died. Other errors of a worker are raised as they are, with
        its traceback as a note.

    Examples
    --------
    >>> import storebench
    >>> dataset = storebench.StoreDataset("stores/mnist-train/lmdb+raw")
    >>> loader = storebench.Loader(dataset, 32, workers=1, shuffle=True)
    >>> sum(len(labels) for images, labels in loader) == len(dataset)
    True
    """

    def __init__(
        self,
        dataset: StoreDataset | torch_data.Subset[tuple[Any, int]],
        batch_size: int = 1,
        workers: int = 0,
        *,
        shuffle: bool | None = None,
        sampler: torch_data.Sampler[int] | Iterable[int] | None = None,
        batch_sampler: torch_data.Sampler[list[int]] | Iterable[Sequence[int]] | None = None,
        drop_last: bool = False,
        kind: Literal["ring", "threads"] = "ring",
        transform: Callable[[torch.Tensor], Any] | None = None,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool = False,
        generator: torch.Generator | None = None,
        multiprocessing_context: BaseContext | str | None = None,
        worker_init_fn: Callable[[int], None] | None = None,
        persistent_workers: bool = False,
        num_workers: int | None = None,
    ) -> None:
        store: Any = dataset
        places: Sequence[int] | None = None  # in the store, of the samples of a subset
        while type(store) is torch_data.Subset:
            places = store.indices if places is None else [store.indices[place] for place in places]
            store = store.dataset
        if not isinstance(store, StoreDataset) or type(store).__getitem__ is not StoreDataset.__getitem__:
            raise TypeError(
                f"dataset must be a storebench.StoreDataset, or a Subset of one, not {type(store).__name__}: "
                "sampler= takes some samples of one, and 'storebench convert' makes a store of images"
            )
        if isinstance(workers, bool):
            raise TypeError("workers must be an integer; shuffle is given by name")
        if kind not in _KINDS:
            raise ValueError(f"kind must be 'ring' or 'threads', not {kind!r}")
        if kind == "threads" and (worker_init_fn is not None or multiprocessing_context is not None):
            raise ValueError(
                "worker_init_fn and multiprocessing_context are for worker processes: kind='ring'"
            )
        if transform is not None and collate_fn is not None:
            raise ValueError("transform and collate_fn exclude each other: call one in the other")
        if batch_size is None:
            raise ValueError("batch_size must be a positive integer, not None")
        super().__init__(
            dataset,
            batch_size,
            shuffle,
            sampler,
            cast("Any", batch_sampler),
            num_workers=workers if num_workers is None else num_workers,
            collate_fn=collate_fn,
            pin_memory=pin_memory,
            drop_last=drop_last,
            multiprocessing_context=multiprocessing_context,
            worker_init_fn=worker_init_fn,
            generator=generator,
            persistent_workers=persistent_workers,
        )
        self._store, self._places = store, places
        self.kind = kind
        self.transform = transform
        self._collates = collate_fn is not None
        self._pins = pin_memory and torch.cuda.is_available()
        self._kept: _Opened | None = None
        self._progress: _Progress | None = None  # of the epoch that was begun last
        self._resumed: _Progress | None = None  # of the epoch that comes next, if a state was loaded

    def state_dict(self) -> dict[str, Any]:
        """Return the place in the epoch that was begun last, for `load_state_dict`.

        Batches that workers have made ahead do not count. After its last batch was asked for, an epoch has ended, and
        the place is the beginning of the next. The state is plain data of at most 5 KB, for `torch.save` or JSON.
        """
        progress = self._resumed or self._progress
        if progress is None or progress.ended:
            progress = self._next()
        drawn = None if progress.random is None else zlib.compress(progress.random.numpy().tobytes())
        return {
            "epoch": progress.epoch,
            "place": progress.batches,
            "begun": progress.begun,
            "random": None if drawn is None else base64.b64encode(drawn).decode(),
            **self._identity(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next epoch be the rest of the one that `state` was taken in; the epochs after it follow as ever.

        All ranks may load the state of one. A sampler's `set_epoch` is called. The number and kind of workers may
        differ. Random transforms draw anew, and an order without a generator of its own leaves torch's as it is.

        Raises
        ------
        ValueError
            It is no state, or one of a loader with other samples, batches, sampler, ranks or seed.
        """
        for name, value in self._identity().items():
            if name not in state:
                raise ValueError(f"not the state of a storebench.Loader: it has no {name!r}")
            if state[name] != value:
                raise ValueError(
                    f"the state is of a loader with {name}={state[name]!r}, and this one has {name}={value!r}: "
                    "make it as the one that was saved"
                )
        epoch, batches, drawn = state["epoch"], state["place"], None
        if state["random"] is not None:
            content = zlib.decompress(base64.b64decode(state["random"]))
            drawn = torch.frombuffer(bytearray(content), dtype=torch.uint8)
        self._resumed = _Progress(epoch=epoch, batches=batches, begun=state["begun"], random=drawn)
        if batches and hasattr(self._drawing, "set_epoch"):
            self._drawing.set_epoch(epoch)

    @property
    def _drawing(self) -> Any:
        """The sampler that draws the order."""
        return getattr(self.batch_sampler, "sampler", self.batch_sampler)

    @property
    def _drawn_from(self) -> torch.Generator | None:
        """The order's own generator; None if it has none, or draws from torch's."""
        own = getattr(self._drawing, "generator", None)
        return own if isinstance(own, torch.Generator) else None

    def _identity(self) -> dict[str, Any]:
        """Return the facts that decide what an epoch's batches are."""
        own, seed = self._drawn_from, getattr(self._drawing, "seed", None)
        return {
            "samples": len(self.dataset),  # type: ignore[arg-type]  # a store has a length, and so have its subsets
            "batch_size": getattr(self.batch_sampler, "batch_size", None),
            "drop_last": getattr(self.batch_sampler, "drop_last", None),
            "sampler": type(self._drawing).__name__,
            "ranks": getattr(self._drawing, "num_replicas", 1),
            "seed": own.initial_seed() if own is not None else seed if isinstance(seed, int) else None,
        }

    def _next(self) -> _Progress:
        own = self._drawn_from
        return _Progress(
            epoch=0 if self._progress is None else self._progress.epoch + 1,
            begun=self._kept is not None and self.num_workers > 0,
            random=None if own is None else own.get_state(),
        )

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]  # torch's iterator has more, which is private
        batches = iter(cast("Iterable[Sequence[int]]", self.batch_sampler))
        if self._kept is not None and self._kept.process != os.getpid():
            OPENED_BEFORE_A_FORK.append(self._kept)
            self._kept = None
        resumed, progress = self._resumed, self._resumed or self._next()
        epoch = progress.epoch
        if hasattr(self._drawing, "set_epoch"):
            epoch = getattr(self._drawing, "epoch", epoch)
        if progress.batches and epoch != progress.epoch:
            raise ValueError(
                f"the state is of epoch {progress.epoch}, and the sampler's is {epoch}:"
                f" go on with set_epoch({progress.epoch})"
            )
        progress.epoch = epoch
        self._progress, self._resumed = progress, None
        goes_on = resumed is not None and progress.begun
        is_drawn = goes_on and (progress.batches > 0 or progress.random is not None)
        generator, seed = self._drawn_from or torch.default_generator, 0
        with torch.random.fork_rng([], enabled=goes_on):
            if resumed is not None and resumed.random is not None:
                generator.set_state(resumed.random)
            if not progress.begun or self._kept is None:
                # The DataLoader draws it here, too, and before its sampler draws anything.
                seed = int(torch.empty((), dtype=torch.int64).random_(generator=self.generator).item())
            if is_drawn:
                if progress.random is not None:
                    generator.set_state(progress.random)
                collections.deque(itertools.islice(batches, progress.batches), 0)
                batches = itertools.chain(list(itertools.islice(batches, 1)), batches)
        return self._serve(batches, seed, progress, is_drawn=is_drawn)

    def _serve(
        self, batches: Iterator[Sequence[int]], seed: int, progress: _Progress, *, is_drawn: bool
    ) -> Iterator[Any]:
        keeps = self.persistent_workers or not self.num_workers
        count = _PLANNED * max(1, self.num_workers)
        opened = self._kept
        try:
            if opened is None:
                opened = _Opened(self, self._loader(seed))
                opened.loader.open()
                self._kept = opened if keeps else None
            if (places := self._places) is not None:
                batches = ([places[index] for index in batch] for batch in batches)
            if not is_drawn:
                progress.random, progress.begun = self._random(), True
            given = functools.partial(self._given, progress)
            while plan := [self._store.checked(batch) for batch in itertools.islice(batches, count)]:
                yield from map(given, opened.loader.epoch(EpochPlan(epoch=0, batches=plan)))
            progress.ended = True
        finally:
            if opened is not None and (opened.loader.lost or opened is not self._kept):
                self._kept = None
                opened.close()

    def _random(self) -> torch.Tensor | None:
        """Return the state of torch's generator that the order is drawn from next; None if none is used."""
        own, without = self._drawn_from, (torch_data.SequentialSampler, torch_data.DistributedSampler)
        if own is None and isinstance(self._drawing, without):
            return None
        return (own or torch.default_generator).get_state()

    def _loader(self, seed: int) -> LaneLoader:
        dataset = self._store
        prepare = _Prepare(
            dataset=dataset,
            transform=self.transform,
            collate=self.collate_fn if self._collates else None,
            init=self.worker_init_fn,
            workers=self.num_workers,
            seed=seed,
        )
        job = LoadJob(store=dataset.store, backend=dataset.backend, shuffle=False, prepare=prepare)
        loader = _KINDS[self.kind](job, workers=self.num_workers, pin=self._pins)
        if isinstance(loader, RingLoader):
            loader.context = self.multiprocessing_context or multiprocessing.get_context()
        return loader

    def _given(self, progress: _Progress, batch: LoadedBatch) -> Any:
        given = batch.pixels if self._collates else [batch.pixels, torch.from_numpy(batch.labels)]
        if self._pins:
            given = torch_pinning.pin_memory(given)  # type: ignore[no-untyped-call]
        progress.batches += 1
        return given


class _Opened:
    """The open producers of a `Loader`, which are closed at the latest when that is gone or the program ends."""

    def __init__(self, owner: Loader, loader: LaneLoader) -> None:
        self.process = os.getpid()
        self.loader = loader
        self.close = process_util.Finalize(owner, _close, args=(loader,), exitpriority=0)


def _close(loader: LaneLoader) -> None:
    with contextlib.suppress(StorebenchError):  # a worker that died was reported already
        loader.close()
