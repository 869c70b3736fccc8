"""Non-blocking messages of samples between ranks, on separate connections from the gradients."""

from collections.abc import Iterable
from datetime import timedelta

import torch
import torch.distributed as dist

from storebench.arrays import Bytes
from storebench.ranks.progress import NO_PROGRESS, RankProgress
from storebench.ranks.stalls import MOST_WAIT_S

_TAGS = 1024


class Messages:
    """Messages between all ranks of a job. All ranks create theirs together."""

    def __init__(self, progress: RankProgress = NO_PROGRESS) -> None:
        self._group = dist.new_group(backend="gloo", timeout=timedelta(seconds=MOST_WAIT_S))
        self._progress = progress

    def send(self, content: Bytes, to: int, step: int) -> dist.Work:
        """Post a message to another rank and return the work to wait for. `content` must not change until then."""
        return _posted(dist.isend(torch.from_numpy(content), to, group=self._group, tag=step % _TAGS))

    def receive(self, content: Bytes, source: int, step: int) -> dist.Work:
        """Post the receipt of a message into `content`, which has its size, and return the work to wait for."""
        return _posted(dist.irecv(torch.from_numpy(content), source, group=self._group, tag=step % _TAGS))

    def wait(self, works: Iterable[dist.Work]) -> None:
        """Wait until messages have been sent or received."""
        with self._progress.waiting():
            for work in works:
                work.wait()


def _posted(work: dist.Work | None) -> dist.Work:
    assert work is not None, "this rank is a member of the group"
    return work
