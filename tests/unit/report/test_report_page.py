"""The page and the files beside it: whole, self-contained, accessible, and honest on the first screen."""

import dataclasses
import itertools
import json
import re
from collections import Counter as Count
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from subprocess import CompletedProcess

import pytest

import storebench
from storebench.errors import IntegrityError
from storebench.report.build import write_report
from storebench.results import CacheVerdict, Counters, Record, Status
from tests.support.planted import make_record, paper_records, write_run

Cli = Callable[..., CompletedProcess[str]]

VOID = {"meta", "img", "br", "hr", "link", "input"}


class Page(HTMLParser):
    """Collect what the tests ask of a page, and fail on tags that do not match."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text_by_tag: dict[str, list[str]] = {}
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and data.strip():
            self.text_by_tag.setdefault(self.open[-1], []).append(data.strip())

    def of(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


def failed(backend: str, reason: str) -> Record:
    return make_record(backend, status=Status.FAILED, failure=reason, samples_per_s=0.0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report with failed, unverified, derived and emulated cells, cold and warm, with steps."""
    out = tmp_path_factory.mktemp("page")
    records = [r for r in paper_records("warm") if r.cell.backend.name != "hdf5"] + [
        failed("hdf5", "12% <resident>")
    ]
    records += paper_records("cold")
    unproven = make_record("lmdb", dataset="cifar10", size=None, origin="derived", compute="emulated:5")
    cache = dataclasses.replace(unproven.cache, verdict=CacheVerdict.UNVERIFIED, resident_frac_before=None)
    records += [dataclasses.replace(unproven, cache=cache)]
    run = write_run(out / "run", records, with_steps=True)
    write_report(run, out / "report")
    return out / "report"


@pytest.fixture(scope="module")
def text(folder: Path) -> str:
    return (folder / "report.html").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def page(text: str) -> Page:
    return Page(text)


def test_the_page_is_well_formed_and_says_its_language(page: Page) -> None:
    assert page.of("html") == [{"lang": "en"}]
    assert page.of("title") == [{}]


def test_the_page_needs_nothing_but_itself(text: str) -> None:
    links = re.findall(r"(?:src|href)=\"([^\"]*)\"|url\(([^)]*)\)|@import", text)
    assert all(link[0].startswith(("data:", "#")) for link in links)
    assert "http://" not in text
    assert "https://" not in text


def test_every_image_says_what_it_shows(page: Page) -> None:
    images = page.of("img")
    assert len(images) >= 8
    assert all(len(image["alt"] or "") > 20 for image in images)


def test_ids_are_unique_and_links_lead_somewhere(page: Page) -> None:
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert max(Count(ids).values()) == 1
    labelled = [a["aria-labelledby"] for _, a in page.tags if "aria-labelledby" in a]
    targets = [(a["href"] or "").removeprefix("#") for a in page.of("a")] + labelled
    assert set(targets) <= set(ids)


