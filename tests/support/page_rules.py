"""Rules that every page must keep, whatever its records are: what its claims, figures and sentences may say together."""

import itertools
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from storebench.formats.lmdb.direct import Rung
from storebench.report.claims import COMPARED, Claim, ClaimKind, Claims
from storebench.report.decisions import Topic
from storebench.report.facts import Facts, PageFacts
from storebench.report.intervals import Ratio
from storebench.report.page import PageContent, Section, markdown
from storebench.report.roofline_curve import MOST_SPAN
from storebench.report.texts.labels import backend_label, dataset_label, number, times, with_interval
from storebench.report.texts.sentence import Sentence
from tests.support.drawn_records import DrawnSet

_TIMES = re.compile(r"([\d,]*\d(?:\.\d+)?)(?: \[[^\]]*\])? times")
_CONSTANT = "a difference of 1.25 times"
_PAYS = re.compile(r"pays after|won back the time")
_RUNG = re.compile(r"([A-Z]+) (?:gains (?:at least )?([\d.,]*\d) times|loses \((?:at most )?([\d.,]*\d)\))")


@dataclass(frozen=True, kw_only=True, eq=False)
class Page:
    """A page with what it was drawn from."""

    drawn: DrawnSet
    facts: PageFacts
    content: PageContent

    @property
    def name(self) -> str:
        return f"set {self.drawn.number} ({', '.join(sorted(self.drawn.traits))})"

    def sentences(self) -> Iterator[Sentence]:
        """Yield every sentence that asserts anything."""
        yield from self.content.headline.sentences
        for section in self.content.sections:
            yield from (Sentence(text=one.text, claims=one.claims) for one in section.advice)
            yield from (Sentence(text=one.answer, claims=one.claims) for one in section.plots)
            yield from (one.sentence for one in section.limits)
        for paper in self.content.papers:
            yield from (Sentence(text=one.figure, claims=one.claims) for one in paper.now)

    def said(self) -> list[Claim]:
        """Return every claim that a sentence makes, once."""
        return list({id(claim): claim for one in self.sentences() for claim in one.claims}.values())

    def part(self, section: Section) -> Facts:
        """Return the sound facts of a section's dataset."""
        for key, part in self.facts.shown.datasets.items():
            first = part.cells[0]
            if (first.environment_key, dataset_label(first)) == (section.environment_key, section.title):
                return self.facts.sound_part(key)
        raise AssertionError(section.title)


def contradictions(page: Page) -> list[str]:
    """No two sentences contradict each other."""
    kinds = (*COMPARED, ClaimKind.FED, ClaimKind.PAYS)
    said = [one for one in page.said() if one.kind in kinds]
    pairs = itertools.combinations(said, 2)
    return [f"{_words(one)}, and {_words(other)}" for one, other in pairs if one.contradicts(other)]


def undecided_leads(page: Page) -> list[str]:
    """An undecided comparison leads neither the page nor the advice nor the first plot while a decided one exists."""
    found = []
    lead = page.content.headline.claims[:1]
    if _any_decided(page.facts.told, page.facts.told.claims) and not (lead and lead[0].decided):
        found.append(f"headline: {page.content.headline.answer}")
    for section in page.content.sections:
        sound, first = page.part(section), section.advice[:1]
        if (
            first
            and _any_decided(sound, sound.claims)
            and not (first[0].claims and first[0].claims[0].decided)
        ):
            found.append(f"advice: {first[0].text}")
    return found


def _any_decided(facts: Facts, claims: Claims) -> bool:
    compared = (
        one for one in claims.found if one.kind in COMPARED and one.topic is Topic.BACKEND and one.decided
    )
    known = {cell.key for panel in facts.ordered for cell in panel.stored}
    return any({one.subject.key, one.object.key} <= known for one in compared)


def loose_figures(page: Page) -> list[str]:
    """Every figure that compares is that of a claim, and every line that has one is a sentence with claims."""
    sentences = list(page.sentences())
    found = [
        f"{figure} in: {one.text}"
        for one in sentences
        for figure in _TIMES.findall(one.text.replace(_CONSTANT, ""))
        if figure not in _figures(one.claims)
    ]
    known = [one.text.replace(_CONSTANT, "") for one in sentences if " times" in one.text]
    known += [text.replace("[", "(").replace("]", ")") for text in known]
    known += [one.then for one in page.content.papers]
    for line in markdown(page.content, explained=()).replace("\\", "").replace(_CONSTANT, "").splitlines():
        left = line if _TIMES.search(line) and not line.startswith("|") else ""
        for text in known:
            left = left.replace(text, "")
        found += [f"no sentence: {line}"] if _TIMES.search(left) else []
    return found


def _figures(claims: Sequence[Claim]) -> set[str]:
    figures = [one.figure for one in claims if one.figure is not None]
    figures += [one.inverted() for one in figures if isinstance(one, Ratio)]
    figures += [one.negated() for one in figures if one.mid < 0]
    texts = {number(one.mid, digits) for one in figures for digits in (2, 3)}
    return texts | {text(one).partition(" ")[0] for one in figures for text in (with_interval, times)}


