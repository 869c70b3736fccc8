"""Prove that an epoch served each sample once, with the dataset's pixels, in the order that was drawn."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from storebench.digests import array_digest
from storebench.loading.batch import EpochPlan
from storebench.loading.checks import PixelCheck, check_pixels, coverage, order_digest
from storebench.loading.kept import TimedCheck, Truth
from storebench.results import Coverage, Digests
from storebench.stores.find import read_digest_table
from storebench.worker.epoch import Evidence
from storebench.worker.setup import Setup


@dataclass(frozen=True, kw_only=True)
class Proof:
    """The comparisons made after an epoch.

    Attributes
    ----------
    coverage
        Counts of the served, missing, repeated and wrong samples.
    pixels
        Comparison of the samples of the first pass, served again outside the timer.
    timed
        Comparison of the samples that were kept during the timed pass.
    digests
        Digests of samples, order and losses.
    """

    coverage: Coverage
    pixels: PixelCheck
    timed: TimedCheck
    digests: Digests

    @property
    def failure(self) -> str | None:
        """The reason why the epoch must not be used, in one line; None if all samples were right."""
        served = self.coverage
        if served.complete:
            return None
        return (
            f"wrong samples: {served.missing} missing, {served.duplicates} served twice, "
            f"{served.pixels_wrong} of {served.pixels_checked} with wrong pixels{_first(self.pixels)}; "
            f"of {served.timed_checked} kept from the timed batches {served.timed_wrong} wrong{_first(self.timed)}"
        )


def prove(setup: Setup, number: int, evidence: Evidence) -> Proof:
    """Compare the kept samples and a replay of the epoch with the store's digests, and count the served samples."""
    timed = _check_timed(setup, number, evidence)
    pixels = _check_pixels(setup, number)
    # Draw the batches again: readers get the arrays of a plan and could write to them.
    counted = coverage(setup.batches(number), evidence.served, pixels)
    return Proof(
        coverage=dataclasses.replace(
            counted,
            timed_checked=timed.checked,
            timed_wrong=timed.wrong,
            proof_s=evidence.paused_s,
            decoder_difference=pixels.difference,
        ),
        pixels=pixels,
        timed=timed,
        digests=Digests(
            samples=pixels.digest,
            order=order_digest(evidence.served),
            loss=_loss_digest(evidence.losses),
            prepared=pixels.prepared,
        ),
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
        seed=setup.cell.seed,
    )
    return truth.check(evidence.keeper.kept, number)


def _check_pixels(setup: Setup, number: int) -> PixelCheck:
    """Replay the epoch's first pass through the same loader, untimed, and compare the digest of every sample."""
    if not setup.job.check_pixels or setup.traits.ready_made:
        return PixelCheck()
    table = read_digest_table(setup.job.store, setup.manifest)
    plan = EpochPlan(epoch=number, batches=setup.batches(number, passes=1), check=True)
    setup.progress.begin(f"the check of epoch {number}")
    return check_pixels(setup.served(plan), table)


def _first(check: PixelCheck | TimedCheck) -> str:
    return "" if check.first_wrong is None else f", the first sample {check.first_wrong}"


def _loss_digest(losses: Sequence[float]) -> str | None:
    return array_digest(np.asarray(losses, dtype=np.float32)) if losses else None
