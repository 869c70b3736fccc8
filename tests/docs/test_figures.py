"""The figures of the README and of docs/results.md are those that 'make figures' prints from the reference results."""

import re
from collections.abc import Iterator

import pytest

from tests.docs.doc_files import ROOT
from tests.docs.figures import figure_lines
from tests.docs.gpu_table import gpu_lines
from tests.docs.ladder_table import OVER_BELOW, OVER_PLAIN, ladder_lines

NAME = r"LMDB \(direct\)|LMDB read directly|LMDB|PNG files|HDF5|LevelDB"
FIGURE = re.compile(r"([\d.,]+)(?: times| images/s)? (\[[\d.,]+, [\d.,]+\])")
"""A figure and its interval."""

COMPARISON = re.compile(
    rf"({NAME}) (?:loads? |are |is )?((?:at least |at most )?[\d.,]+ times \[[\d.,]+, [\d.,]+\]) as fast as ({NAME})"
)
OTHER_COMMANDS = (
    "an accelerator busy at least 90% of its time up to",
    "Converting pays after",
    "make bench-training",
    "make bench-handoff",
)
"""What is around figures of other commands, from the example of a first run and from other targets."""

ONE_PROCESS = "128 KiB, Linux's default"
ROWS = {
    ("larger than memory", ONE_PROCESS): "limited, read-ahead 128 KiB: ",
    ("larger than memory", "8 MiB, this machine's"): "limited, read-ahead 8192 KiB: ",
    ("cold", "8 MiB"): "cold: ",
    ("larger than memory, two workers", "128 KiB"): "make bench-all: ",
    ("larger than memory, two workers", "8 MiB"): "make bench-all: ",
}
"""Where the store is and the disk's read-ahead, in the table of results -> how the line with its figures begins."""

JOB = "ladder, emulated compute, ranks = "
COAL = "PROV + DIO + COAL, coal over the rung below:"
LADDER_SENTENCES = {
    "In the first step alone, it waits {} and {}.": [
        f"{JOB}8: LMDB, its map waits",
        "ladder, real compute, ranks = 8: LMDB, its map waits",
    ],
    "only the gain with 1 rank is decided ({})": [f"{JOB}1: {COAL}"],
    "COAL's cold steps are {}, {} and {} times as fast** with 1, 2 and 4 ranks that train the tiny network": [
        f"ladder, real compute, ranks = {ranks}: PROV + DIO + COAL over LMDB without read-ahead, cold steps:"
        for ranks in (1, 2, 4)
    ],
    "one reader per node trains {} as fast** as four readers": ["limited: batches over the rung below:"],
    "With one reader per node, COAL trains {} as fast as plain LMDB.": [
        "limited: with one reader per node, COAL over LMDB:"
    ],
    "than in the first**: {} as fast where each rank reads, and {} with one reader per node. Plain LMDB is {} and {} as fast": [
        f"limited: {reader}, {readers}, second epoch over the first:"
        for reader in ("PROV + DIO + COAL", "LMDB, its map")
        for readers in ("each rank", "one per node")
    ],
}
"""A sentence of docs/scaling-io.md -> how the lines begin that its figures are from."""

Stated = tuple[str, str, str, str]


@pytest.fixture(scope="module")
def printed() -> list[Stated]:
    return [figure for line in figure_lines() if ", ±" not in line for figure in figures_of(line)]


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
    rates = [line for line in lines if line.startswith("|")]
    over_plain = [line.removeprefix(OVER_PLAIN) for line in lines if line.startswith(OVER_PLAIN)]
    assert (len(rates), len(over_plain)) == (11, 20)
    section = page.partition("## In jobs of ranks that train")[2].partition("\n## ")[0]
    tables = [
        [row for row in block.splitlines() if row.startswith("| ")]
        for block in re.split(r"\n\n", section)
        if block.startswith("|")
    ]
    assert tables[0][1:] == rates, "see 'make figures'"
    assert tables[1][1:] == over_plain, "see 'make figures'"
    limited = [line.removeprefix("limited: ") for line in lines if line.startswith("limited: |")]
    over_below = [line.removeprefix(OVER_BELOW) for line in lines if line.startswith(OVER_BELOW)]
    assert tables[2][1:] == over_below, "see 'make figures'"
    assert tables[3][1:] == limited, "see 'make figures'"
    flat = " ".join(section.split())
    for sentence, beginnings in LADDER_SENTENCES.items():
        figures = []
        for beginning in beginnings:
            (line,) = [line for line in lines if line.startswith(beginning)]
            figures.append(line.removeprefix(beginning).removesuffix(" of its cold steps").strip())
            if beginning.startswith("limited"):
                figures[-1] = figures[-1].replace(" [", " times [")
        assert sentence.format(*figures) in flat, figures
    waits, over = ([cells(row) for row in table] for table in (rates, over_plain))
    plain, tiny = (
        next(row[-1] for row in waits if row[0] == name)
        for name in ("LMDB, its map", "tiny network: LMDB, its map")
    )
    assert f"waits for data {plain} of the time of all 24 steps**, and {tiny} with the tiny network." in flat
    dio = {row[1]: row[2] for row in over if row[0] == "PROV + DIO"}
    gains = sorted(dio[ranks].split()[0] for ranks in "124")
    assert f"a factor of {gains[0]} to {gains[-1]} with 1 to 4 ranks" in flat
    assert "[0." in dio["8"], "not proven faster, as the page says"
    (coal,) = [row[2] for row in over if row[:2] == ["PROV + DIO + COAL", "8"]]
    assert f"together with COAL it trains {coal} times as fast" in flat
    (bounded,) = [line for line in lines if "upper bound in" in line]
    assert bounded.startswith(f"{JOB}8: PROV + DIO + COAL: ")
    assert bounded.endswith("in 1 of 7 rounds"), "as the page says"
    assert ahead_is_slower(over), "as the page says"
    coal_gains, stag, plain_shared, coal_shared = (cells(row)[1:] for row in over_below)
    assert excluding_one(coal_gains) == [1, 2, 8]
    assert (
        f"COAL trains {coal_gains[1].split()[0]} to {coal_gains[3].split()[0]} times as fast as DIO with 1, 2 and 8 ranks"
        in flat
    )
    assert excluding_one(stag) == [2, 4]
    assert (
        f"STAG trains {stag[1].split()[0]} and {stag[2].split()[0]} times as fast as COAL with 2 and 4 ranks"
        in flat
    )
    assert excluding_one(plain_shared) == [2, 8], "the losses, as the page says"
    assert all(figure.startswith("0.") for figure in plain_shared if figure)
    assert excluding_one(coal_shared) == []


