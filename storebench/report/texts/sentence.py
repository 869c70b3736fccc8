"""A sentence with the claims that it puts into words."""

from collections.abc import Sequence
from dataclasses import dataclass

from storebench.report.claims import Claim


@dataclass(frozen=True, kw_only=True, eq=False)
class Sentence:
    """One or more sentences, and what they assert.

    Attributes
    ----------
    text
        The words.
    claims
        What they assert; a figure that compares two things is the figure of one of these.
    """

    text: str
    claims: tuple[Claim, ...] = ()


def joined(sentences: Sequence[Sentence]) -> Sentence:
    """Return sentences one after the other."""
    text = " ".join(sentence.text for sentence in sentences)
    return Sentence(text=text, claims=tuple(claim for sentence in sentences for claim in sentence.claims))
