"""Prove that an epoch served each sample once, with the dataset's pixels, in the order that was drawn."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from storebench.digests import array_digest, set_digest
from storebench.formats.base import Indices
from storebench.loading.augment import round_seed
from storebench.loading.checks import (
    PixelCheck,
    ServedPixels,
    check_pixels,
    coverage,
    joined_pixels,
    same_order,
    served_pixels,
)
from storebench.loading.kept import TimedCheck, Truth
from storebench.loading.order import order_digest
from storebench.results import Coverage, Digests
from storebench.settings.words import Sync
from storebench.stores.find import read_digest_table
from storebench.training.steps import CpuStep
from storebench.worker.epoch import Evidence
from storebench.worker.setup import Setup


@dataclass(frozen=True, kw_only=True)
class Proof:
    """The comparisons made after an epoch."""

    coverage: Coverage
    pixels: PixelCheck
    timed: TimedCheck
    digests: Digests
    weights: str | None = None
    served: list[Indices] = field(default_factory=list)
    replayed: ServedPixels | None = None
    out_of_order: int | None = None

    @property
    def failure(self) -> str | None:
        """The reason why the epoch must not be used, in one line; None if all samples were right."""
        served = self.coverage
        if served.complete and self.out_of_order is None:
            return None
        if served.complete:
            return f"rank {self.out_of_order} was not served the samples of its plan in the drawn order"
        return (
            f"wrong samples: {served.missing} missing, {served.duplicates} served twice, "
            f"{served.pixels_wrong} of {served.pixels_checked} with wrong pixels{_first(self.pixels)}; "
            f"of {served.timed_checked} kept from the timed batches {served.timed_wrong} wrong{_first(self.timed)}"
        )


def prove(setup: Setup, number: int, evidence: Evidence) -> Proof:
    """Compare the kept samples and a replay of the epoch with the store's digests, and count the served samples."""
    timed = _check_timed(setup, number, evidence)
    replayed = _replay(setup, number)
    # Draw the batches again: readers get the arrays of a plan and could write to them.
    planned = setup.batches(number)
    observed = _Observed(
        served=evidence.served,
        replayed=replayed,
        timed=timed,
        proof_s=evidence.paused_s,
        losses=evidence.losses,
        out_of_order=None if same_order(planned, evidence.served) else setup.membership.rank,
    )
    return dataclasses.replace(_proof(setup, planned, observed), weights=_weights_digest(setup))


def joined_proof(setup: Setup, number: int, proofs: Sequence[Proof], losses: Sequence[float]) -> Proof:
    """Return the proof of a job's epoch from those of its ranks: over all samples of all ranks together."""
    replays = [proof.replayed for proof in proofs if proof.replayed is not None]
    observed = _Observed(
        served=[batch for step in zip(*(proof.served for proof in proofs), strict=True) for batch in step],
        replayed=joined_pixels(replays) if replays else None,
        timed=TimedCheck(
            checked=sum(proof.timed.checked for proof in proofs),
            wrong=sum(proof.timed.wrong for proof in proofs),
            first_wrong=next((proof.timed.first_wrong for proof in proofs if proof.timed.wrong), None),
        ),
        proof_s=sum(proof.coverage.proof_s for proof in proofs),
        losses=losses,
        out_of_order=next((proof.out_of_order for proof in proofs if proof.out_of_order is not None), None),
    )
    return _proof(setup, setup.expected(number), observed)


@dataclass(frozen=True, kw_only=True)
class _Observed:
    """What one rank, or all ranks together, observed of an epoch; the fields have the meanings of `Proof`."""

    served: list[Indices]
    replayed: ServedPixels | None
    timed: TimedCheck
    losses: Sequence[float]
    proof_s: float
    out_of_order: int | None


def _proof(setup: Setup, planned: Sequence[Indices], observed: _Observed) -> Proof:
    """Return the proof that the planned samples were served, from what was observed."""
    pixels = PixelCheck()
    if observed.replayed is not None:
        pixels = check_pixels(observed.replayed, read_digest_table(setup.job.store, setup.manifest))
    return Proof(
        coverage=dataclasses.replace(
            coverage(planned, observed.served, pixels),
            timed_checked=observed.timed.checked,
            timed_wrong=observed.timed.wrong,
            proof_s=observed.proof_s,
            decoder_difference=pixels.difference,
        ),
        pixels=pixels,
        timed=observed.timed,
        digests=Digests(
            samples=pixels.digest,
            order=order_digest(observed.served),
            loss=_loss_digest(observed.losses),
            prepared=pixels.prepared,
        ),
        served=observed.served,
        replayed=observed.replayed,
        out_of_order=observed.out_of_order,
    )


def _check_timed(setup: Setup, number: int, evidence: Evidence) -> TimedCheck:
    """Compare the samples that were kept during the timed pass."""
    if setup.traits.ready_made:
        return TimedCheck()
    truth = Truth(
        store=setup.job.store,
        backend=setup.cell.backend,
        table=read_digest_table(setup.job.store, setup.manifest),
        augment=setup.augment,
        seed=round_seed(setup.cell.seed, setup.job.replicate),
    )
    return truth.check(evidence.keeper.kept, number)


def _replay(setup: Setup, number: int) -> ServedPixels | None:
    """Serve the epoch's first pass again through the same loader, untimed, with the digest of every sample."""
    if not setup.job.check_pixels or setup.traits.ready_made:
        return None
    # Empty batches are included: in these steps, a rank may have to send samples to others.
    plan = setup.plan(number, setup.batches(number, passes=1), passes=1, check=True)
    setup.progress.begin(f"the check of epoch {number}")
    return served_pixels(batch for batch in setup.served(plan) if len(batch.indices))


def _weights_digest(setup: Setup) -> str | None:
    """Return the digest of this rank's weights if it trains its network together with other ranks."""
    step = setup.step
    if setup.trainer.ranks == 1 or setup.cell.sync is Sync.NONE or not isinstance(step, CpuStep):
        return None
    arrays = (parameter.detach().cpu().numpy() for parameter in step.network.parameters())
    return set_digest(bytes.fromhex(array_digest(array)) for array in arrays)


def _first(check: PixelCheck | TimedCheck) -> str:
    return "" if check.first_wrong is None else f", the first sample {check.first_wrong}"


def _loss_digest(losses: Sequence[float]) -> str | None:
    return array_digest(np.asarray(losses, dtype=np.float32)) if losses else None