def ahead_is_slower(over: list[list[str]]) -> bool:
    ahead = [row[2] for row in over if row[0] == "LMDB without read-ahead"]
    return all(float(figure.rstrip("]").split(", ")[1]) < 1 for figure in ahead)


def excluding_one(figures: list[str]) -> list[int]:
    """Return the ranks of the figures whose interval excludes 1."""
    found = []
    for ranks, figure in zip((1, 2, 4, 8), figures, strict=True):
        bounds = [float(bound) for bound in re.findall(r"[\d.]+", figure)[1:]]
        found += [ranks] * bool(bounds and not bounds[0] <= 1 <= bounds[1])
    return found


def cells(row: str) -> list[str]:
    return [cell.strip() for cell in row.strip("|").split("|")]


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


def test_conclusions_in_round_figures_follow_from_the_reference_results() -> None:
    """About, twice and the range of other runs, which stand without an interval."""
    results, readme = (
        " ".join((ROOT / page).read_text(encoding="utf-8").split())
        for page in ("docs/results.md", "README.md")
    )
    lines = list(figure_lines())
    feeds = re.compile(r"PNG files feed accelerators up to ([\d,.]+) images/s")
    two, one = (
        feeds.search(next(line for line in lines if line.startswith(beginning)))
        for beginning in (
            ROWS["larger than memory, two workers", "128 KiB"],
            ROWS["larger than memory", ONE_PROCESS],
        )
    )
    assert two is not None
    assert one is not None
    assert (
        f"here {two[1]} from PNG files with two workers, larger than memory, at 128 KiB, and {one[1]} with one"
        in results
    )
    assert (
        f"PNG files are fast enough below about {round(float(two[1]), -2):.0f} images/s for two workers"
        in readme
    )
    gain = next(
        found for line in lines if (found := re.match(r" +.*read-ahead 128 KiB: LMDB ([\d.]+) \[", line))
    )
    assert round(float(gain[1])) == 2, "LMDB loads twice as fast, as the README says"
    told = " ".join((ROOT / "results" / "README.md").read_text(encoding="utf-8").split())
    listed = re.findall(r"LMDB loaded ([\d., and]+\d) times as fast", told)
    others = sorted(figure for figures in listed for figure in re.findall(r"\d\.\d+", figures))
    assert len(others) == 15
    assert f"The others gave LMDB {others[0]} to {others[-1]} times the rate of PNG files" in results
    low, high = (f"{float(end):.1f}" for end in (others[0], others[-1]))
    assert f"Fifteen other runs gave {low} to {high} for the first ratio" in readme
    assert sum(not 2.01 <= float(figure) <= 2.35 for figure in others) == 5
    assert "five others outside the interval of the run that was replaced [2.01, 2.35]" in results
    eight = re.search(
        r"feeds accelerators up to ([\d,]+)\. So", (ROOT / "docs" / "gpu.md").read_text(encoding="utf-8")
    )
    assert eight is not None
    assert f"eight feed {eight[1]} images/s" in readme
    memory = re.findall(
        r"ImageNet, 2,000 images, 0 workers, .*reader and decoder alone, on the CPU, warm: LMDB (\S+) (\[.*\]) times",
        "\n".join(lines),
    )
    row = re.search(r"\| in memory \| \| LMDB loads (\S+) times (\[.*?\]) as fast as PNG files", results)
    assert row is not None
    assert row.groups() in memory
