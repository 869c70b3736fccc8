"""Connections between the ranks of a node: which ranks are connected, and how the end of a rank is noticed."""

import multiprocessing
import os
from typing import TypeVar

import pytest

from storebench.ranks.group import Group, LostRankError, TorchGroup, lost_another
from storebench.ranks.membership import Membership
from storebench.ranks.node_loader import Line, connect_node
from tests.support.rank_processes import in_ranks

NODES, EACH = 2, 3

T = TypeVar("T")


def placed(group: Group) -> TorchGroup:
    rank = group.membership.rank
    return TorchGroup(
        Membership(rank=rank, ranks=NODES * EACH, local_rank=rank % EACH, local_ranks=EACH, node=rank // EACH)
    )


def talk(group: Group) -> list[object]:
    """Send this rank's number to the first rank of the node; return its answer, or there all numbers."""
    on_node = placed(group)
    lines = connect_node(on_node)
    if not on_node.membership.leads_node:
        [line] = lines
        line.send(group.membership.rank)
        answer = [line.receive()]
    else:
        answer = [line.receive() for line in lines]
        for place, line in enumerate(lines):
            line.send(10 * (place + 1))
    for line in lines:
        line.close()
    group.barrier()
    return answer


def test_the_ranks_of_each_node_are_connected_with_the_first_in_order() -> None:
    assert in_ranks(NODES * EACH, talk) == [[1, 2], [10], [20], [4, 5], [10], [20]]


def pass_file(group: Group) -> bytes:
    """Let the first rank pass an unnamed file to the other rank, which reads it."""
    [line] = connect_node(group)
    if group.membership.leads_node:
        file = os.memfd_create("test")
        os.write(file, b"in memory")
        line.send_file(file)
        line.receive()
        return b""
    content = os.pread(line.receive_file(), 9, 0)
    line.send(None)
    return content


def test_a_file_without_a_name_reaches_the_other_rank() -> None:
    assert in_ranks(2, pass_file) == [b"", b"in memory"]


def test_the_end_of_the_other_rank_is_an_error_with_its_name() -> None:
    here, there = multiprocessing.Pipe()
    line = Line(here, "rank 3 on node 1")
    there.close()
    for meet in (line.receive, line.receive_file, lambda: line.send("a batch")):
        with pytest.raises(
            LostRankError, match="rank 3 on node 1, which shares batches with this rank, has ended"
        ) as caught:
            meet()
        assert lost_another(caught.value)
    line.close()
