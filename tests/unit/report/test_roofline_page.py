"""What a report says, tabulates and draws of the storage roofline, checked with planted records."""

import dataclasses
import itertools
import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.axes import Axes
from matplotlib.container import ErrorbarContainer
from matplotlib.figure import Figure
from matplotlib.text import Annotation, Text

import storebench
from storebench.accelerators import find_accelerator
from storebench.errors import UnknownNameError
from storebench.report.build import content_of, feeding_sentences, write_report
from storebench.report.cells import CellSummary, summarise
from storebench.report.frame import to_frame
from storebench.report.plots.roofline import grouped, spaced
from storebench.report.roofline import Roofline, rooflines
from storebench.report.roofline_tables import roofline_tables
from storebench.report.texts.labels import with_interval
from storebench.report.texts.roofline import (
    accelerator_sentence,
    handoff_sentence,
    one_roofline_answer,
    roofline_answer,
)
from storebench.results import Record
from tests.support.planted import make_record, write_run
from tests.support.planted_roofline import curve_records, loader_records, point_records

Cli = Callable[..., subprocess.CompletedProcess[str]]
LIMITED: dict[str, Any] = {"cache": "limited", "memory_bytes": 128 << 20, "workers": 2}


def cells_of(*records: Record) -> list[CellSummary]:
    return summarise(to_frame((record, Path("run/records.jsonl")) for record in records))


def rooflines_of(*records: Record) -> list[Roofline]:
    return rooflines(cells_of(*records))


def paper_roofline() -> list[Record]:
    """Plant the three states of a study: larger than memory with two read-aheads, and in memory."""
    records = loader_records("png", 540.0, readahead_kib=128, **LIMITED)
    records += loader_records("lmdb", 225.0, readahead_kib=128, **LIMITED)
    records += loader_records("png", 545.0, readahead_kib=8192, **LIMITED)
    records += loader_records("lmdb", 2500.0, readahead_kib=8192, **LIMITED)
    records += curve_records("png", 560.0, decode_ms=100.0) + curve_records("lmdb", 9000.0)
    records += curve_records("lmdb:direct", 20_000.0) + curve_records("memory:native", 26_000.0)
    alone = [make_record("null", replicate=n, compute_ms=1280.0, wait_ms=0.0) for n in range(3)]
    return records + alone + [make_record("png", replicate=n, compute_ms=1280.0) for n in range(3)]


def test_the_answer_says_who_is_fed_and_what_decides_it() -> None:
    answer = roofline_answer(rooflines_of(*paper_roofline()))
    assert answer is not None
    first, second = answer.split(". These figures depend on ")
    assert first.startswith(
        "ImageNet, 4,000 images, larger than memory (page cache limited to 128 MiB), read-ahead 128 KiB, 2 workers: "
        "PNG files feed accelerators up to 600 images/s [585, 615], LMDB up to 250 [244, 256] or 2,780 ["
    )
    assert "(if the disk reads ahead 128 or 8192 KiB)" in first
    assert first.endswith(
        "; each of them keeps this CPU (CaffeNet at 25.0 [25.0, 25.0] images/s) busy at least 90% of its time"
    )
    assert second.startswith("whether the store fits into memory (LMDB in memory: up to 10,000 [")
    assert "the disk's read-ahead (LMDB)" in second


def test_decoding_is_named_where_it_is_most_of_the_work() -> None:
    records = loader_records("png", 540.0, workers=2, decode_ms=1000.0) + loader_records(
        "lmdb", 9000.0, workers=2
    )
    answer = roofline_answer(rooflines_of(*records))
    assert answer is not None
    assert "These figures depend on decoding (89% of the producers' work with PNG files)." in answer


def test_a_handoff_leaves_an_accelerator_idle_that_the_supply_would_feed() -> None:
    handing = {"workers": 2, "handoff_ms": 5.0}
    step_ms = 12.95  # an A100 takes 32 images at 2,470 images/s
    records = loader_records("png", 540.0, workers=2) + loader_records("lmdb", 9000.0, **handing)
    records += point_records("lmdb", step_ms, 1000 * 32 / (step_ms + 5.0), **handing)
    answer = roofline_answer(rooflines_of(*records))
    assert answer is not None
    assert answer.endswith("busy 22% of its time with PNG files and 72% with LMDB, by the roofline's model.")


