"""By how much a faster decoder closes the gap between compressed images and raw pixels, in sentences."""

from collections.abc import Iterator, Sequence

from storebench.report.cells import CellSummary
from storebench.report.claims import Claim, ClaimKind, Claims
from storebench.report.facts import Facts
from storebench.report.panels import Panel
from storebench.report.texts.labels import backend_label, dataset_label, percent, state_label, store_label
from storebench.report.texts.sentence import Sentence

NAMES = {"opencv": "OpenCV", "pillow": "Pillow"}
"""Decoders whose names are not written as in a backend."""


def closing(panel: Panel, claims: Claims) -> Sentence | None:
    """Return a sentence on the gap of a panel that other decoders close most; None without such cells."""
    sentences = list(_sentences(panel, claims))
    return max(sentences, key=_most, default=None)


def decoder_lines(facts: Facts) -> list[str]:
    """Return one sentence per dataset, setting and gap to raw pixels that other decoders were measured in."""
    return [
        f"{dataset_label(panel.first)}, {state_label(panel.speaker)}: {sentence.text}"
        for part in facts.datasets.values()
        for panel in part.ordered
        for sentence in _sentences(panel, facts.claims)
    ]


def _sentences(panel: Panel, claims: Claims) -> Iterator[Sentence]:
    by_gap: dict[object, list[Claim]] = {}
    for claim in claims.each(ClaimKind.CLOSES, panel.stored):
        assert claim.object is not None
        by_gap.setdefault((claim.object.key, claim.part), []).append(claim)
    yield from (_sentence(panel, gap_claims) for gap_claims in by_gap.values())


def _sentence(panel: Panel, claims: Sequence[Claim]) -> Sentence:
    slow, fast = claims[0].object, panel.of(claims[0].part)
    assert slow is not None
    assert fast is not None
    gap = f"the gap from {store_label(slow, (slow, fast))} to raw pixels in {backend_label(fast.backend)}"
    closing = sorted((claim for claim in claims if claim.decided), key=_share, reverse=True)
    others = ", ".join(_decoder(claim.subject) for claim in claims if not claim.decided)
    if not closing:
        return Sentence(text=f"No faster decoder is proven to close {gap}: {others}.", claims=tuple(claims))
    listed = ", ".join(f"{_decoder(claim.subject)} {_percent(claim)}" for claim in closing)
    rest = f"; not proven to: {others}" if others else ""
    return Sentence(text=f"A faster decoder closes a part of {gap}: {listed}{rest}.", claims=tuple(claims))


def _decoder(cell: CellSummary) -> str:
    """Return a decoder in words: "simplejpeg", "Pillow at a reduced scale"."""
    options = dict(cell.cell.backend.codec_options)
    name = options.get("decoder", "pillow")
    return NAMES.get(name, name) + (" at a reduced scale" if options.get("scale") == "dct" else "")


def _percent(claim: Claim) -> str:
    assert claim.figure is not None
    return f"{percent(claim.figure.mid)} [{percent(claim.figure.lo)}, {percent(claim.figure.hi)}]"


def _share(claim: Claim) -> float:
    return claim.figure.mid if claim.figure is not None else 0.0


def _most(sentence: Sentence) -> float:
    return max((_share(claim) for claim in sentence.claims if claim.decided), default=-1.0)
