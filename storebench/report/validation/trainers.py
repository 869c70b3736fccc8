"""Rules for the trainers of a job: parts and pairs follow from the seed, scores are shares, winners follow from scores."""

import math
from collections import Counter
from collections.abc import Iterator, Sequence

from storebench.ranks.merging import RANK
from storebench.ranks.trainers import pairs, part_sizes, tournaments_in
from storebench.report.validation.findings import ROUNDING, Finding, Rule, finding
from storebench.results import Game, JobFacts, Record, TrainersFacts
from storebench.settings.loop import MOST_SEED
from storebench.settings.words import TrainerData
from storebench.training.step_table import StepTable

_CLOCK_S = 1e-3
"""Tolerance for times from different ranks, or from slightly different moments."""

_STATES = 2
"""A network is sent with its momentum: at least twice the bytes of its weights."""


def teams(record: Record) -> int:
    """Return the number of trainers of a record; 1 if its ranks cannot be divided among the trainers of its cell."""
    ranks, trainers = record.cell.ranks, record.cell.trainers
    return trainers if trainers > 0 and ranks % trainers == 0 else 1


def check_trainers(record: Record, job: JobFacts) -> Iterator[Finding]:
    """Yield the findings about the trainers of one usable record of a job."""
    cell, facts = record.cell, job.trainers
    described = len(facts.per_trainer) if facts else 1
    fits = teams(record) == cell.trainers == described
    if not fits or (facts is not None and cell.trainers == 1):
        message = f"{described} described, in a cell of {cell.ranks} ranks and {cell.trainers} trainers"
        yield finding(Rule.ARITHMETIC, record, "job.trainers", message)
        return
    if facts is None:
        return
    yield from _parts(record, facts)
    yield from _best(record, facts)
    yield from _pairing(record, facts)
    for game in facts.games:
        yield from _side(record, facts, game)
    yield from _scored_twice(record, job, facts)
    yield from _costs(record, job, facts)


def check_pauses(record: Record, steps: StepTable) -> Iterator[Finding]:
    """Find games, and waits before them, that took longer than their pause, so the rest would count as training.

    Parameters
    ----------
    steps
        The step table of the job, one row per step and rank of the cell.
    """
    facts = record.job.trainers if record.job else None
    if facts is None or RANK not in steps or "paused_ns" not in steps:
        return
    paused = steps["paused_ns"].reshape(-1, record.cell.ranks)
    each = record.cell.ranks // teams(record)
    for game in facts.games:
        own = paused[max(0, game.step - 1) : game.step, game.trainer * each : (game.trainer + 1) * each]
        longest_s = int(own.max()) / 1e9 if own.size else 0.0
        if not 0 <= game.seconds <= longest_s + _CLOCK_S:
            message = f"{game.seconds:.6g} s, but the pause after step {game.step} was {longest_s:.6g} s"
            yield finding(Rule.STEPS, record, _name(game, "seconds"), message)
    after = {game.step for game in facts.games}
    paused_s = float(sum(paused[step - 1].mean() for step in after if 0 < step <= len(paused))) / 1e9
    if not 0 <= facts.tournament_wait_s <= paused_s + _CLOCK_S:
        message = f"{facts.tournament_wait_s:.6g} s, but the pauses with tournaments were {paused_s:.6g} s"
        yield finding(Rule.STEPS, record, "job.trainers.tournament_wait_s", message)


def _parts(record: Record, facts: TrainersFacts) -> Iterator[Finding]:
    """Find parts of the samples with a wrong size for the cell, and impossible scores."""
    cell = record.cell
    count = record.store.count if record.store else 0
    sizes = part_sizes(count, trainers=cell.trainers, data=cell.trainer_data) if count else []
    recorded = [(trainer.training_samples, trainer.held_out_samples) for trainer in facts.per_trainer]
    if sizes and recorded != sizes:
        message = f"parts of {recorded} samples, but {count} samples make {sizes}"
        yield finding(Rule.ARITHMETIC, record, "job.trainers.per_trainer", message)
    for number, trainer in enumerate(facts.per_trainer):
        for name, score, samples in (
            ("held_out_score", trainer.held_out_score, trainer.held_out_samples),
            ("test_accuracy", trainer.test_accuracy, record.test_samples),
        ):
            if score is not None and not _is_share(score, samples):
                message = f"{score:.6g} is not a share of {samples} samples"
                yield finding(Rule.ARITHMETIC, record, f"job.trainers.per_trainer[{number}].{name}", message)


def _best(record: Record, facts: TrainersFacts) -> Iterator[Finding]:
    """Find a best trainer without the highest score, and a test accuracy of the job that is not the best trainer's."""
    scores = [trainer.held_out_score for trainer in facts.per_trainer]
    known = [score for score in scores if score is not None]
    right = scores.index(max(known)) if known and len(known) == len(scores) else None
    if facts.best_trainer != right:
        message = f"{facts.best_trainer}, but the scores {scores} make it {right}"
        yield finding(Rule.ARITHMETIC, record, "job.trainers.best_trainer", message)
    elif right is not None and record.test_accuracy != facts.per_trainer[right].test_accuracy:
        message = (
            f"{record.test_accuracy}, but that of trainer {right} is {facts.per_trainer[right].test_accuracy}"
        )
        yield finding(Rule.ARITHMETIC, record, "test_accuracy", message)


