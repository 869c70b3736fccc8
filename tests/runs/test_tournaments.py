"""Tournaments of real ranks: the games, the networks that trainers continue with, and their records."""

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from storebench.formats.base import Batch, Indices, Reader
from storebench.loading.proof import opened_again
from storebench.record.schema import Cell, TrainersFacts
from storebench.record.steps import step_ends
from storebench.worker import tournament
from storebench.worker.setup import Setup
from tests.support.harness_tools import Bench, run_folder_in, steps_of
from tests.support.rank_cells import RankRun, ranked_cell, sound_ranks
from tests.support.same_training import assert_same_losses

TRAINERS, STEPS = 4, 3


def trainers_cell(**matrix: Any) -> Cell:
    """Return a cell of four trainers of one rank each, with a tournament every three steps."""
    small: dict[str, Any] = {"synthetic": True, "limit": 160, "model": "tiny", "batch_size": 6}
    asked = small | {"ranks": TRAINERS, "trainers": TRAINERS, "tournament_steps": STEPS}
    return ranked_cell("lmdb", **(asked | matrix))


@pytest.fixture(scope="module")
def played(bench: Bench, tmp_path_factory: pytest.TempPathFactory) -> RankRun:
    """Train with the seed 5 once, for tests that ask nothing else of a job."""
    run = run_folder_in(tmp_path_factory.mktemp("played"), bench)
    return sound_ranks(trainers_cell(seed=5), bench, run, test_limit=60)


def untimed(facts: TrainersFacts) -> TrainersFacts:
    """Return facts without the parts that differ between any two runs."""
    games = tuple(replace(game, seconds=0.0) for game in facts.games)
    return replace(facts, games=games, tournament_s=0.0, tournament_wait_s=0.0)


def assert_states_are_those_of_the_winners(found: RankRun, before: RankRun) -> None:
    """Check that each rank has the state that the winner's rank in its place had before the only tournament."""
    each = found.record.cell.ranks // found.record.cell.trainers
    winners = {game.trainer: game.winner for game in found.trainers.games}
    for rank, state in enumerate(found.notes):
        trainer = rank // each
        source = winners.get(trainer, trainer) * each + rank % each
        np.testing.assert_array_equal(state.view(np.uint32), before.notes[source].view(np.uint32))


def test_two_runs_with_one_seed_have_the_same_games(played: RankRun, bench: Bench, run_folder: Path) -> None:
    first, second = played, sound_ranks(trainers_cell(seed=5), bench, run_folder, test_limit=60)
    assert first.trainers.tournaments == 2
    assert len(first.trainers.games) == 2 * TRAINERS
    assert untimed(first.trainers) == untimed(second.trainers)
    assert first.record.digests == second.record.digests
    other = sound_ranks(trainers_cell(seed=6), bench, run_folder)
    assert untimed(other.trainers).games != untimed(first.trainers).games


def test_the_winners_network_goes_on_bit_for_bit_with_its_momentum(bench: Bench, run_folder: Path) -> None:
    once: dict[str, Any] = {"max_steps": STEPS, "seed": 2, "limit": 400}
    before = sound_ranks(trainers_cell(tournament_steps=0, **once), bench, run_folder)
    found = sound_ranks(trainers_cell(**once), bench, run_folder)
    assert len({state.tobytes() for state in before.notes}) == TRAINERS
    moved = [game for game in found.trainers.games if game.winner != game.trainer]
    assert moved, "nobody's network went to a partner, so nothing was tested"
    assert_states_are_those_of_the_winners(found, before)


def test_a_tie_leaves_the_trainer_its_own_network(bench: Bench, run_folder: Path) -> None:
    # One held-out sample per trainer: a network is right or wrong, so most games are a tie.
    once: dict[str, Any] = {"limit": 40, "batch_size": 2, "max_steps": STEPS, "seed": 0}
    before = sound_ranks(trainers_cell(tournament_steps=0, **once), bench, run_folder)
    found = sound_ranks(trainers_cell(**once), bench, run_folder)
    ties = [game for game in found.trainers.games if game.own_score == game.partner_score]
    assert ties
    assert all(game.winner == game.trainer for game in ties)
    assert_states_are_those_of_the_winners(found, before)


