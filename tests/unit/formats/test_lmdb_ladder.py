"""LMDBIO's ladder is one table: the scenarios measure its rungs, and their backends parse."""

from pathlib import Path

import pytest

from storebench.formats.lmdb.direct import RUNGS, Rung
from storebench.formats.registry import parse_backend
from storebench.run.scenario import load_scenario
from storebench.settings.words import Share

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("rung", RUNGS, ids=lambda rung: rung.key)
def test_a_rung_is_a_backend_in_its_one_spelling(rung: Rung) -> None:
    backend = parse_backend(rung.backend)
    assert str(backend) == rung.backend
    assert (backend.format, backend.reader, dict(backend.options)) == ("lmdb", rung.reader, {**rung.options})


def test_the_scenarios_measure_every_rung_and_nothing_else() -> None:
    alone = sorted(rung.backend for rung in RUNGS if rung.share is Share.NONE)
    for matrix in load_scenario(ROOT / "scenarios" / "lmdbio.toml").matrix:
        assert matrix.model == "none"
        assert sorted(matrix.backends) == alone
    matrices = load_scenario(ROOT / "scenarios" / "lmdbio-ranks.toml").matrix
    rungs = {(rung.backend, rung.share) for rung in RUNGS}
    trained = {
        (backend, share) for matrix in matrices for backend in matrix.backends for share in matrix.share
    }
    shared = {(rung.backend, rung.share) for rung in RUNGS if rung.share is not Share.NONE}
    assert shared | {("lmdb", Share.NONE), ("lmdb?readahead=off", Share.NONE)} <= trained <= rungs
