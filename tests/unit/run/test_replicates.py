"""The order of replicates: rounds, blocks of cells that are compared, and the seed."""

from collections import Counter

from storebench.run.replicates import schedule
from tests.support.harness_tools import scenario


def test_every_round_runs_each_cell_once_in_a_seeded_order_of_its_own() -> None:
    cells = scenario(
        dataset="mnist", backends=["lmdb", "hdf5", "png"], workers=[0, 1, 2], cache=["cold", "warm"]
    ).cells()
    work = schedule(cells, 5, seed=3)
    rounds = [work[start : start + len(cells)] for start in range(0, len(work), len(cells))]
    for number, one in enumerate(rounds):
        assert {each.replicate for each in one} == {number}
        assert Counter(each.cell for each in one) == Counter(cells)
    orders = {tuple(each.cell.cell_id for each in one) for one in rounds}
    assert len(orders) == 5
    assert schedule(cells, 5, seed=3) == work
    assert schedule(cells, 5, seed=4) != work
    # More rounds only add: what a resumed run still has to do does not depend on how far it came.
    assert schedule(cells, 7, seed=3)[: len(work)] == work


def test_cells_that_are_compared_with_each_other_run_one_after_the_other() -> None:
    cells = scenario(
        dataset="mnist", backends=["lmdb", "hdf5", "png"], workers=[0, 1], cache=["cold", "warm"]
    ).cells()
    blocks = []
    for one in range(0, 5 * len(cells), 3):
        block = schedule(cells, 5, seed=3)[one : one + 3]
        assert {each.cell.backend.name for each in block} == {"lmdb", "hdf5", "png"}
        assert len({(each.replicate, each.cell.workers, each.cell.cache) for each in block}) == 1
        blocks.append(tuple(each.cell.backend.name for each in block))
    assert len(set(blocks)) > 2, "their order is drawn, too"
