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
SLURM = {
    "SLURM_PROCID": "4",
    "SLURM_NTASKS": "7",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
    "SLURM_TASKS_PER_NODE": "3(x2),1",
}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
}
PMI = {"PMI_RANK": "3", "PMI_SIZE": "4", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}


def test_a_process_without_a_launcher_is_alone() -> None:
    one = membership({"PATH": "/bin"})
    assert one == Membership(rank=0, ranks=1, local_rank=0, local_ranks=1, node=0)
    assert (one.alone, one.leads, one.leads_node) == (True, True, True)


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        (TORCHRUN, Membership(rank=5, ranks=8, local_rank=1, local_ranks=4, node=1)),
        (SLURM, Membership(rank=4, ranks=7, local_rank=1, local_ranks=3, node=1)),
        (OPEN_MPI, Membership(rank=3, ranks=4, local_rank=1, local_ranks=2, node=1)),
        (PMI, Membership(rank=3, ranks=4, local_rank=1, local_ranks=2, node=1)),
    ],
    ids=["torchrun", "slurm", "open-mpi", "pmi"],
)
def test_the_variables_of_each_launcher_are_read(variables: dict[str, str], expected: Membership) -> None:
    found = membership(variables)
    assert found == expected
    assert (found.alone, found.leads, found.leads_node) == (False, False, False)


def test_torchrun_comes_before_the_launcher_that_started_it() -> None:
    assert membership(PMI | OPEN_MPI | SLURM | TORCHRUN).rank == 5
    assert membership(PMI | OPEN_MPI | SLURM).rank == 4
    assert membership(PMI | OPEN_MPI).rank == 3


def test_a_job_step_counts_before_the_whole_allocation() -> None:
    step = {"SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_TASKS_PER_NODE": "1(x2)"}
    first = {"SLURM_PROCID": "1", "SLURM_NTASKS": "16", "SLURM_LOCALID": "0", "SLURM_NODEID": "1"}
    found = membership(first | {"SLURM_TASKS_PER_NODE": "8(x2)"} | step)
    assert found == Membership(rank=1, ranks=2, local_rank=0, local_ranks=1, node=1)


def test_a_rank_and_its_node_are_named() -> None:
    assert str(membership(TORCHRUN)) == "rank 5 on node 1"


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"RANK": "0"}, "has not set WORLD_SIZE"),
        (TORCHRUN | {"WORLD_SIZE": "many"}, "WORLD_SIZE is not a number: 'many'"),
        (TORCHRUN | {"RANK": "-1"}, "RANK is not a number: '-1'"),
        (TORCHRUN | {"RANK": "8"}, "rank 8 of 8"),
        (TORCHRUN | {"LOCAL_RANK": "4"}, "local rank 4 of 4"),
        (SLURM | {"SLURM_TASKS_PER_NODE": "3(x2"}, "SLURM_TASKS_PER_NODE is not a list of tasks"),
        (SLURM | {"SLURM_TASKS_PER_NODE": "1(x999999999)"}, "SLURM_TASKS_PER_NODE is not a list of tasks"),
        ({"OMPI_COMM_WORLD_RANK": "0"}, "has not set OMPI_COMM_WORLD_SIZE"),
    ],
)
def test_variables_that_do_not_fit_are_refused(variables: dict[str, str], words: str) -> None:
    with pytest.raises(UsageError) as caught:
        membership(variables)
    assert words in str(caught.value)