def test_how_busy_stores_keep_an_accelerator_that_starves_is_told() -> None:
    png, lmdb = (loader_records(name, rate, workers=2) for name, rate in (("png", 540.0), ("lmdb", 9000.0)))
    answer = roofline_answer(rooflines_of(*png, *lmdb))
    assert answer is not None
    assert answer.endswith("busy 22% of its time with PNG files and 100% with LMDB, by the roofline's model.")
    assert "A100 80 GB, ResNet-50 (2,470 images/s, " in answer
    fed = roofline_answer(rooflines_of(*lmdb))
    assert fed is not None
    assert "A100" not in fed
    digits = loader_records("png", 540.0, workers=2, dataset="mnist")
    assert "A100" not in (roofline_answer(rooflines_of(*digits)) or "A100")


def feeds(found: Roofline, rate: float) -> str:
    """Return the verdict of the table of starving points on an accelerator of some images/s; one backend was measured."""
    table = roofline_tables([found], [find_accelerator(f"mine={rate:g}")])[0]
    assert table.head[-1].endswith("[simultaneous 95%]")
    [row] = table.rows
    return row[-1]


def test_a_verdict_of_the_table_shows_the_interval_that_decides_it() -> None:
    found = rooflines_of(*loader_records("lmdb", 900.0, workers=2, spread=(0.9, 1.0, 1.1, 0.95, 1.05)))[0]
    found = found.concluding(0.001)
    [curve] = found.curves
    single, sure = curve.starving, curve.sure
    assert single.hi is not None
    assert sure.hi is not None
    between = (single.hi + sure.hi) / 2
    assert single.hi < between < sure.hi
    assert feeds(found, between) == f"cannot be told: {with_interval(sure)}"
    assert feeds(found, 2 * sure.hi) == "no"
    assert feeds(found, 0.5 * (sure.lo or 0.0)) == "yes"


def test_nothing_decided_is_no_answer() -> None:
    undecided = loader_records("png", 540.0, spread=(0.3, 1.0, 3.0))
    assert roofline_answer(rooflines_of(*undecided)) is None
    assert roofline_answer([]) is None
    assert one_roofline_answer(rooflines_of(*undecided)[0]).endswith(
        "no starving point is decided yet (PNG files); more rounds may decide it."
    )


def test_backends_in_memory_lead_no_answer() -> None:
    records = loader_records("memory:native", 20_000.0) + loader_records("png", 500.0, spread=(0.3, 1.0, 3.0))
    assert roofline_answer(rooflines_of(*records)) is None


def test_an_undecided_state_does_not_hide_a_decided_one() -> None:
    records = loader_records("png", 500.0, spread=(0.3, 1.0, 3.0), readahead_kib=128, **LIMITED)
    records += loader_records("png", 500.0, workers=2)
    answer = roofline_answer(rooflines_of(*records))
    assert answer is not None
    assert answer.startswith("ImageNet, 4,000 images, warm, 2 workers: PNG files feed accelerators up to 556")


def test_an_accelerator_is_fed_by_some_and_starved_by_others() -> None:
    records = loader_records("png", 540.0, workers=2) + loader_records("lmdb", 9000.0, workers=2)
    records += loader_records("hdf5", 2230.0, workers=2)
    sentence = accelerator_sentence(rooflines_of(*records)[0], find_accelerator("a100"))
    assert sentence == (
        "A100 80 GB, ResNet-50 (2,470 images/s, mixed precision; NVIDIA DeepLearningExamples, ResNet50 v1.5 for PyTorch"
        " (2021)): kept busy at least 90% of its time by LMDB; starved by PNG files; undecided for HDF5."
        " ImageNet, 4,000 images, warm, 2 workers."
    )


