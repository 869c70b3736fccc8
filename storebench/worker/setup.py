"""The parts of a replicate before its store is opened: manifest, network, loader and page cache."""

import contextlib
import dataclasses
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

import torch

from storebench.codecs import any_size
from storebench.formats.base import Traits
from storebench.formats.origin import code_facts
from storebench.formats.registry import traits_of
from storebench.loading.augment import Augment, round_seed
from storebench.loading.batch import EpochPlan, LoadedBatch, LoadJob, ReaderReport, with_empty_batches
from storebench.loading.loader import BatchLoader, get_loader
from storebench.loading.producer import native_orders
from storebench.probes.cgroup import EmulatedTier, MemoryGroup
from storebench.probes.limited_cache import LimitedCache
from storebench.ranks.group import ALONE, Group
from storebench.ranks.heartbeat import RankProgress
from storebench.ranks.membership import Membership
from storebench.ranks.trainers import Trainer, seed_of
from storebench.record.manifest import Manifest
from storebench.record.schema import Cell, CodeFacts
from storebench.settings.loop_fields import NO_MODEL
from storebench.settings.tiers import find_tier
from storebench.settings.words import ComputeKind, Fill, LoaderKind, Share, Sync
from storebench.training.compute import Step, make_step, warm_up
from storebench.training.models import ModelSpec, get_model
from storebench.worker.cache_state import StoreCache
from storebench.worker.job import CellJob
from storebench.worker.sharding import Sampling

if TYPE_CHECKING:  # a single process does not import it
    from torch.distributed import ProcessGroup


@dataclass(kw_only=True)
class Setup:
    """What one replicate loads with, computes with, and is measured by, made from its job."""

    job: CellJob
    code: CodeFacts
    manifest: Manifest
    pages: StoreCache
    augment: Augment
    step: Step
    loader: BatchLoader
    limit: LimitedCache | None
    tier: EmulatedTier | None
    sampling: Sampling
    opened: list[ReaderReport] = field(default_factory=list)
    group: Group = ALONE
    trainer_group: "ProcessGroup | None" = None

    @classmethod
    def of(cls, job: CellJob, group: Group = ALONE) -> Self:
        """Make the parts, reading only the manifest of the store."""
        cell, tier = job.cell, None
        if cell.tier is not None and job.tier_group is not None:
            tier = EmulatedTier.enter(find_tier(cell.tier), job.store, job.tier_group, job.memory_group)
        code = code_facts(cell.backend.format)
        manifest = Manifest.read(job.store)
        preloads = cell.share is Share.STORE and cell.store_fill is Fill.PRELOAD
        pages = StoreCache(
            cell.cache,
            cell.backend,
            job.store,
            drops=job.drop_caches,
            read_at_opening=preloads,
            remote=bool(job.url),
        )
        model = None if cell.model == NO_MODEL else get_model(cell.model)
        augment = augment_of(cell, manifest, model)
        torch.set_num_threads(cell.threads)
        trainer = Trainer.of(group.membership, cell.trainers)
        together = None
        if not group.membership.alone:
            from storebench.ranks.games import trainer_group

            together = trainer_group(trainer, job.wait_s)
        step = _step(cell, manifest, model, augment, group.membership, trainer, together)
        load = LoadJob(
            store=job.store,
            backend=cell.backend,
            augment=augment,
            seed=round_seed(cell.seed, job.replicate),
            batch_size=cell.batch_size,
            threads=cell.threads,
            shuffle=cell.shuffle,
            passes=cell.passes or 1,
            url=job.url,
        )
        limit = None
        if job.memory_group is not None and cell.memory_bytes is not None:
            limit = LimitedCache(MemoryGroup.at(job.memory_group), cell.memory_bytes, pages.files)
        return cls(
            job=job,
            code=code,
            manifest=manifest,
            pages=pages,
            augment=augment,
            step=step,
            loader=_loader(cell, load, group),
            limit=limit,
            tier=tier,
            group=group,
            sampling=Sampling(
                cell=cell,
                count=manifest.count,
                replicate=job.replicate,
                ranks=group.membership.ranks,
                trainer=trainer,
                native=native_orders(load, manifest) if cell.backend.native_order else None,
            ),
            trainer_group=together,
        )

    @property
    def cell(self) -> Cell:
        return self.job.cell

    @property
    def traits(self) -> Traits:
        return traits_of(self.cell.backend)

    @property
    def trainer(self) -> Trainer:
        return self.sampling.trainer

    @property
    def membership(self) -> Membership:
        """The place of this process among the ranks of its job."""
        return self.group.membership

    @property
    def progress(self) -> RankProgress:
        return self.group.progress

    @property
    def pids(self) -> set[int]:
        return {os.getpid(), *(producer.pid for producer in self.opened)}

    def served(self, plan: EpochPlan) -> Iterator[LoadedBatch]:
        """Return the batches of a plan as the loader serves them; those without samples are made here."""
        full = [indices for indices in plan.batches if len(indices)]
        if self.loader.serves_empty or len(full) == len(plan.batches):
            return self.progress.over(self.loader.epoch(plan))
        batches = self.progress.over(self.loader.epoch(dataclasses.replace(plan, batches=full)))
        shape = self.augment.output_shape(self.manifest.dataset.image_shape)
        return with_empty_batches(batches, plan.batches, shape)

    @property
    def from_memory(self) -> bool:
        """Whether the next epoch comes from memory: of a reader that holds all pixels, or of a filled data store."""
        return self.traits.holds_pixels or self.loader.filled

    def outside_limit(self) -> contextlib.AbstractContextManager[None]:
        """Return a context whose memory does not count against the limit on the page cache."""
        return contextlib.nullcontext() if self.limit is None else self.limit.outside()


