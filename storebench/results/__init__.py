"""Results: the cell that was measured, and the record of one epoch of it with all its parts."""

from storebench.results.cache import (
    COLD_SHARES,
    CacheFacts,
    CacheVerdict,
    ColdRate,
    ResidencyPoint,
)
from storebench.results.cell import BACKEND_FIELDS, CELL_FIELDS, DATA_FIELDS, Cell, CellFields
from storebench.results.conditions import MOST_ATTEMPTS, OTHERS_MOST_FRAC, Conditions, disturbance
from storebench.results.counted import Ceilings, Counters
from storebench.results.job import DataStoreFacts, JobFacts, LinkKind, RankFacts
from storebench.results.portion import STEADY_DRIFT, Portion, steady
from storebench.results.proof import KEPT_AT_LEAST, KEPT_BYTES, Coverage, Digests, Loss, Percentiles
from storebench.results.record import SCHEMA_VERSION, Record, Status
from storebench.results.subject import CodeFacts, Environment, StoreFacts
from storebench.results.trainers import Game, TrainerFacts, TrainersFacts

__all__ = [
    "BACKEND_FIELDS",
    "CELL_FIELDS",
    "COLD_SHARES",
    "DATA_FIELDS",
    "KEPT_AT_LEAST",
    "KEPT_BYTES",
    "MOST_ATTEMPTS",
    "OTHERS_MOST_FRAC",
    "SCHEMA_VERSION",
    "STEADY_DRIFT",
    "CacheFacts",
    "CacheVerdict",
    "Ceilings",
    "Cell",
    "CellFields",
    "CodeFacts",
    "ColdRate",
    "Conditions",
    "Counters",
    "Coverage",
    "DataStoreFacts",
    "Digests",
    "Environment",
    "Game",
    "JobFacts",
    "LinkKind",
    "Loss",
    "Percentiles",
    "Portion",
    "RankFacts",
    "Record",
    "ResidencyPoint",
    "Status",
    "StoreFacts",
    "TrainerFacts",
    "TrainersFacts",
    "disturbance",
    "steady",
]
