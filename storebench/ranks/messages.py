"""Non-blocking messages of samples between ranks, on connections of their own, apart from those of gradients."""

from collections.abc import Iterable
from datetime import timedelta

import torch
import torch.distributed as dist

from storebench.ranks.held import Content
from storebench.ranks.progress import NO_PROGRESS, Progress

MOST_WAIT_S = 7 * 24 * 3600.0
"""Most seconds that a message is waited for; the launcher ends a job that hangs sooner."""

_TAGS = 1024


class Messages:
    """Messages between all ranks of a job. Every rank makes its own at the same time.

    Messages between two ranks arrive in the order in which both have posted them. A message that is posted is sent and
    received in the background by gloo's own thread.

    Parameters
    ----------
    progress
        Learns when this rank waits for others.
    """

    def __init__(self, progress: Progress = NO_PROGRESS) -> None:
        self._group = dist.new_group(backend="gloo", timeout=timedelta(seconds=MOST_WAIT_S))
        self._progress = progress

    def send(self, content: Content, to: int, step: int) -> dist.Work:
        """Post a message to another rank and return the work to wait for; until then nobody may write to `content`."""
        return _posted(dist.isend(torch.from_numpy(content), to, group=self._group, tag=step % _TAGS))

    def receive(self, content: Content, source: int, step: int) -> dist.Work:
        """Post the receipt of a message into `content`, which has as many bytes as it, and return the work to wait for."""
        return _posted(dist.irecv(torch.from_numpy(content), source, group=self._group, tag=step % _TAGS))

    def wait(self, works: Iterable[dist.Work]) -> None:
        """Wait until messages have been sent or received.

        Raises
        ------
        RuntimeError
            Another rank has gone.
        """
        with self._progress.waiting():
            for work in works:
                work.wait()


def _posted(work: dist.Work | None) -> dist.Work:
    assert work is not None, "this rank is a member of the group"
    return work