def test_the_control_has_the_same_partition_and_plays_no_game(
    played: RankRun, bench: Bench, run_folder: Path
) -> None:
    found = played
    control = sound_ranks(replace(trainers_cell(seed=5), tournament_steps=0), bench, run_folder)
    assert (control.trainers.games, control.trainers.tournaments, control.trainers.tournament_s) == ((), 0, 0)
    assert control.record.digests is not None
    assert found.record.digests is not None
    assert control.record.digests.order == found.record.digests.order
    losses = [steps_of(one.record, one.run)["loss"][: STEPS * TRAINERS].tobytes() for one in (found, control)]
    assert losses[0] == losses[1], "until the first tournament both train alike"
    sizes = [(trainer.training_samples, trainer.held_out_samples) for trainer in control.trainers.per_trainer]
    assert sizes == [(36, 4)] * TRAINERS


def test_the_best_trainer_is_chosen_by_its_held_out_samples(bench: Bench, run_folder: Path) -> None:
    found = sound_ranks(trainers_cell(seed=5, epochs=2), bench, run_folder, test_limit=60)
    assert [
        len(record.job.trainers.games) for record in found.records if record.job and record.job.trainers
    ] == [8, 8]
    for record in found.records:
        assert record.job is not None
        assert record.job.trainers is not None
        facts = record.job.trainers
        scores = [trainer.held_out_score for trainer in facts.per_trainer]
        assert facts.best_trainer == scores.index(max(score for score in scores if score is not None))
        assert record.test_accuracy == facts.per_trainer[facts.best_trainer].test_accuracy
        assert all(trainer.test_accuracy is not None for trainer in facts.per_trainer)
        assert record.test_samples == 60


def test_trainers_of_two_ranks_train_as_trainers_of_one(bench: Bench, run_folder: Path) -> None:
    one: dict[str, Any] = {"trainers": 2, "tournament_steps": 0, "model": "lenet", "limit": 100}
    wide = sound_ranks(trainers_cell(**one, ranks=4, batch_size=4), bench, run_folder)
    narrow = sound_ranks(trainers_cell(**one, ranks=2, batch_size=8), bench, run_folder)
    assert wide.record.digests is not None
    assert narrow.record.digests is not None
    assert wide.record.digests.order == narrow.record.digests.order
    losses = [
        steps_of(job.record, run_folder)["loss"][:: job.record.cell.ranks].astype(np.float32)
        for job in (wide, narrow)
    ]
    assert_same_losses(losses[0], losses[1], "lenet")
    assert narrow.job.wait_for_slowest_s is None, "a trainer of one rank waits for no other"
    assert wide.job.wait_for_slowest_s is not None


SLOW_S = 0.2


def slow_games(setup: Setup) -> None:
    """Slow down every read of a game."""

    def slow(store: Path, backend: Any) -> Reader:
        reader = opened_again(store, backend)
        read_into: Callable[[Indices, Batch], None] = reader.read_into

        def late(indices: Indices, out: Batch) -> None:
            time.sleep(SLOW_S)
            read_into(indices, out)

        setattr(reader, "read_into", late)  # noqa: B010 - it is final to the type checker
        return reader

    setattr(tournament, "opened_again", slow)  # noqa: B010 - this process is a copy that ends with its job


def test_the_time_of_games_is_in_no_span_and_no_rate(bench: Bench, run_folder: Path) -> None:
    found = sound_ranks(trainers_cell(), bench, run_folder, slow_games)
    facts = found.trainers
    assert facts.tournament_s >= 2 * facts.tournaments * SLOW_S
    assert all(game.seconds >= 2 * SLOW_S for game in facts.games)
    table = steps_of(found.record, run_folder)
    after = table["step"] % STEPS == STEPS - 1
    assert table["paused_ns"][after].min() >= 2 * SLOW_S * 1e9
    assert np.median(table["paused_ns"][~after]) < SLOW_S * 1e9
    whole_ns = (step_ends(table) + table["paused_ns"]).max() - table["start_ns"].min()
    without_games_s = whole_ns / 1e9 - 2 * SLOW_S * facts.tournaments
    assert found.record.epoch_s <= without_games_s
    assert max(rank.seconds for rank in found.job.per_rank) <= without_games_s
