"""The place of a process among the ranks of its job, from the variables of each launcher."""

import pytest

from storebench.errors import UsageError
from storebench.ranks.membership import Membership, membership

TORCHRUN = {
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
    "GROUP_RANK": "1",
}
SLURM = {"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2", "SLURM_NTASKS": "9"}
OPEN_MPI = {"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4"}


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"PATH": "/bin"}, Membership(rank=0, ranks=1, local_rank=0, local_ranks=1, node=0)),
        (SLURM | OPEN_MPI | TORCHRUN, Membership(rank=5, ranks=8, local_rank=1, local_ranks=4, node=1)),
        (OPEN_MPI | SLURM, Membership(rank=1, ranks=2, node=1)),
        (OPEN_MPI, Membership(rank=3, ranks=4, node=3)),
    ],
)
def test_the_variables_of_the_most_specific_launcher_are_read(
    variables: dict[str, str], expected: Membership
) -> None:
    assert membership(variables) == expected


@pytest.mark.parametrize("change", [{"RANK": "five"}, {"LOCAL_RANK": ""}])
def test_variables_that_make_no_place_are_refused(change: dict[str, str]) -> None:
    with pytest.raises(UsageError, match="not all numbers: RANK, WORLD_SIZE, LOCAL_RANK"):
        membership(TORCHRUN | change)
