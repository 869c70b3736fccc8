"""One reader per node: what a rank does if the reader has ended before it shared anything."""

import multiprocessing
from pathlib import Path

import pytest

from storebench.formats.registry import get_format, parse_backend
from storebench.loading.batch import LoadJob
from storebench.ranks import node_loader
from storebench.ranks.group import LostRankError, TorchGroup
from storebench.ranks.membership import Membership
from storebench.ranks.node_loader import Line, NodeGuest
from storebench.testing.stores import build_small_store


def test_a_rank_without_its_reader_names_it_and_closes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error of closing would hide that the reader has ended, and this rank would be blamed."""
    small = build_small_store(get_format("lmdb"), "raw", tmp_path)
    here, there = multiprocessing.Pipe()
    there.close()
    monkeypatch.setattr(node_loader, "connect_node", lambda *_more: [Line(here, "rank 0 on node 0")])
    group = TorchGroup(Membership(rank=1, ranks=2, local_rank=1, local_ranks=2))
    loader = NodeGuest(LoadJob(store=small.path, backend=parse_backend("lmdb"), batch_size=4), group=group)
    with pytest.raises(LostRankError, match="rank 0 on node 0, which shares batches"):
        loader.open()
    assert loader.close() == []
    here.close()
