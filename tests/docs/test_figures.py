"""The figures of the README and of docs/results.md are those that 'make figures' prints from the reference results."""

import re
from collections.abc import Iterator

import pytest

from tests.docs.doc_files import ROOT
from tests.docs.figures import figure_lines
from tests.docs.gpu_table import gpu_lines
from tests.docs.ladder_table import ladder_lines

NAME = r"LMDB \(direct\)|LMDB read directly|LMDB|PNG files|HDF5|LevelDB"
FIGURE = re.compile(r"([\d.,]+)(?: times| images/s)? (\[[\d.,]+, [\d.,]+\])")
"""A figure and its interval."""

COMPARISON = re.compile(
    rf"({NAME}) (?:loads? )?((?:at least |at most )?[\d.,]+ times \[[\d.,]+, [\d.,]+\]) as fast as ({NAME})"
)
OTHER_COMMANDS = (
    "an accelerator busy at least 90% of its time up to",
    "Converting pays after",
    "make bench-training",
    "make bench-handoff",
)
"""What is around figures of other commands, from the example of a first run and from other targets."""

ROWS = {
    ("larger than memory", "128 KiB, Linux's default"): "limited, read-ahead 128 KiB: ",
    ("larger than memory", "8 MiB, this machine's"): "limited, read-ahead 8192 KiB: ",
    ("cold", "8 MiB"): "cold: ",
    ("larger than memory, two workers", "128 KiB"): "make bench-all: ",
}
"""Where the store is and the disk's read-ahead, in the table of results -> how the line with its figures begins."""

Stated = tuple[str, str, str, str]


@pytest.fixture(scope="module")
def printed() -> list[Stated]:
    return [figure for line in figure_lines() if " over " not in line for figure in figures_of(line)]


def figures_of(text: str) -> Iterator[Stated]:
    """Yield the store before each figure, the figure, its interval, and the store with which it is compared, or ""."""
    flat = " ".join(text.split())
    for found in FIGURE.finditer(flat):
        before = re.findall(NAME, flat[: found.start()])
        after = re.match(rf"(?: times)?(?: as fast as)? ({NAME})", flat[found.end() :])
        yield _named(before[-1] if before else ""), found[1], found[2], _named(after[1] if after else "")


def _named(store: str) -> str:
    return "LMDB (direct)" if store == "LMDB read directly" else store


def passages(page: str) -> Iterator[str]:
    """Yield the paragraphs, list items and rows of a page, but for those with figures of other commands."""
    text = (ROOT / page).read_text(encoding="utf-8")
    for passage in re.split(r"\n\n|\n(?=- |\|)", text):
        if not any(words in " ".join(passage.split()) for words in OTHER_COMMANDS):
            yield passage


def is_printed(stated: Stated, printed: list[Stated]) -> bool:
    same = (other for other in printed if other[:3] == stated[:3])
    return any("" in (stated[3], other[3]) or stated[3] == other[3] for other in same)


@pytest.mark.parametrize(("page", "least"), [("README.md", 7), ("docs/results.md", 9), ("docs/faq.md", 1)])
def test_figures_with_intervals_are_those_of_the_reference_results(
    page: str, least: int, printed: list[Stated]
) -> None:
    """Of the same store, compared with the same one."""
    stated = [figure for passage in passages(page) for figure in figures_of(passage)]
    assert len(stated) >= least
    assert [figure for figure in stated if not is_printed(figure, printed)] == [], "see 'make figures'"


def test_each_row_of_the_results_is_of_its_own_setting() -> None:
    lines = [" ".join(line.split()) for line in figure_lines()]
    page = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    rows = [
        [cell.strip() for cell in row.strip("|").split("|")]
        for row in re.findall(r"^\|.*$", page, re.MULTILINE)
    ]
    found = {(row[0], row[1]): row[2] for row in rows}
    for place, beginning in ROWS.items():
        [line] = [line for line in lines if line.startswith(beginning)]
        of_line = {tuple(map(_named, comparison)) for comparison in COMPARISON.findall(line)}
        compared = COMPARISON.findall(found[place])
        assert compared
        assert {tuple(map(_named, comparison)) for comparison in compared} <= of_line, place


def test_the_tables_of_the_gpu_are_those_of_its_runs() -> None:
    page = (ROOT / "docs" / "gpu.md").read_text(encoding="utf-8")
    flat = " ".join(page.split())
    lines = list(gpu_lines())
    rows = [line for line in lines if line.startswith("|")]
    assert len(rows) >= 28
    assert [row for row in rows if row not in page] == [], "see 'make figures'"
    assert sum(row in rows for row in page.splitlines()) == len(rows)
    warm = next(line for line in lines if line.startswith("warm: The model is"))
    assert f"the model is {warm.removeprefix('warm: The model is ')}".rstrip(".") in flat
    for line in lines:  # what hands over, and what waits for it
        if line.startswith(("handoff in memory", "with the latter", "of the cold epochs")):
            assert re.sub(r"^.*?(\d+%? to \d+%?(?: µs)?).*$", r"\1", line) in flat, line
    own = next(line for line in lines if line.startswith("with the handoff of cells that only load"))
    assert (
        "off by {} at the median of the 12 points and by {} at most".format(*re.findall(r"\d+%", own)) in flat
    )