def _pairing(record: Record, facts: TrainersFacts) -> Iterator[Finding]:
    """Find tournaments after other steps than the cell's, and pairs that do not follow from the seed."""
    cell, steps = record.cell, record.steps
    if record.epoch < 0 or not 0 <= cell.seed <= MOST_SEED:
        message = f"epoch {record.epoch} with seed {cell.seed} has no tournament"
        yield finding(Rule.ARITHMETIC, record, "job.trainers.tournaments", message)
        return
    numbers = tournaments_in(record.epoch, steps, max(0, cell.tournament_steps))
    count = max(0, numbers.stop - numbers.start)
    sides = count * (cell.trainers - cell.trainers % 2)
    if (facts.tournaments, len(facts.games)) != (count, sides):
        message = (
            f"{facts.tournaments} with {len(facts.games)} sides of games, but {steps} steps with one every"
            f" {cell.tournament_steps} make {count} with {sides}"
        )
        yield finding(Rule.ARITHMETIC, record, "job.trainers.tournaments", message)
        return
    expected: Counter[tuple[int, int, int, int]] = Counter()
    for number in numbers:
        step = (number + 1) * cell.tournament_steps - record.epoch * steps
        for first, second in pairs(number, trainers=cell.trainers, seed=cell.seed):
            expected.update([(number, step, first, second), (number, step, second, first)])
    played = Counter((game.number, game.step, game.trainer, game.partner) for game in facts.games)
    wrong = sorted((expected - played) + (played - expected))
    if wrong:
        number, step, first, second = wrong[0]
        how = "is not recorded" if played[wrong[0]] < expected[wrong[0]] else "does not follow from the seed"
        message = (
            f"the side of trainer {first} against {second} in tournament {number}, after step {step}, {how}"
        )
        yield finding(Rule.ARITHMETIC, record, "job.trainers.games", message)


def _side(record: Record, facts: TrainersFacts, game: Game) -> Iterator[Finding]:
    """Find sides of games with impossible scores, or with a winner that does not follow from the scores."""
    known = 0 <= game.trainer < len(facts.per_trainer)
    samples = facts.per_trainer[game.trainer].held_out_samples if known else None
    if game.samples != samples:
        message = f"{game.samples}, but the trainer holds out {samples}"
        yield finding(Rule.ARITHMETIC, record, _name(game, "samples"), message)
    for name in ("own_score", "partner_score"):
        score = getattr(game, name)
        if not _is_share(score, game.samples):
            message = f"{score:.6g} is not a share of {game.samples} samples"
            yield finding(Rule.ARITHMETIC, record, _name(game, name), message)
    right = game.partner if game.partner_score > game.own_score else game.trainer
    if game.winner != right:
        message = f"{game.winner}, but {game.own_score:.6g} against {game.partner_score:.6g} makes it {right}"
        yield finding(Rule.ARITHMETIC, record, _name(game, "winner"), message)


def _scored_twice(record: Record, job: JobFacts, facts: TrainersFacts) -> Iterator[Finding]:
    """Find a network with different scores on the two sides of a game, where all trainers hold out the same samples.

    Both sides compute the same then, on one machine and on the CPU bit for bit.
    """
    cell = record.cell
    if cell.trainer_data is not TrainerData.REPLICATED or job.nodes > 1 or cell.device != "cpu":
        return
    sides = {(game.number, game.trainer): game for game in facts.games}
    for game in facts.games:
        other = sides.get((game.number, game.partner))
        if other is None or other.partner != game.trainer or other.partner_score == game.own_score:
            continue
        message = (
            f"{game.own_score:.6g}, but trainer {game.partner} scored the same network on the same samples"
            f" with {other.partner_score:.6g}"
        )
        yield finding(Rule.ARITHMETIC, record, _name(game, "own_score"), message)


def _costs(record: Record, job: JobFacts, facts: TrainersFacts) -> Iterator[Finding]:
    """Find bytes, samples and times of tournaments that do not follow from the games."""
    least = _STATES * (job.gradient_bytes or 0) * (record.cell.ranks // record.cell.trainers)
    small = next((game for game in facts.games if game.sent_bytes < max(1, least)), None)
    if small is not None:
        message = f"{small.sent_bytes}, but weights and momentum have {least}"
        yield finding(Rule.ARITHMETIC, record, _name(small, "sent_bytes"), message)
    read = sum(2 * game.samples for game in facts.games)
    if facts.tournament_samples != read:
        message = f"{facts.tournament_samples}, but the games scored {read}"
        yield finding(Rule.ARITHMETIC, record, "job.trainers.tournament_samples", message)
    least_s = math.fsum(_longest(facts.games).values())
    if not facts.games and facts.tournament_wait_s:
        message = f"{facts.tournament_wait_s:.6g} s, but there was no tournament"
        yield finding(Rule.ARITHMETIC, record, "job.trainers.tournament_wait_s", message)
    if not least_s <= facts.tournament_s + _CLOCK_S or not math.isfinite(facts.tournament_s):
        message = (
            f"{facts.tournament_s:.6g} s, but the longest game of each tournament adds up to {least_s:.6g} s"
        )
        yield finding(Rule.ARITHMETIC, record, "job.trainers.tournament_s", message)


def _longest(games: Sequence[Game]) -> dict[int, float]:
    """Return the seconds of the longest game of each tournament."""
    longest: dict[int, float] = {}
    for game in games:
        longest[game.number] = max(longest.get(game.number, 0.0), game.seconds)
    return longest


def _is_share(score: float, samples: int) -> bool:
    """Return True if a score is a share of this number of samples."""
    if not 0 <= score <= 1:
        return False
    return samples > 0 and abs(score * samples - round(score * samples)) <= ROUNDING * max(1, samples)


def _name(game: Game, figure: str) -> str:
    return f"job.trainers.games[{game.number}: {game.trainer}].{figure}"