def test_headings_come_in_order(page: Page) -> None:
    levels = [int(tag[1]) for tag, _ in page.tags if re.fullmatch(r"h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after - before <= 1 for before, after in itertools.pairwise(levels))


def test_tables_have_captions_and_scopes_and_scroll_by_keyboard(page: Page) -> None:
    assert len(page.of("caption")) == len(page.of("table"))
    assert all(one.get("scope") in ("col", "row") for one in page.of("th"))
    scrolled = [a for a in page.of("div") if a.get("class") == "scroll"]
    assert len(scrolled) == len(page.of("table"))
    assert all(a["tabindex"] == "0" and a["aria-label"] for a in scrolled)


def test_the_first_screen_says_what_failed_and_what_is_not_real(text: str) -> None:
    header = text[: text.index("</header>")]
    assert "1 of 15 cells failed: ImageNet, 4,000 images HDF5 warm (12% &lt;resident&gt;)." in header
    assert "1 cell whose cache state could not be verified" in header
    assert "CIFAR-10: DERIVED images: 95%" in header
    assert "CIFAR-10: compute EMULATED by a sleep of 5 ms" in header
    assert "LMDB feeds CaffeNet" in header


def test_caveats_stand_in_every_caption_and_plot_of_their_dataset(text: str, folder: Path) -> None:
    captions = [c for c in re.findall(r"<caption>.*?</caption>", text) if "CIFAR-10" in c]
    assert captions
    assert all("DERIVED" in caption and "EMULATED" in caption for caption in captions)
    assert "DERIVED" in (folder / "table-cifar10.md").read_text()


def test_every_cell_stands_in_the_sortable_table(text: str) -> None:
    table = text[text.index('class="sortable"') :]
    assert len(re.findall(r"<tr", table[table.index("<tbody>") :])) == 15


def test_each_plot_is_there_as_svg_and_png_and_has_its_question(folder: Path) -> None:
    names = {path.stem for path in folder.glob("*.svg")}
    assert names == {path.stem for path in folder.glob("*.png")}
    wanted = {
        "throughput",
        "step-time",
        "read-amplification",
        "wait-over-epoch",
        "wait-distribution",
        "loss",
    }
    assert {f"{name}-imagenet-4000" for name in wanted} <= names
    assert not any(name.startswith(("workers", "container-codec")) for name in names), "no records for these"


def test_the_markdown_twin_links_files_that_are_there(folder: Path) -> None:
    text = (folder / "report.md").read_text(encoding="utf-8")
    links = re.findall(r"!\[[^\]]*\]\(([^)]+)\)", text)
    assert len(links) >= 8
    assert all((folder / link).is_file() for link in links)
    assert "**Attention:** 1 of 15 cells failed" in text


@pytest.mark.usefixtures("without_pictures")
def test_a_plot_that_draws_a_part_of_the_cells_says_so(tmp_path: Path) -> None:
    options = [(("window_mib", str(number)),) for number in range(4, 34)]
    records = [make_record("lmdb:direct", reader_options=option) for option in options]
    write_report(write_run(tmp_path / "run", records), tmp_path / "report")
    assert "Drawn are 24 of 30 cells; the table has them all." in (tmp_path / "report/report.md").read_text()


@pytest.mark.usefixtures("without_bitmaps")
def test_the_same_records_give_the_same_page(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [make_record("png"), make_record("lmdb")])
    pages = []
    for name in ("a", "b"):
        write_report(run, tmp_path / name)
        pages.append((tmp_path / name / "report.html").read_bytes())
    assert pages[0] == pages[1]


def test_what_does_not_validate_is_refused_and_marked_when_asked_for(tmp_path: Path, cli: Cli) -> None:
    wrong = dataclasses.replace(make_record("hdf5"), data_wait_frac=0.9)
    run = write_run(tmp_path / "run", [wrong, make_record("png"), make_record("lmdb")])
    with pytest.raises(IntegrityError, match="allow-invalid"):
        write_report(run, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    done = cli("report", "run", "--allow-invalid", "--json")
    assert done.returncode == 0
    assert json.loads(done.stdout)["invalid_cells"] == 1
    header = (tmp_path / "report" / "report.html").read_text().partition("</header>")[0]
    assert "1 finding of validation: ImageNet, 4,000 images HDF5 warm" in header


def test_a_report_that_cannot_be_written_says_so_in_one_line(tmp_path: Path, cli: Cli) -> None:
    write_run(tmp_path / "run", [make_record("png")])
    (tmp_path / "taken").write_text("a file")
    done = cli("report", "run", "--out", "taken")
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.usefixtures("without_pictures")
def test_no_distribution_is_drawn_of_a_few_steps(tmp_path: Path) -> None:
    for steps, drawn in ((19, False), (20, True)):
        run = write_run(tmp_path / f"run-{steps}", [make_record("lmdb", steps=steps)], with_steps=True)
        write_report(run, tmp_path / f"out-{steps}")
        names = {path.stem for path in (tmp_path / f"out-{steps}").glob("*.svg")}
        assert {
            f"{name}-imagenet-4000" in names for name in ("wait-distribution", "wait-over-epoch", "loss")
        } == {drawn}


@pytest.mark.usefixtures("without_pictures")
def test_warm_cells_show_no_read_amplification(tmp_path: Path) -> None:
    warm = make_record("lmdb", cache="warm")
    read = Counters(device_read_bytes=1000, read_amplification=1000 / warm.payload_bytes)
    warm = dataclasses.replace(warm, counters=read)
    write_report(write_run(tmp_path / "run", [warm]), tmp_path / "out")
    assert not list((tmp_path / "out").glob("read-amplification*"))


def test_an_interval_that_exceeds_its_figure_does_not_wreck_the_axis(tmp_path: Path) -> None:
    # Two rounds of 14 and 110 ms per step: the interval ends at many times the figure.
    records = [
        make_record("lmdb", replicate=n, wait_ms=wait, cache="warm") for n, wait in enumerate((4.0, 100.0))
    ]
    results = storebench.load_results(write_run(tmp_path / "run", records))
    most = results["samples_per_s"].max()
    assert storebench.plot_throughput(results).get_xlim()[1] < 4 * most
    assert storebench.plot_size(results).get_ylim()[1] < 2 * most
    low, high = storebench.plot_workers(results).get_ylim()
    assert high < 4 * most
    assert low > results["samples_per_s"].min() / 4
