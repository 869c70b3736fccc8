"""The advice on some images: what it says to do, and the figures of its table and lines."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from storebench.accelerators import find_accelerator
from storebench.advice import Advice, Change, Choice, advice_of, advise, decide
from storebench.comparison import Ratio, Verdict
from storebench.formats.registry import parse_backend, store_name_of
from storebench.report.answer import convert_command
from storebench.report.cells import summarise
from storebench.report.frame import to_frame
from storebench.results import Conditions, Counters, Record
from tests.support.planted import make_record, replicates, write_run
from tests.support.planted_roofline import loader_records

FIVE = (0.99, 1.0, 1.01, 1.0, 1.0)
FILES = Choice(label="your files", change=Change.FILES)
VERDICTS = {"+": Verdict.FASTER, "=": Verdict.EQUAL, "-": Verdict.SLOWER, "?": Verdict.UNDECIDED}


def choice(change: Change, told: str, *, changes: str = "", feeds: bool = False) -> Choice:
    """Return a choice from its ratio and the sign of its verdict, "3.1+"."""
    changes = changes or ("nothing" if change is Change.SAME else "something")
    ratio = Ratio(mid=float(told[:-1]), rounds=5, verdict=VERDICTS[told[-1]])
    return Choice(label=change.name, change=change, changes=changes, ratio=ratio, feeds=feeds)


SAME, DECODER, SHRUNK, RAW = Change.SAME, Change.DECODER, Change.SHRUNK, Change.RAW
DECIDED: dict[str, tuple[list[Choice], Change | None]] = {
    "equal augmentation comes first": ([choice(SAME, "1.3+"), choice(SHRUNK, "4+"), choice(RAW, "9+")], SAME),
    "crops come before raw pixels": ([choice(SAME, "1.0="), choice(SHRUNK, "4+"), choice(RAW, "9+")], SHRUNK),
    "the fastest with crops": ([choice(SAME, "0.7-"), choice(DECODER, "1.4+"), choice(SHRUNK, "4+")], SHRUNK),
    "the least change that feeds": (
        [choice(SAME, "0.7-"), choice(DECODER, "1.4+", feeds=True), choice(SHRUNK, "4+", feeds=True)], DECODER,
    ),
    "raw pixels if nothing else helps": ([choice(SAME, "1.0="), choice(SHRUNK, "1.0="), choice(RAW, "9+")], RAW),
    "raw pixels that change nothing": ([choice(SAME, "1.0="), choice(RAW, "9+", changes="nothing")], RAW),
    "undecided at equal augmentation": ([choice(SAME, "1.2?"), choice(SHRUNK, "4+")], SHRUNK),
    "nothing is faster": ([choice(SAME, "1.0="), choice(SHRUNK, "0.8-")], None),
    "nothing is decided": ([choice(SAME, "1.2?")], None),
    "nothing else": ([], None),
}  # fmt: skip


@pytest.mark.parametrize("name", DECIDED)
def test_the_choice_that_the_sentence_names(name: str) -> None:
    others, change = DECIDED[name]
    sentence, best = decide(FILES, others, rounds=5)
    assert (best and best.change) is change
    assert best is None or best.label in sentence
    assert len(sentence.split()) <= 20


def test_files_that_feed_the_accelerator_are_kept() -> None:
    base = dataclasses.replace(FILES, feeds=True)
    assert decide(base, [choice(SAME, "4+")], rounds=5, accelerator="A100")[1] is None
    assert decide(base, [choice(SAME, "4+")], rounds=5)[1] is not None


def test_too_few_rounds_recommend_nothing() -> None:
    assert decide(FILES, [choice(SAME, "4+")], rounds=3)[1] is None


def loaded(backend: str, rate: float, cpu_ms: float = 1.0, **changes: Any) -> list[Record]:
    """Return five replicates that load at a rate with two workers, and take CPU time for each sample."""
    records = loader_records(backend, rate, **{"workers": 2, "spread": FIVE} | changes)
    counted = [
        Counters(cpu_user_s=record.samples * cpu_ms / 1000, cpu_system_s=0.0, read_amplification=0.0)
        for record in records
    ]
    return [dataclasses.replace(r, counters=c) for r, c in zip(records, counted, strict=True)]


def advised(*parts: list[Record], accelerators: tuple[str, ...] = ()) -> Advice:
    sourced = [(record, Path("run/records.jsonl")) for records in parts for record in records]
    advice = advice_of(summarise(to_frame(sourced)), [find_accelerator(name) for name in accelerators])
    assert advice is not None
    return advice


def store_in(advice: Advice) -> str:
    """Return what it says to convert into, if anything."""
    return parse_backend(store_name_of(advice.chosen.backend)).name if advice.chosen else ""


def test_a_row_per_choice_with_the_cores_that_it_needs() -> None:
    advice = advised(
        loaded("lmdb", 4000.0, 0.2, image_size=224),
        loaded("lmdb+jpeg", 900.0, 0.6, image_size=256),
        loaded("original:simplejpeg", 400.0, 1.5, image_size=224),
        loaded("lmdb+original", 300.0, 2.0, image_size=224),
        loaded("original", 300.0, 2.0, image_size=224),
        accelerators=("slow=1000",),
    )
    assert advice.table is not None
    assert [(row[0], row[1], row[2], row[4]) for row in advice.table.rows] == [
        ("your files", "300", "2.00", "2"),
        ("the same files in LMDB", "300", "2.00", "2"),
        ("your files, decoder simplejpeg", "400", "1.50", "2"),
        ("256-pixel JPEGs in LMDB", "900", "0.600", "1"),
        ("raw pixels in LMDB", "4,000", "0.200", "1"),
    ]
    assert advice.chosen is not None
    told = "storebench convert lmdb+jpeg --dataset imagenet --size 4000 --image-size 256"
    assert convert_command(advice.chosen) == told
    assert [line for line in advice.lines if "slow needs 2 cores" in line]


@pytest.mark.parametrize(
    ("image_size", "named", "heads"),
    [
        (224, (), ["cores for rtx4090 / a100 / h100"]),
        (224, ("a10",), ["cores for a10"]),
        (64, (), []),
        (None, (), []),
        (None, ("a10",), ["cores for a10"]),
    ],
)
def test_published_rates_are_told_of_photographs_or_if_asked_for(
    image_size: int | None, named: tuple[str, ...], heads: list[str]
) -> None:
    advice = advised(
        loaded("original", 300.0, image_size=image_size), loaded("lmdb", 900.0, image_size=image_size),
        accelerators=named,
    )  # fmt: skip
    assert advice.table is not None
    assert [head for head in advice.table.head if head.startswith("cores")] == heads


def test_each_number_of_workers_has_a_column_and_the_most_decide() -> None:
    parts = [
        loaded(backend, rate * (1 + workers), 1.0 + workers, workers=workers)
        for backend, rate in (("original", 100.0), ("lmdb", 400.0))
        for workers in (0, 2)
    ]
    advice = advised(*parts)
    assert advice.table is not None
    assert advice.table.head[1:3] == ("images/s, no workers", "images/s, 2 workers")
    assert [row[1:4] for row in advice.table.rows] == [("100", "300", "3.00"), ("400", "1,200", "3.00")]


def test_an_accelerator_that_the_files_feed_keeps_them() -> None:
    parts = loaded("original", 300.0), loaded("lmdb+original", 900.0)
    assert store_in(advised(*parts, accelerators=("slow=200",))) == ""
    assert store_in(advised(*parts, accelerators=("fast=2000",))) == "lmdb+original"


@pytest.mark.parametrize(("cores", "store"), [(4, "lmdb+original"), (8, "")])
def test_more_workers_come_before_converting_where_there_are_cores(cores: int, store: str) -> None:
    parts = [
        [dataclasses.replace(record, conditions=Conditions(cores=cores, wall_s=1.0)) for record in records]
        for records in (loaded("original", 300.0, 6.0), loaded("lmdb+original", 900.0, 2.0))
    ]
    assert store_in(advised(*parts, accelerators=("fast=1000",))) == store


def test_a_cold_start_and_invalid_files_give_no_answer() -> None:
    assert advised(loaded("original", 300.0, cache="cold")).table is None
    sourced = [(make_record("png", compute="none", model="none"), Path("run/records.jsonl"))]
    cells = [dataclasses.replace(cell, invalid="x") for cell in summarise(to_frame(sourced))]
    told = advice_of(cells)
    assert told is not None
    assert (told.table, told.chosen) == (None, None)


def test_only_runs_that_load_are_advised(tmp_path: Path) -> None:
    assert advise(write_run(tmp_path / "trains", replicates("png", [3.0]))) is None
    found = advise(write_run(tmp_path / "loads", [*loaded("original", 100.0), *loaded("lmdb", 900.0)]))
    assert found is not None
    assert (store_in(found), found.findings) == ("lmdb", 0)