def test_starving_points_alone_are_those_of_the_results() -> None:
    lines = "\n".join(figure_lines())
    points = dict(
        re.findall(rf"({NAME})(?: feed accelerators)? up to ([\d,]+)(?: images/s)? \[", lines.splitlines()[0])
    )
    readme = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    assert f"PNG files up to {points['PNG files']} images/s, LMDB up to {points['LMDB']}]" in readme


def test_the_ladder_of_ranks_is_that_of_its_run() -> None:
    page = (ROOT / "docs" / "scaling-io.md").read_text(encoding="utf-8")
    lines = list(ladder_lines())
    rows = [line for line in lines if line.startswith("|")]
    assert len(rows) == 11
    section = page.partition("## In jobs of ranks that train")[2].partition("\n## ")[0]
    assert [row for row in section.splitlines() if row.startswith("| ")][1:] == rows, "see 'make figures'"
    flat = " ".join(section.split())
    stated = (
        ("emulated compute, ranks = 8: LMDB, its map waits", "loop waits for data {} of the time"),
        ("real compute, ranks = 8: LMDB, its map waits", "{} with the tiny network"),
        ("emulated compute, ranks = 8: the same with STAG trains", "STAG trains {} as fast as plain LMDB"),
        ("emulated compute, ranks = 8: PROV + DIO trains", "DIO {}, and"),
        ("emulated compute, ranks = 8: LMDB without read-ahead trains", "LMDB without read-ahead {}"),
        ("emulated compute, ranks = 1: PROV + DIO + COAL trains", "With 1, 2 and 4 ranks, it trains {},"),
        ("emulated compute, ranks = 2: PROV + DIO + COAL trains", "{} and"),
        ("emulated compute, ranks = 4: PROV + DIO + COAL trains", "{} as fast as plain LMDB"),
    )
    for start, sentence in stated:
        (line,) = [line for line in lines if line.startswith(f"ladder, {start}")]
        told = re.search(r"(at least )?(\S+)( \[.*\])", line)
        assert told is not None
        figure = "{}{}{}{}".format(told[1] or "", told[2], " times" if told[1] else "", told[3])
        assert sentence.format(figure) in flat, line
    assert not [
        line for line in lines if "ranks = 8: PROV + DIO + COAL trains" in line
    ]  # no ratio, as the page says
    assert not [line for line in lines if "real compute" in line and " trains " in line]


def test_other_figures_are_those_of_the_reference_results() -> None:
    """Those without intervals: the model's errors, what read-ahead delivers, and the work that is decoding."""
    page = " ".join((ROOT / "docs" / "results.md").read_text(encoding="utf-8").split())
    lines = "\n".join(figure_lines())
    errors = re.search(r"off by ([\d.]+%) at the median of (\d+) points and by ([\d.]+%) at most", lines)
    assert errors is not None
    assert "off by {} in the median of its {} points, and by {} at most".format(*errors.groups()) in page
    delivered = dict(
        re.findall(r"read-ahead (\d+) KiB: .*\n.*\n +LMDB: the device delivered ([\d.]+) times", lines)
    )
    assert f"the device delivers {delivered['8192']} times the bytes that LMDB asked for" in page
    assert f"at 128 KiB {delivered['128']} times" in page
    decoding = re.search(r"decoding \((\d+%) of the producers' work with PNG files\)", lines)
    assert decoding is not None
    assert f"it is {decoding[1]} of the producers' work with PNG files" in page
    rates = re.compile(
        r"codecs, (?:warm|cold): JPEG files (\S+)/s, PNG files (\S+)/s, LMDB (.+) raw images/s"
    )
    warm, cold = rates.findall(lines)
    assert (
        "one process loads {} JPEG files/s of 256 x 256 pixels, {} PNG files/s, and {} raw images".format(
            *warm
        )
        in page
    )
    assert "Cold, at 8 MiB, it is {}, {} and {}".format(*cold) in page
    space = re.search(r"raw pixels take ([\d.]+ times the space of) JPEG files", lines)
    assert space is not None
    assert f"Raw pixels take {space[1]} the JPEGs" in page
    alone = "reader and decoder alone, on the CPU, warm: LMDB"
    mnist, cifar10 = (re.search(rf"{name}, .*{alone} ([\d.]+) \[", lines) for name in ("MNIST", "CIFAR-10"))
    assert mnist is not None
    assert cifar10 is not None
    assert f"LMDB loads {mnist[1]} (MNIST) and {cifar10[1]} times (CIFAR-10) as fast as PNG files" in page
