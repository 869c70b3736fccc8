"""The facts of a job of several trainers: their parts of the samples, their scores, and every game of their tournaments."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Game:
    """One trainer's side of a game: it scores its own network and its partner's on its held-out samples.

    Each side of a game decides for itself, so both may continue with the same network.

    Attributes
    ----------
    number
        Number of the tournament in the process, from 0.
    step
        Number of steps trained in the epoch before the game.
    trainer, partner
        The trainer of this side, and the trainer that sent it a network.
    samples
        Samples on which both networks were scored.
    own_score, partner_score
        Share of these samples that the trainer's network and the partner's classified correctly.
    winner
        The trainer whose network `trainer` continued with: its own unless the partner's score was higher.
    sent_bytes
        Bytes of weights, momentum and batch-norm statistics that the trainer's ranks sent to the partner.
    seconds
        Wall time of this side on its slowest rank: both scores, and the exchange, including the wait for the partner.
    """

    number: int
    step: int
    trainer: int
    partner: int
    samples: int
    own_score: float
    partner_score: float
    winner: int
    sent_bytes: int
    seconds: float


@dataclass(frozen=True, kw_only=True)
class TrainerFacts:
    """One trainer of a job after an epoch.

    Attributes
    ----------
    training_samples, held_out_samples
        Samples of its part for training, and samples held out for scoring networks.
    held_out_score
        Share of the held-out samples that its network classified correctly after the epoch; null if nothing was trained.
    test_accuracy
        Share of the test samples that its network classified correctly after the epoch; null if not measured.
    """

    training_samples: int
    held_out_samples: int
    held_out_score: float | None = None
    test_accuracy: float | None = None


@dataclass(frozen=True, kw_only=True)
class TrainersFacts:
    """The trainers of a job in an epoch, and their tournaments.

    The record's spans, rates and counters leave tournaments out.

    Attributes
    ----------
    per_trainer
        One entry per trainer. Trainer 0 has the first ranks.
    best_trainer
        The trainer with the highest `held_out_score`, the first one in a tie; null if nothing was trained. The record has its
        test accuracy.
    tournaments
        Number of tournaments in the epoch.
    games
        Both sides of every game, by tournament and trainer.
    tournament_s
        Wall time of all tournaments of the epoch, each from the arrival of the last rank until all ranks continue.
    tournament_wait_s
        Time during which a rank waited for the others before tournaments; the mean over ranks.
    tournament_samples
        Samples that games requested of the store's readers, which count them, over all ranks.
    """

    per_trainer: tuple[TrainerFacts, ...]
    best_trainer: int | None = None
    tournaments: int = 0
    games: tuple[Game, ...] = ()
    tournament_s: float = 0.0
    tournament_wait_s: float = 0.0
    tournament_samples: int = 0
