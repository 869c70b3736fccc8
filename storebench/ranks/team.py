"""The ranks of a job, and the nodes that they are on."""

import dataclasses
import json
from dataclasses import dataclass
from typing import Self

MEET_S = 60
"""Time for the nodes of a job to meet; all of them are told to start at the same moment."""


@dataclass(frozen=True, kw_only=True)
class Team:
    """The ranks of a job, of which this node starts some."""

    ranks: int
    nodes: int = 1
    node: int = 0
    rendezvous: str = ""

    @classmethod
    def of_text(cls, text: str) -> Self:
        """Return the team of a text that `text` returned."""
        return cls(**json.loads(text))

    def text(self) -> str:
        """Return the team in one word of a command line."""
        return json.dumps(dataclasses.asdict(self))

    @property
    def local_ranks(self) -> int:
        """Ranks on each node."""
        return self.ranks // self.nodes

    @property
    def here(self) -> range:
        """Numbers of the ranks on this node."""
        first = self.node * self.local_ranks
        return range(first, first + self.local_ranks)
