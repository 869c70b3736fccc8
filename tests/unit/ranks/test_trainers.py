"""Trainers of a job: their ranks, their samples and their pairs, from numbers that every rank knows."""

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from storebench.ranks.membership import Membership
from storebench.ranks.trainers import (
    Trainer,
    pairs,
    part_sizes,
    partner_of,
    parts_of,
    tournaments_in,
)
from storebench.record.schema import Game, TrainerFacts
from storebench.settings.words import TrainerData
from storebench.worker.tournament import Played, trainers_facts

PARTITIONED, REPLICATED = TrainerData.PARTITIONED, TrainerData.REPLICATED

numbers = st.integers(0, 10_000)
trainers_drawn = st.integers(1, 17)
seeds = st.integers(0, 2**63 - 1)


@given(number=numbers, trainers=trainers_drawn, seed=seeds)
def test_pairs_are_a_perfect_matching(number: int, trainers: int, seed: int) -> None:
    drawn = pairs(number, trainers=trainers, seed=seed)
    playing = [trainer for pair in drawn for trainer in pair]
    assert len(set(playing)) == len(playing) == trainers - trainers % 2
    assert set(playing) <= set(range(trainers))
    for trainer in range(trainers):
        partner = partner_of(trainer, number, trainers=trainers, seed=seed)
        if partner is None:
            assert trainer not in playing
        else:
            assert partner != trainer
            assert partner_of(partner, number, trainers=trainers, seed=seed) == trainer


@given(count=st.integers(34, 400), trainers=trainers_drawn, seed=seeds)
def test_parts_are_disjoint_and_complete(count: int, trainers: int, seed: int) -> None:
    drawn = parts_of(count, trainers=trainers, data=PARTITIONED, seed=seed)
    every = np.concatenate([np.concatenate([part.training, part.held_out]) for part in drawn])
    assert sorted(every.tolist()) == list(range(count))
    assert len({len(part.training) for part in drawn}) == 1, "all trainers have equally many steps"
    assert min(min(len(part.training), len(part.held_out)) for part in drawn) >= 1
    sizes = [(len(part.training), len(part.held_out)) for part in drawn]
    assert sizes == part_sizes(count, trainers=trainers, data=PARTITIONED)
    assert all(abs(len(part.held_out) - count / trainers / 10) <= 2 for part in drawn)


@given(count=st.integers(2, 400), trainers=trainers_drawn, seed=seeds)
def test_trainers_that_have_all_samples_hold_out_the_same(count: int, trainers: int, seed: int) -> None:
    drawn = parts_of(count, trainers=trainers, data=REPLICATED, seed=seed)
    assert {part.held_out.tobytes() for part in drawn} == {drawn[0].held_out.tobytes()}
    every = np.concatenate([drawn[0].training, drawn[0].held_out])
    assert sorted(every.tolist()) == list(range(count))
    sizes = [(len(part.training), len(part.held_out)) for part in drawn]
    assert sizes == part_sizes(count, trainers=trainers, data=REPLICATED)


def test_consecutive_ranks_form_a_trainer() -> None:
    places = [Trainer.of(Membership(rank=rank, ranks=6, local_ranks=6), 2) for rank in range(6)]
    assert [(place.number, place.rank) for place in places] == [*itertools.product(range(2), range(3))]
    assert {place.ranks for place in places} == {3}
    assert [place.leads for place in places] == [True, False, False] * 2
    assert list(places[0].members(1)) == [3, 4, 5]
    assert [places[1].peer(1), places[5].peer(0)] == [4, 2]


@given(steps=st.integers(1, 50), every=st.integers(1, 60), epochs=st.integers(1, 6))
def test_tournaments_are_counted_over_the_epochs_of_a_process(steps: int, every: int, epochs: int) -> None:
    numbers_of = [tournaments_in(epoch, steps, every) for epoch in range(epochs)]
    found = [number for numbers in numbers_of for number in numbers]
    assert found == list(range(epochs * steps // every))
    for epoch, numbers in enumerate(numbers_of):
        assert all(epoch * steps < (number + 1) * every <= (epoch + 1) * steps for number in numbers)


def played_by(number: int, seconds: float) -> Played:
    """Return the only tournament of a rank of one of two trainers."""
    game = Game(
        number=0, step=10, trainer=number, partner=1 - number, samples=8, own_score=0.5, partner_score=0.25,
        winner=number, sent_bytes=100, seconds=seconds,
    )  # fmt: skip
    return Played(games=[game], tournament_s=[2 * seconds], wait_s=seconds, samples=16)


def test_the_slowest_rank_counts_in_games_and_tournaments() -> None:
    seconds = [(0, 1.0), (0, 3.0), (1, 2.0), (1, 0.5)]
    leading = [
        TrainerFacts(training_samples=72, held_out_samples=8, held_out_score=score) for score in (0.5, 0.6)
    ]
    facts = trainers_facts(leading, [played_by(number, took) for number, took in seconds])
    assert [(game.trainer, game.seconds) for game in facts.games] == [(0, 3.0), (1, 2.0)]
    assert facts.tournament_s == 6.0
    assert facts.tournament_wait_s == 6.5 / 4
    assert facts.tournament_samples == 64
    assert facts.best_trainer == 1