def unfair(page: Page) -> list[str]:
    """The two sides differ in the topic alone, and a sentence on lossy and lossless stores says so."""
    found = []
    for sentence in page.sentences():
        for one in sentence.claims:
            if one.object is None or one.kind is ClaimKind.CONTENTION:
                continue
            if not one.fair:
                found.append(f"{sorted(one.differs)}: {sentence.text}")
            told = one.kind is not ClaimKind.SHARE  # the sentence before it names the two stores
            told = told and (one.decided or backend_label(one.subject.backend) in sentence.text)
            if told and "loss" in one.differs and "lossy" not in sentence.text.lower():
                found.append(f"loss: {sentence.text}")
            if one.topic is Topic.WORKERS and not _names_workers(one, sentence.text):
                found.append(f"workers: {sentence.text}")
            if one.topic is Topic.CACHE and not ("cold" in sentence.text and "emory" in sentence.text):
                found.append(f"cache: {sentence.text}")
    return found


def _names_workers(one: Claim, text: str) -> bool:
    assert one.object is not None
    fewest = min(one.subject.cell.workers, one.object.cell.workers)
    return re.search(rf"\b{fewest}\b", text) is not None


def unpaid(page: Page) -> list[str]:
    """A conversion pays where a decided saving, a narrow interval and the reader's own training allow it."""
    found = [
        one.text
        for one in page.sentences()
        if _PAYS.search(one.text) and not any(claim.kind is ClaimKind.PAYS for claim in one.claims)
    ]
    for one in (claim for claim in page.facts.shown.claims.found if claim.kind is ClaimKind.PAYS):
        assert one.object is not None
        if not _is_narrow(one):
            found.append(f"{_words(one)}: {one.figure}")
        saving = page.facts.shown.claims.between(one.subject, one.object)
        if saving is None or saving.kind is not ClaimKind.FASTER or saving.subject.key != one.subject.key:
            found.append(f"{_words(one)}: no saving is decided")
        if one.subject.cell.compute == "none":
            found += [f"{_words(one)}: {_words(other)}" for other in _indifferent(page, one)]
    for section in page.content.sections:
        rules = {one.rule[:2] for one in section.advice}
        found += [f"R4 beside R1: {section.advice[0].text}"] if {"R1", "R4"} <= rules else []
    return found


def _is_narrow(one: Claim) -> bool:
    epochs = one.figure
    return epochs is not None and bool(epochs.lo) and bool(epochs.hi) and epochs.hi < MOST_SPAN * epochs.lo


def _indifferent(page: Page, pays: Claim) -> Iterator[Claim]:
    """Yield the claims of training on the same samples that a conversion gains nothing."""
    names = {pays.subject.backend, pays.object.backend}
    for one in page.facts.shown.claims.found:
        if one.kind is not ClaimKind.EQUAL or one.topic is not Topic.BACKEND or one.object is None:
            continue
        trained = one.subject.cell.compute == "real" and one.subject.dataset_key == pays.subject.dataset_key
        if trained and {one.subject.backend, one.object.backend} == names:
            yield one


def unproven(page: Page) -> list[str]:
    """What is called faster, equal or fed is so by the rates of its rounds, and by the interval of the page."""
    found = []
    for one in page.said():
        if one.kind in COMPARED and one.topic is not Topic.RUNG and not _holds(one):
            found.append(f"{_words(one)}: {one.figure}")
        if one.kind is ClaimKind.FED:
            waits = one.subject.values("data_wait_frac").values()
            mean = sum(waits) / len(waits)
            narrow = one.figure is not None and one.figure.hi is not None and one.figure.hi < 0.1
            found += [] if narrow and mean < 0.1 and len(waits) > 2 else [f"{_words(one)}: {one.figure}"]
    return found


def _holds(one: Claim) -> bool:
    assert one.object is not None
    ours, theirs = (side.values("samples_per_s") for side in (one.subject, one.object))
    logs = [math.log(ours[key] / theirs[key]) for key in ours if key in theirs]
    middle, ratio = math.exp(sum(logs) / len(logs)), one.figure
    if ratio is None or not math.isclose(middle, ratio.mid, rel_tol=1e-9):
        return False
    if one.kind is ClaimKind.UNDECIDED:
        return True
    enough = len(logs) >= 3 and ratio.lo is not None and ratio.hi is not None
    if one.kind is ClaimKind.FASTER:
        return enough and ratio.lo > 1
    return enough and ratio.lo >= 1 / 1.1 and ratio.hi <= 1.1


def wrong_indifference(page: Page) -> list[str]:
    """Nothing is said not to matter without proof for every two stores, or for every loop."""
    found = []
    for section in page.content.sections:
        for one in section.advice:
            if "does not matter" not in one.text:
                continue
            stored = page.part(section).main.stored
            exact = [cell for cell in stored if not cell.lossy]
            cells = exact if len(exact) > 1 else stored
            fed = {claim.subject.key for claim in one.claims if claim.kind is ClaimKind.FED}
            pairs = {
                frozenset((claim.subject.key, claim.object.key))
                for claim in one.claims
                if claim.kind is ClaimKind.EQUAL
            }
            wanted = {frozenset((a.key, b.key)) for a, b in itertools.combinations(cells, 2)}
            if not ({cell.key for cell in cells} <= fed or wanted <= pairs):
                found.append(one.text)
    return found