def test_an_accelerator_of_a_given_rate_is_told_as_given() -> None:
    found = rooflines_of(*loader_records("png", 540.0, workers=2))
    own = find_accelerator("h100=3000")
    sentence = accelerator_sentence(found[0], own)
    assert sentence.startswith("h100 (3,000 images/s, as given): starved by PNG files. ")
    [table] = roofline_tables(found, [own])
    assert "h100: 3,000 images/s in training, as given." in table.notes


def test_a_network_that_some_stores_starve_is_not_said_to_be_fed() -> None:
    records = loader_records("png", 540.0) + loader_records("lmdb", 9000.0)
    records += [make_record("null", replicate=n, compute_ms=160.0, wait_ms=0.0) for n in range(3)]
    records += [make_record("png", replicate=n, compute_ms=160.0) for n in range(3)]
    answer = roofline_answer(rooflines_of(*records))
    assert answer is not None
    assert (
        "this CPU (CaffeNet at 200 [200, 200] images/s) is kept busy at least 90% of its time by LMDB, starved by PNG files"
        in answer
    )


def test_the_tables_hold_every_starving_point_and_every_point() -> None:
    found = rooflines_of(*paper_roofline())
    starving, errors = roofline_tables(found, [find_accelerator("v100")])
    assert len(starving.rows) == 8
    assert starving.head[-2:] == (
        "feeds this CPU, CaffeNet, 25.0/s [simultaneous 95%]",
        "feeds V100, ResNet-50, 1,200/s [simultaneous 95%]",
    )
    assert "batches of 32 images of 256 x 256" in starving.caption
    row = next(
        row for row in starving.rows if row[1] == "LMDB (cache state not verified)" and "8192" in row[0]
    )
    assert row[-2:] == ("yes", "yes")
    assert any("github.com/NVIDIA" in note for note in starving.notes)
    assert len(errors.rows) == 20
    assert any(
        note.startswith("The model is off by ") and note.endswith(" at most.") for note in errors.notes
    )
    assert all(len(line) == len(table.raw_head) for table in (starving, errors) for line in table.raw)
    assert all(len(line) == len(table.head) for table in (starving, errors) for line in table.rows)


def test_both_tables_show_the_processor_time_of_their_cells() -> None:
    records = loader_records("lmdb", 1000.0) + point_records("lmdb", 32.0, 500.0)
    used = [  # 3,200 samples each: in 3.2 s without compute, and in 6.4 s
        dataclasses.replace(
            record, counters=dataclasses.replace(record.counters, cpu_user_s=3.0, cpu_system_s=0.2)
        )
        for record in records
    ]
    for table, cores in zip(roofline_tables(rooflines_of(*used)), ("1.0", "0.50"), strict=True):
        [row] = table.rows
        told = dict(zip(table.head, row, strict=True))
        assert (told["CPU per sample"], told["cores"]) == ("1.00 ms", cores)
        [raw] = table.raw
        assert dict(zip(table.raw_head, raw, strict=True))["cpu_s_per_sample"] == pytest.approx(0.001)


def test_an_unexplained_point_is_marked_and_counted() -> None:
    records = curve_records("png", 600.0, sleeps_ms=[320.0, 100.0])
    records += point_records("png", 10.0, 300.0, workers=2, fetch_ms=2000 * 32 / 600)
    _, errors = roofline_tables(rooflines_of(*records))
    assert errors.marks == ("", "", "unexplained")
    assert errors.rows[-1][-1] == "unexplained"
    assert errors.rows[-1][-2] == "100%"
    assert "1 point is off by more than 20%, 1 of them unexplained." in errors.notes[0]


