"""Planted jobs of trainers: records with chosen games and accuracies, for tests of reports."""

from collections.abc import Sequence
from typing import Any

from storebench.ranks.trainers import pairs
from storebench.record.schema import Game, JobFacts, RankFacts, Record, TrainerFacts, TrainersFacts
from storebench.settings.words import Sync
from tests.support.planted import make_record

TRAINERS, EVERY, STEPS, HELD_OUT = 4, 20, 100, 100


def trainers_record(
    accuracy: float | None, *, every: int = EVERY, seed: int = 0, replicate: int = 0, **changes: Any
) -> Record:
    """Return a record of four trainers with the given test accuracy of the best one, with games unless `every` is 0."""
    facts = TrainersFacts(
        per_trainer=tuple(
            TrainerFacts(
                training_samples=900, held_out_samples=HELD_OUT, held_out_score=0.5, test_accuracy=accuracy
            )
            for _ in range(TRAINERS)
        ),
        best_trainer=0,
        tournaments=STEPS // every if every else 0,
        games=tuple(_games(seed, every)) if every else (),
        tournament_s=1.0 if every else 0.0,
        tournament_samples=2 * TRAINERS * HELD_OUT * (STEPS // every) if every else 0,
    )
    return make_record(
        "lmdb",
        steps=STEPS,
        replicate=replicate,
        ranks=TRAINERS,
        trainers=TRAINERS,
        tournament_steps=every,
        seed=seed,
        test_accuracy=accuracy,
        job=_job(facts),
        **({"cache": "warm"} | changes),
    )


def contest(gains: Sequence[float], *, base: float = 0.9, **changes: Any) -> list[Record]:
    """Return, for each gain, a seed with games and its control with the accuracy `base`."""
    return [
        record
        for seed, gain in enumerate(gains)
        for record in (
            trainers_record(base + gain, seed=seed, **changes),
            trainers_record(base, every=0, seed=seed, **changes),
        )
    ]


def _games(seed: int, every: int) -> list[Game]:
    found = []
    for number in range(STEPS // every):
        for one, other in pairs(number, trainers=TRAINERS, seed=seed):
            for trainer, partner in ((one, other), (other, one)):
                own, others = (0.5 + 0.05 * number + 0.01 * which for which in (trainer, partner))
                found.append(
                    Game(
                        number=number,
                        step=(number + 1) * every,
                        trainer=trainer,
                        partner=partner,
                        samples=HELD_OUT,
                        own_score=own,
                        partner_score=others,
                        winner=max(trainer, partner),
                        sent_bytes=8000,
                        seconds=0.1,
                    )
                )
    return sorted(found, key=lambda game: (game.number, game.trainer))


def _job(facts: TrainersFacts) -> JobFacts:
    rank = RankFacts(samples=3200, seconds=1.0, samples_per_s=3200.0, data_wait_s=0.2, compute_s=0.8)
    return JobFacts(
        ranks=TRAINERS,
        sync=Sync.OVERLAPPED,
        global_batch_size=TRAINERS * 32,
        per_rank=(rank,) * TRAINERS,
        samples_per_s_min=3200.0,
        samples_per_s_median=3200.0,
        samples_per_s_max=3200.0,
        skew=0.0,
        samples_per_s_until_first_end=12_800.0,
        unique_samples=3600,
        total_samples=3600,
        trainers=facts,
    )