def turned_round(page: Page) -> list[str]:
    """The faster store stands before "as fast as", and the slower one behind it."""
    found = []
    for sentence in page.sentences():
        for one in sentence.claims:
            if one.kind is not ClaimKind.FASTER or one.topic is not Topic.BACKEND or one.object is None:
                continue
            for text in (with_interval(one.figure) + " times as fast as", _short(one)):
                before, found_text, after = sentence.text.partition(text)
                if found_text and not _right_way(before, after, one):
                    found.append(sentence.text)
    return found


def _short(one: Claim) -> str:
    return f"{times(one.figure)} as fast as"


def _right_way(before: str, after: str, one: Claim) -> bool:
    assert one.object is not None
    return backend_label(one.subject.backend) in before and backend_label(one.object.backend) in after[:60]


def nameless(page: Page) -> list[str]:
    """The two sides of a comparison have two names."""
    return [
        sentence.text
        for sentence in page.sentences()
        for one in sentence.claims
        if one.kind in COMPARED and one.topic in (Topic.BACKEND, Topic.RUNG) and one.object is not None
        if backend_label(one.subject.backend) == backend_label(one.object.backend)
    ]


def wrong_rungs(page: Page) -> list[str]:
    """A rung is compared with the one below, its gain is that of its rates, and the page says nothing else of the two."""
    keys = {step.cell.key: step.rung for ladder in page.facts.shown.ladders for step in ladder.steps}
    found = []
    for plot in (plot for section in page.content.sections for plot in section.plots):
        for one in (claim for claim in plot.claims if claim.topic is Topic.RUNG):
            assert one.object is not None
            upper, lower = keys[one.subject.key], keys[one.object.key]
            neighbours = lower.key == upper.below or upper.key == lower.below
            if not neighbours and {upper.key, lower.key} != {"plain", "coal"}:
                found.append(f"{upper.key} against {lower.key}: {plot.answer}")
            found += [] if _holds(one) else [f"{_words(one)}: {one.figure}"]
            other = page.facts.shown.claims.between(one.subject, one.object)
            found += (
                [] if other is None or other.kind is one.kind else [f"{_words(one)}, and {_words(other)}"]
            )
        found += list(_misread(plot.answer, plot.claims, keys))
    return found


def _misread(text: str, claims: Sequence[Claim], keys: Mapping[tuple[str, str], Rung]) -> Iterator[str]:
    """Yield the gains and losses of rungs in a sentence that are not those of its claims."""
    for name, gain, loss in _RUNG.findall(text):
        of = [
            one
            for one in claims
            if one.object is not None
            for upper, lower in [(keys[one.subject.key], keys[one.object.key])]
            if (upper if gain else lower).key.upper() == name
            if (lower if gain else upper).key == (upper if gain else lower).below
            if one.kind is ClaimKind.FASTER and one.figure is not None
            if (gain and number(one.figure.mid) == gain) or (loss and number(1 / one.figure.mid) == loss)
        ]
        if not of:
            yield f"{name}: {text}"


def two_answers(page: Page) -> list[str]:
    """The store that the advice calls the fastest of the answer's panel is in the answer."""
    panel = page.content.headline.panel
    cells = {cell.key for cell in panel.stored} if panel is not None else set()
    found = []
    for one in (one for section in page.content.sections for one in section.advice):
        named = re.search(r": use (.+?)\. It is", one.text)
        if named is None or not one.claims or one.claims[0].subject.key not in cells:
            continue
        if named[1].removesuffix(" (lossy)") not in page.content.headline.answer:
            found.append(f"{page.content.headline.answer} | {one.text}")
    return found


def strangers(page: Page) -> list[str]:
    """Every claim of a sentence is one of the page's one set."""
    sets = (page.facts.told.claims, page.facts.shown.claims)
    known = {id(one) for claims in sets for one in claims.found}
    for one in page.said():
        if one.kind is ClaimKind.SHARE and one.object is not None:
            parents = (claims.between(one.subject, one.object) for claims in sets)
            known |= {
                id(share)
                for claims, parent in zip(sets, parents, strict=True)
                if parent
                for share in claims.shares(parent)
            }
    return [_words(one) for one in page.said() if id(one) not in known]


def _words(one: Claim) -> str:
    other = "" if one.object is None else f" {one.object.backend}"
    return f"{one.subject.backend} {one.kind}{other} ({one.subject.cell.cache}, {one.subject.cell.compute})"


Rule = Callable[[Page], list[str]]
RULES: tuple[Rule, ...] = (
    contradictions, undecided_leads, loose_figures, unfair, unpaid, unproven, wrong_indifference, turned_round, strangers,
    nameless, wrong_rungs, two_answers,
)  # fmt: skip