@pytest.mark.usefixtures("without_pictures")
def test_a_report_leads_with_the_roofline_and_lists_its_tables(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", paper_roofline())
    written = write_report(run, tmp_path / "out", accelerators=[find_accelerator("a100")], allow_invalid=True)
    names = {path.name for path in written.files}
    slug = "imagenet-4000"
    assert {f"roofline-{slug}.svg", f"roofline-{slug}.csv", f"roofline-points-{slug}.csv"} <= names
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert page.index("Plot: How fast an accelerator does each store feed?") < page.index("<nav")
    assert "Which accelerators does each store feed?" in page
    assert "A100 80 GB, ResNet-50" in page
    text = (tmp_path / "out" / "report.md").read_text(encoding="utf-8")
    assert "### Which accelerators does each store feed?" in text
    assert len((tmp_path / "out" / f"roofline-points-{slug}.csv").read_text().splitlines()) == 21
    assert len(written.feeding) == 1
    assert text.count("LMDB in memory: up to") == 1, "the answer of the page is not said again"


@pytest.mark.usefixtures("without_pictures")
def test_records_without_a_loader_make_a_report_without_a_roofline(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [make_record("png"), make_record("lmdb")])
    written = write_report(run, tmp_path / "out", accelerators=[find_accelerator("a100")])
    assert written.feeding == ()
    assert not [path for path in written.files if path.name.startswith("roofline")]
    assert feeding_sentences(run, [find_accelerator("a100")]) == []


def test_a_store_that_does_not_validate_is_not_said_to_starve_it(tmp_path: Path) -> None:
    wrong = [
        dataclasses.replace(one, accelerator_util_frac=1.2)
        for one in loader_records("lmdb", 900.0, workers=2)
    ]
    run = write_run(tmp_path / "run", loader_records("png", 540.0, workers=2) + wrong)
    [sentence] = feeding_sentences(run, [find_accelerator("a100")])
    assert "): starved by PNG files. " in sentence


def test_a_store_that_supplies_more_than_it_feeds_is_explained() -> None:
    slow = loader_records("png", 540.0, workers=2)
    assert handoff_sentence(rooflines_of(*slow)) == ""
    handed = loader_records("lmdb", 9000.0, workers=2, handoff_ms=2.0)
    said = handoff_sentence(rooflines_of(*slow, *handed))
    assert said.startswith(
        "LMDB feeds slower accelerators than its supply rate would allow: between two steps the loader hands a batch over"
    )
    answer = roofline_answer(rooflines_of(*slow, *handed))
    assert answer is not None
    assert said in answer, "two stores that feed the same are not equally fast"


def test_the_command_says_which_stores_feed_an_accelerator(cli: Cli, tmp_path: Path) -> None:
    write_run(tmp_path / "run", loader_records("png", 540.0) + loader_records("lmdb", 90_000.0))
    done = cli(
        "report", "run", "--out", "out", "--accelerator", "a100", "--accelerator", "k40", "--allow-invalid"
    )
    assert done.returncode == 0, done.stderr
    assert "A100 80 GB, ResNet-50 (2,470 images/s" in done.stdout
    assert "K40, CaffeNet (267 images/s" in done.stdout
    found = cli("report", "run", "--out", "out", "--accelerator", "a100", "--allow-invalid", "--json")
    assert json.loads(found.stdout)["feeding"][-1].startswith("A100")


def test_an_unknown_accelerator_is_refused_before_any_work(cli: Cli, tmp_path: Path) -> None:
    for words in (
        ("report", "nowhere", "--accelerator", "a101"),
        ("run", "png", "--dataset", "mnist", "--accelerator", "a101"),
    ):
        done = cli(*words)
        assert done.returncode == 2
        assert done.stderr == (
            "storebench: no accelerator is called 'a101'. Give its rate in images/s, a101=RATE, or name one of these: "
            "k40, k80, p100, v100, rtx3090, a100.\n"
        )
    assert not list(tmp_path.iterdir())


def test_a_run_that_trains_cannot_say_what_feeds_an_accelerator(cli: Cli, tmp_path: Path) -> None:
    done = cli("run", "png", "--dataset", "mnist", "--accelerator", "a100")
    assert done.returncode == 2
    assert "--compute none" in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.fixture(scope="module")
def axes() -> Axes:
    found = storebench.plot_roofline(
        cells_of(*paper_roofline()), accelerators=["a100", "v100", "k40", "p100:alexnet"]
    )
    figure = found.get_figure()
    assert isinstance(figure, Figure)
    figure.canvas.draw()
    return found


def test_no_two_labels_of_the_plot_touch_and_none_is_cut_off(axes: Axes) -> None:
    figure = axes.get_figure(root=True)
    assert figure is not None
    labels = [text for text in axes.texts if isinstance(text, Annotation)]
    assert len(labels) == 6 + 5
    boxes = [(text.get_text(), super(Annotation, text).get_window_extent()) for text in labels]
    for place, (name, box) in enumerate(boxes):
        assert box.x0 >= figure.bbox.x0, name
        assert box.x1 <= figure.bbox.x1, name
        assert box.y1 <= figure.bbox.y1, name
        touching = [other for other, second in boxes[place + 1 :] if box.overlaps(second)]
        assert not touching, name


def test_each_backend_has_its_curve_and_its_points(axes: Axes) -> None:
    texts = [text.get_text() for text in axes.texts]
    assert "PNG files up to 600/s" in texts
    assert "LMDB (direct), warm: up to 22,200/s" in texts
    assert any(text.startswith("this CPU, CaffeNet: 25") for text in texts)
    assert len(axes.containers) == 4, "four backends have points"


@pytest.mark.parametrize(("spread", "bars"), [((0.97, 1.03), 0), ((0.97, 1.0, 1.03), 1)])
def test_points_of_two_rounds_have_no_bar_and_the_note_says_so(spread: tuple[float, ...], bars: int) -> None:
    """The interval of two rounds spans a factor of 40 and would hide where the point is."""
    found = storebench.plot_roofline(
        cells_of(*loader_records("png", 500.0), *point_records("png", 10.0, 400.0, spread=spread))
    )
    (container,) = [one for one in found.containers if isinstance(one, ErrorbarContainer)]
    assert len(container.lines[2]) == bars
    figure = found.get_figure(root=True)
    assert figure is not None
    words = " ".join(text.get_text() for text in figure.findobj(Text)).replace("\n", " ")
    assert ("Points without a bar have fewer than 3 rounds" in words) == (not bars)


def test_readers_of_one_format_have_shades_of_its_colour() -> None:
    found = storebench.plot_roofline(
        cells_of(*loader_records("lmdb", 500.0), *loader_records("lmdb:direct", 700.0))
    )
    colours = {line.get_color() for line in found.lines if isinstance(line.get_color(), tuple)}
    assert len(colours) == 2


def test_a_plot_without_a_loader_says_so() -> None:
    found = storebench.plot_roofline(cells_of(make_record("png")))
    assert [text.get_text() for text in found.texts] == ["no cell only loads (compute none)"]
    with pytest.raises(UnknownNameError):
        storebench.plot_roofline(cells_of(make_record("png")), accelerators=["abacus"])


def test_the_warm_state_is_drawn_beside_the_first_other_one() -> None:
    found = rooflines_of(
        *paper_roofline(), *loader_records("png", 500.0), *loader_records("png", 1.0, workers=4)
    )
    groups = [
        [(one.first.cell.workers, one.first.cell.cache, one.first.cell.readahead_kib) for one in group]
        for group in grouped(found)
    ]
    assert groups == [
        [(2, "limited", 128), (2, "warm", None)],
        [(2, "limited", 8192)],
        [(0, "warm", None)],
    ]


def test_decoding_is_not_named_where_the_handoff_is_the_limit() -> None:
    def told(handoff_ms: float) -> str | None:
        parts: dict[str, Any] = {"wait_ms": 40.0, "decode_ms": 30.0, "handoff_ms": handoff_ms}
        loading: dict[str, Any] = {"compute": "none", "compute_ms": 0.0, "workers": 2, "model": "none"}
        return roofline_answer(
            rooflines_of(*(make_record("png", replicate=n, **parts, **loading) for n in range(5)))
        )

    assert "decoding" in (told(0.6) or "")
    assert "decoding" not in (told(6.0) or "decoding")


def test_the_answer_names_the_batch_size_where_several_were_measured() -> None:
    answer = roofline_answer(
        rooflines_of(*loader_records("png", 500.0), *loader_records("png", 400.0, batch_size=8))
    )
    assert "batch 32" in (answer or "")
    small = loader_records("png", 400.0, batch_size=8, dataset="cifar10", size=None)
    assert "batch" not in (roofline_answer(rooflines_of(*loader_records("png", 500.0), *small)) or "")
    assert "batch" not in (roofline_answer(rooflines_of(*loader_records("png", 500.0))) or "batch")


def test_the_first_plot_is_of_the_roofline_that_the_answer_tells() -> None:
    undecided = loader_records("png", 500.0, workers=2, spread=(0.3, 1.0, 3.0))
    found = rooflines_of(*undecided, *loader_records("png", 500.0, workers=0))
    answer = roofline_answer(found)
    assert answer is not None
    assert "without workers" in answer
    assert [one.first.cell.workers for group in grouped(found) for one in group] == [0, 2]


def test_the_section_of_the_roofline_that_the_answer_tells_is_the_first() -> None:
    """Although the first decided comparison of stores is of other images."""
    loaders = loader_records("png", 500.0, workers=2) + loader_records(
        "lmdb", 500.0, workers=2, spread=(0.5, 1.0, 2.0)
    )
    small: dict[str, Any] = {"dataset": "cifar10", "size": None, "model": "cifar10_quick", "batch_size": 100}
    for replicate in range(3):
        loaders += [make_record("png", replicate=replicate, wait_ms=60.0, **small)]
        loaders += [make_record("lmdb", replicate=replicate, wait_ms=5.0, **small)]
    content = content_of([(record, Path("run/records.jsonl")) for record in loaders])
    assert content.headline.panel is not None
    assert content.headline.panel.first.cell.data.name == "cifar10"
    assert content.headline.answer.startswith("ImageNet")
    assert [section.title for section in content.sections] == ["ImageNet, 4,000 images", "CIFAR-10"]
    assert content.sections[0].plots[0].name.startswith("roofline")


@given(st.lists(st.floats(0, 100), min_size=1, max_size=12).map(sorted), st.floats(1, 5))
def test_labels_are_apart_in_order_and_inside(wanted: list[float], gap: float) -> None:
    places = spaced(wanted, gap, 0.0, 100.0)
    assert all(second - first >= gap - 1e-6 for first, second in itertools.pairwise(places))
    assert places[0] >= 0
    assert places[-1] <= 100 + 1e-6


def test_labels_that_had_to_move_far_stand_further_from_their_curves() -> None:
    names = ("hdf5", "lmdb", "lmdb:direct", "memory:native", "leveldb", "png")
    crowded = [
        one for n, name in enumerate(names) for one in loader_records(name, 5000.0 + 10 * n, workers=2)
    ]

    def reach(*records: Record) -> float:
        texts = storebench.plot_roofline(cells_of(*records)).texts
        places = {
            text.get_position()[0]
            for text in texts
            if isinstance(text, Annotation) and "/s" in text.get_text()
        }
        assert len(places) == 1
        return float(places.pop())

    assert reach(*loader_records("png", 600.0, workers=2)) == 12.0
    assert 20.0 < reach(*crowded) <= 34.0


def test_labels_that_are_apart_stay_where_they_are() -> None:
    assert spaced([10.0, 20.0, 40.0], 5.0, 0.0, 100.0) == [10.0, 20.0, 40.0]


def points_of(ax: Axes) -> list[tuple[float, float]]:
    """Return the measured points that are drawn."""
    lines = [container.lines[0] for container in ax.containers if isinstance(container, ErrorbarContainer)]
    return [(float(x), float(y)) for line in lines for x, y in np.asarray(line.get_xydata())]


def curve_at(ax: Axes, rate: float) -> float:
    """Return the height of the only curve that is drawn at an ingestion rate."""
    (line,) = [
        one for one in ax.lines if one.get_linestyle() == "-" and len(np.asarray(one.get_xdata())) > 99
    ]
    rates, delivered = np.asarray(line.get_xdata(), np.float64), np.asarray(line.get_ydata(), np.float64)
    return float(np.exp(np.interp(np.log(rate), np.log(rates), np.log(delivered))))


def test_a_point_that_the_model_predicts_is_drawn_on_its_curve() -> None:
    ax = storebench.plot_roofline(cells_of(*curve_records("png", 600.0)))
    drawn = points_of(ax)
    assert len(drawn) == 5
    for rate, delivered in drawn:
        assert delivered == pytest.approx(curve_at(ax, rate), rel=0.01)


def test_a_point_that_delivers_half_is_drawn_at_half_the_height() -> None:
    records = loader_records("png", 600.0, workers=2)
    records += point_records("png", 10.0, 300.0, workers=2, fetch_ms=2000 * 32 / 600)
    ax = storebench.plot_roofline(cells_of(*records))
    ((rate, delivered),) = points_of(ax)
    assert delivered == pytest.approx(curve_at(ax, rate) / 2, rel=0.02)


@pytest.mark.parametrize(("workers", "starving"), [(2, 600 / 0.9), (0, 600 / 9)])
def test_the_bar_on_a_curve_is_its_starving_point(workers: int, starving: float) -> None:
    ax = storebench.plot_roofline(cells_of(*loader_records("png", 600.0, workers=workers)))
    (bar,) = [line for line in ax.lines if line.get_marker() == "|"]
    ((rate, delivered),) = np.asarray(bar.get_xydata())
    assert rate == pytest.approx(starving, rel=0.01)
    assert delivered == pytest.approx(0.9 * rate, rel=0.01)


def test_labels_of_marks_near_each_other_are_on_levels_of_their_own() -> None:
    records = loader_records("png", 600.0, workers=2)
    for model, compute_ms in (("caffenet", 320.0), ("resnet50", 310.0), ("tiny", 0.32)):
        records += [
            make_record("null", replicate=n, model=model, compute_ms=compute_ms, wait_ms=0.0)
            for n in range(3)
        ]
    ax = storebench.plot_roofline(cells_of(*records), accelerators=["k40"])
    levels = {
        text.get_text().partition(":")[0]: text.get_position()[1]
        for text in ax.texts
        if isinstance(text, Annotation) and ":" in text.get_text()
    }
    near = [levels[f"this CPU, {name}"] for name in ("CaffeNet", "ResNet-50")]
    assert near[0] > near[1] > levels["K40, CaffeNet"]
    assert levels["this CPU, the tiny network"] == min(levels.values()), "nothing is near it"


def test_a_starving_point_without_workers_stands_beside_what_is_loaded() -> None:
    (roofline,) = rooflines_of(*loader_records("original", 227.0))
    answer = one_roofline_answer(roofline)
    assert "original files feed accelerators up to 25.2 images/s [" in answer
    assert "(they load 227); without workers loading and computing take turns" in answer
    (with_workers,) = rooflines_of(*loader_records("original", 227.0, workers=2))
    assert "take turns" not in one_roofline_answer(with_workers)
    assert one_roofline_answer(with_workers).endswith("is fed if it is busy at least 90% of its time.")


def test_backends_that_are_not_decided_are_named_beside_those_that_are() -> None:
    records = loader_records("png", 500.0, workers=2)
    records += loader_records("lmdb", 900.0, workers=2, spread=(0.3, 1.0, 3.0))
    (found,) = rooflines_of(*records)
    answer = one_roofline_answer(found)
    assert "PNG files feed accelerators up to 556 images/s [" in answer
    assert "; it is undecided how much LMDB can feed;" in answer
    texts = [text.get_text() for text in storebench.plot_roofline(cells_of(*records)).texts]
    assert "LMDB: undecided" in texts


def test_decades_of_a_narrow_axis_do_not_touch() -> None:
    options = (("merged", "off"), ("window_mib", "1000"))
    records = loader_records("lmdb:direct", 900_000.0, reader_options=options) + loader_records("png", 3.0)
    ax = storebench.plot_roofline(cells_of(*records))
    figure = ax.get_figure(root=True)
    assert figure is not None
    figure.draw_without_rendering()
    low, high = ax.get_xlim()
    labels = [
        label
        for label, tick in zip(ax.get_xticklabels(), ax.get_xticks(), strict=True)
        if low <= tick <= high
    ]
    boxes = [label.get_window_extent() for label in labels]
    assert len(boxes) > 1
    assert all(one.x1 < other.x0 for one, other in itertools.pairwise(boxes))