def augment_of(cell: Cell, manifest: Manifest, model: ModelSpec | None) -> Augment:
    """Return the preparation of a cell's samples from the images of its store."""
    augment, size = model.augment if model else Augment(), cell.data.image_size
    if any_size(manifest.codec):
        side = size or augment.crop or min(manifest.dataset.image_shape[:2])
        return Augment(mirror=True, resized=side)
    return augment if size is None else dataclasses.replace(augment, crop=None)


def device_of(cell: Cell, membership: Membership) -> str:
    """Return the device of one rank's network: each rank of a node has its own GPU."""
    if membership.alone or not cell.device.startswith("cuda"):
        return cell.device
    return f"cuda:{membership.local_rank}"


def _step(
    cell: Cell,
    manifest: Manifest,
    model: ModelSpec | None,
    augment: Augment,
    me: Membership,
    trainer: Trainer,
    together: "ProcessGroup | None",
) -> Step:
    """Return the training step, with libraries warmed up. Weights depend only on the cell's seed and the trainer."""
    dataset, device = manifest.dataset, device_of(cell, me)
    shape = augment.output_shape(dataset.image_shape)
    seed = cell.seed if trainer.trainers == 1 else seed_of(cell.seed, trainer.number)
    torch.manual_seed(seed)
    if me.alone:
        step = make_step(cell.compute, model, shape, dataset.num_classes, device)
    else:
        from storebench.ranks.data_parallel import make_rank_step

        sync = cell.sync if trainer.ranks > 1 else Sync.NONE
        step = make_rank_step(
            cell.compute, model, shape, dataset.num_classes, device, sync=sync, group=together
        )
    warm_up(step, (cell.batch_size, *shape))
    torch.manual_seed(seed + trainer.rank)
    return step


def _loader(cell: Cell, job: LoadJob, group: Group) -> BatchLoader:
    """Return the loader of this process; it may share reading with other ranks."""
    pin = cell.device.startswith("cuda")
    if cell.share is Share.NONE:
        computes = cell.compute.kind is ComputeKind.REAL
        if cell.workers and cell.loader == LoaderKind.PROCESSES and not computes:
            from storebench.loading.loader import ReceivingLoader

            return ReceivingLoader(job, workers=cell.workers, pin=pin)
        return get_loader(cell.loader)(job, workers=cell.workers, pin=pin)
    if cell.share is Share.NODE:
        from storebench.ranks.node_loader import NodeGuest, NodeReader

        kind = NodeReader if group.membership.leads_node else NodeGuest
        return kind(job, group=group, workers=cell.workers, pin=pin)
    from storebench.ranks.data_store import StoreLoader

    return StoreLoader(job, group=group, fill=cell.store_fill, pin=pin)
