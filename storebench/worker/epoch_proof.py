"""The proof of an epoch: what one rank or all of a job served, compared with what it should have been."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from storebench.digests import array_digest, set_digest
from storebench.formats.base import Indices
from storebench.loading.augment import round_seed
from storebench.loading.order import order_digest
from storebench.loading.proof import TimedCheck, Truth, coverage, same_order
from storebench.record.schema import Coverage, Digests
from storebench.settings.words import Sync
from storebench.stores.find import read_digest_table
from storebench.training.compute import CpuStep
from storebench.worker.epoch import Epoch
from storebench.worker.setup import Setup


@dataclass(frozen=True, kw_only=True)
class Proof:
    """What was served in an epoch, by one rank or by all of a job, compared with what should have been."""

    served: list[Indices]
    timed: TimedCheck
    coverage: Coverage
    digests: Digests
    weights: str | None = None
    out_of_order: int | None = None

    @property
    def failure(self) -> str | None:
        """The reason why the epoch must not be used, in one line; None if all samples were right."""
        served = self.coverage
        if served.complete and self.out_of_order is None:
            return None
        if served.complete:
            return f"rank {self.out_of_order} was not served the samples of its plan in the drawn order"
        first = "" if self.timed.first_wrong is None else f", the first sample {self.timed.first_wrong}"
        return (
            f"wrong samples: {served.missing} missing, {served.duplicates} served twice; "
            f"of {served.timed_checked} kept from the timed batches {served.timed_wrong} wrong{first}"
        )


def prove(setup: Setup, epoch: Epoch) -> Proof:
    """Compare the kept samples with the store's digests, and count the served samples."""
    timed, keeper = TimedCheck(), epoch.keeper
    assert keeper is not None, "the epoch was timed"
    if not setup.traits.ready_made:
        truth = Truth(
            store=setup.job.store,
            backend=setup.cell.backend,
            table=read_digest_table(setup.job.store, setup.manifest),
            augment=setup.augment,
            seed=round_seed(setup.cell.seed, setup.job.replicate),
        )
        timed = truth.check(keeper.kept, epoch.number)
    # Draw the batches again: readers get the arrays of a plan and could write to them.
    planned = setup.sampling.batches(epoch.number)
    proof = _proof(planned, epoch.served, timed, epoch.losses, keeper.paused_s)
    in_order = same_order(planned, epoch.served)
    step, weights = setup.step, None
    if setup.trainer.ranks > 1 and setup.cell.sync is not Sync.NONE and isinstance(step, CpuStep):
        arrays = (parameter.detach().cpu().numpy() for parameter in step.network.parameters())
        weights = set_digest(bytes.fromhex(array_digest(array)) for array in arrays)
    return dataclasses.replace(
        proof, weights=weights, out_of_order=None if in_order else setup.membership.rank
    )


def joined_proof(planned: Sequence[Indices], proofs: Sequence[Proof], losses: Sequence[float]) -> Proof:
    """Return the proof of a job's epoch from those of its ranks: over all samples of all ranks together."""
    served = [batch for step in zip(*(proof.served for proof in proofs), strict=True) for batch in step]
    timed = TimedCheck(
        checked=sum(proof.timed.checked for proof in proofs),
        wrong=sum(proof.timed.wrong for proof in proofs),
        first_wrong=next((proof.timed.first_wrong for proof in proofs if proof.timed.wrong), None),
    )
    proof_s = sum(proof.coverage.proof_s for proof in proofs)
    proof = _proof(planned, served, timed, losses, proof_s)
    out_of_order = next((proof.out_of_order for proof in proofs if proof.out_of_order is not None), None)
    return dataclasses.replace(proof, out_of_order=out_of_order)


def _proof(
    planned: Sequence[Indices],
    served: list[Indices],
    timed: TimedCheck,
    losses: Sequence[float],
    proof_s: float,
) -> Proof:
    return Proof(
        served=served,
        timed=timed,
        coverage=dataclasses.replace(coverage(planned, served, timed), proof_s=proof_s),
        digests=Digests(
            order=order_digest(served),
            loss=array_digest(np.asarray(losses, dtype=np.float32)) if losses else None,
        ),
    )
