"""Figures, settings and names as people read them, and as parts of file names."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from storebench.report.cells import CellSummary, summarise
from storebench.report.frame import to_frame
from storebench.report.intervals import Estimate, Ratio
from storebench.report.texts.caveats import caveats
from storebench.report.texts.labels import (
    backend_label,
    between,
    common_setting,
    compute_label,
    dataset_label,
    dataset_slug,
    duration,
    file_name,
    number,
    percent,
    setting_label,
    setting_slug,
    size,
    state_label,
    times,
    with_interval,
)
from storebench.results import Record
from storebench.settings.words import Compute
from storebench.stats import Verdict
from tests.support.planted import make_cell, make_record


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [
        (0.997, 2, "1.0"),
        (1.004, 2, "1.0"),
        (0.994, 2, "0.99"),
        (9.996, 3, "10.0"),
        (1234.0, 3, "1,230"),
        (0.0123, 3, "0.0123"),
        (0.00001234, 3, "1.23e-05"),
        (-2.5, 3, "-2.50"),
        (0.0, 3, "0"),
        (None, 3, ""),
        (float("inf"), 3, "inf"),
    ],
)
def test_rounding_that_adds_a_place_keeps_the_significant_digits(
    value: float | None, digits: int, text: str
) -> None:
    assert number(value, digits) == text


@pytest.mark.parametrize(
    ("ends", "text"),
    [
        ((0.997, 0.96, 1.04), "1.00 [0.96, 1.04]"),
        ((3.0, 2.9, 3.1), "3.0 [2.9, 3.1]"),
        ((0.98, 0.957, 1.04), "0.98 [0.96, 1.04]"),
        ((3.1, 0.93, 12.34), "3.10 [0.93, 12.34]"),
        ((1.5, 0.002, 900.0), "1.50 [0.0020, 900.00]"),
    ],
)
def test_a_figure_and_its_interval_have_the_same_decimals(
    ends: tuple[float, float, float], text: str
) -> None:
    assert "".join(between(*ends, digits=2)) == text


def rate(mid: float, lo: float, hi: float) -> Estimate:
    return Estimate(mid=mid, lo=lo, hi=hi, n=2)


@pytest.mark.parametrize(
    ("interval", "text"),
    [
        (rate(0.05157, 4.24e-50, 6.2e46), "0.0516 [too few rounds]"),
        (rate(1.5, 0.002, 900.0), "1.50 [too few rounds]"),
        (rate(1500.0, 150.0, 14_900.0), "1,500 [150, 14,900]"),
        (rate(3.0, -200.0, 206.0), "3.00 [-200.00, 206.00]"),
        (rate(3.0, 2.0, float("inf")), "3.00 [too few rounds]"),
    ],
)
def test_an_interval_without_an_order_of_magnitude_asks_for_rounds(interval: Estimate, text: str) -> None:
    assert with_interval(interval) == text


def test_a_wide_interval_that_decides_is_told() -> None:
    decided = Ratio(mid=60.0, lo=2.0, hi=1800.0, n=3, verdict=Verdict.FASTER)
    assert times(decided) == "60.0 times [2.0, 1,800.0]"
    assert times(dataclasses.replace(decided, verdict=Verdict.INCONCLUSIVE)) == "60 times [too few rounds]"


@pytest.mark.parametrize(
    ("interval", "text"),
    [
        (rate(1.1, 1.07, 1.124), "1.10 times [1.07, 1.12]"),
        (rate(0.998, 0.96, 1.04), "0.998 times [0.960, 1.040]"),
        (rate(3.1, 2.9, 3.3), "3.1 times [2.9, 3.3]"),
    ],
)
def test_a_ratio_near_one_has_three_digits(interval: Estimate, text: str) -> None:
    assert times(interval) == text


def test_rates_keep_their_significant_digits() -> None:
    assert with_interval(Estimate(mid=1234.0, lo=987.6, hi=1500.0, n=3)) == "1,230 [988, 1,500]"
    assert with_interval(Estimate(mid=2.5)) == "2.50"
    assert with_interval(Estimate(mid=2.5, lo=2.0, hi=3.0), " s") == "2.50 s [2.00, 3.00]"
    assert with_interval(None) == ""


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, ""),
        (0, "0 bytes"),
        (1023, "1,020 bytes"),
        (1024, "1.00 KiB"),
        (786 << 20, "786 MiB"),
        (3 << 29, "1.50 GiB"),
    ],
)
def test_bytes_are_in_binary_units(value: float | None, text: str) -> None:
    assert size(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, ""),
        (5e-9, "5.00 ns"),
        (0.000123, "123 µs"),
        (0.0123, "12.3 ms"),
        (4.1, "4.10 s"),
        (599.0, "599 s"),
        (600.0, "10.0 min"),
    ],
)
def test_a_duration_is_in_the_unit_that_suits_it(seconds: float | None, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (None, ""),
        (0.0, "0%"),
        (0.034, "3.4%"),
        (0.0994, "9.9%"),
        (0.0996, "10%"),
        (1.09, "109%"),
        (-0.034, "-3.4%"),
        (-0.0004, "0.0%"),
    ],
)
def test_a_share_below_a_tenth_has_a_decimal(share: float | None, text: str) -> None:
    assert percent(share) == text


@pytest.mark.parametrize(
    ("backend", "text"),
    [
        ("png", "PNG files"),
        ("lmdb", "LMDB"),
        ("lmdb+png", "LMDB+PNG"),
        ("lmdb:direct", "LMDB (direct)"),
        ("lmdb+png:get?readahead=off", "LMDB+PNG (get, readahead=off)"),
        ("png:threads", "PNG files (threads)"),
        ("zarr+raw", "zarr+RAW"),
    ],
)
def test_a_backend_is_called_by_its_container_codec_reader_and_options(backend: str, text: str) -> None:
    assert backend_label(backend) == text


@pytest.mark.parametrize(
    ("fields", "label", "slug"),
    [
        ({}, "ImageNet, 4,000 images", "imagenet-4000"),
        ({"limit": 100}, "ImageNet, 100 images", "imagenet-4000-100"),
        ({"size": None, "dataset": "mnist", "split": "test"}, "MNIST, test", "mnist-test"),
        ({"size": None, "dataset": "folder:/data/my cats"}, "my cats", "my_cats"),
        ({"synthetic": True}, "ImageNet, 4,000 images", "imagenet-4000-synthetic"),
    ],
)
def test_a_dataset_is_called_by_its_name_and_its_size(fields: dict[str, Any], label: str, slug: str) -> None:
    cell = make_cell(**fields)
    assert (dataset_label(cell), dataset_slug(cell)) == (label, slug)


def test_a_file_name_has_letters_digits_and_dashes_only() -> None:
    assert file_name("read-ahead 8/9 é$") == "read-ahead_8_9_é_"


def test_only_the_fields_that_vary_are_part_of_a_file_name() -> None:
    cell = make_cell(workers=2, compute="none")
    assert setting_slug(cell, {"workers", "compute"}) == "-workers-2-compute-none"
    assert setting_slug(cell, ()) == ""


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"workers": 1}, "1 worker"),
        ({"workers": 2}, "2 workers"),
        ({"batch_size": 64}, "batch 64"),
        ({"device": "cpu"}, "on the CPU"),
        ({"device": "cuda"}, "cuda"),
        ({"cache": "any"}, "cache as found"),
        ({"cache": "limited", "memory_bytes": 400 << 20}, "limited to 400 MiB"),
        ({"compute": "emulated:12"}, "compute EMULATED by a sleep of 12 ms"),
        ({"compute": "none"}, "loader only, with CaffeNet's crop and mirror"),
        ({"compute": "none", "model": "resnet50"}, "loader only, with ResNet-50's crop and mirror"),
        ({"compute": "none", "model": "lenet"}, "reader and decoder alone"),
        ({"compute": "none", "model": "none"}, "reader and decoder alone"),
        ({"readahead_kib": 128}, "read-ahead 128 KiB"),
    ],
)
def test_a_setting_is_told_in_words(fields: dict[str, Any], words: str) -> None:
    assert f", {words}," in f", {setting_label(make_cell(**fields))},"


def test_a_field_is_told_where_it_varies() -> None:
    cell = make_cell(passes=3, workers=2)
    assert "3 passes" not in setting_label(cell)
    assert "3 passes" in setting_label(cell, {"passes"})
    assert "2 workers" not in setting_label(cell, without={"workers"})


def test_one_of_a_kind_is_told_in_the_singular() -> None:
    cell = make_cell(passes=1, max_steps=1, epochs=1)
    assert {"1 step at most", "1 epoch"} <= set(setting_label(cell, {"epochs", "max_steps"}).split(", "))
    assert "1 pass" in setting_label(cell, {"passes"}).split(", ")


def test_the_cache_state_of_a_plain_cell_is_the_one_that_was_asked_for() -> None:
    assert [state_label(make_cell(cache=state)) for state in ("cold", "warm")] == ["cold start", "warm"]


def test_only_emulated_compute_has_a_label() -> None:
    assert [compute_label(Compute(kind)) for kind in ("real", "none")] == ["", ""]
    assert compute_label(Compute("emulated:2.5")) == "compute EMULATED by a sleep of 2.5 ms"


def cells_of(*records: Record) -> list[CellSummary]:
    return summarise(to_frame((record, Path("run/records.jsonl")) for record in records))


def test_each_caveat_is_told_once() -> None:
    cells = cells_of(
        make_record("png", origin="synthetic"),
        make_record("lmdb", origin="synthetic"),
        make_record("hdf5", origin="derived", compute="emulated:5", compute_ms=5.2),
    )
    assert set(caveats(cells)) == {
        "SYNTHETIC images, a stand-in",
        "DERIVED images: 95% are crops, flips and brightness changes",
        "compute EMULATED by a sleep of 5 ms in 1 of 3 cells",
    }
    assert len(caveats(cells)) == 3
    emulated = [cell for cell in cells if cell.backend == "hdf5"]
    assert caveats(emulated)[-1] == "compute EMULATED by a sleep of 5 ms", "in all cells"
    late = cells_of(*(make_record("hdf5", compute="emulated:5", compute_ms=took) for took in (5.2, 10.0)))
    assert "LATE: sleeps of 5 ms took 7.60 ms" in caveats(late)


def test_a_plot_is_headed_by_what_its_cells_share() -> None:
    cells = cells_of(make_record("png", workers=2), make_record("lmdb", cache="warm"), make_record("null"))
    shared = common_setting(cells)
    assert shared.startswith("ImageNet, 4,000 images: batch 32, CaffeNet")
    assert "cold" not in shared
    assert "workers" not in shared
    assert common_setting([]) == ""


@pytest.mark.parametrize(
    ("backend", "label"),
    [
        ("original", "original files"),
        ("original:threads", "original files (threads)"),
        ("lmdb+original", "LMDB+original"),
        ("lmdb+original?scale=dct", "LMDB+original (scale=dct)"),
        ("lmdb+jpeg:simplejpeg:direct", "LMDB+JPEG (simplejpeg, direct)"),
        ("jpeg:opencv", "JPEG files (opencv)"),
    ],
)
def test_a_label_says_what_decodes_the_files(backend: str, label: str) -> None:
    assert backend_label(backend) == label


def test_a_large_resize_is_a_caveat() -> None:
    clause = "images of 32 x 32 (median) become 256 x 256, 64 times the pixels"
    record = make_record("lmdb")
    store = dataclasses.replace(
        record.store, provenance_note=f"one class only, so every label is 0; {clause}"
    )
    cells = summarise(to_frame([(dataclasses.replace(record, store=store), Path("records.jsonl"))]))
    assert caveats(cells) == [f"RESIZED images: {clause}"]


@pytest.mark.parametrize(
    ("shape", "changes", "caveat"),
    [
        (
            (32, 24, 3),
            {},
            "RESIZED images: images of 24 x 32 (median) become 227 x 227, 67.1 times the pixels",
        ),
        ((32, 24, 3), {"image_size": 40}, ""),
        ((256, 256, 3), {}, ""),
    ],
    ids=["enlarged", "nearly its size", "of several sizes"],
)
def test_files_that_are_enlarged_when_they_are_read_are_a_caveat(
    shape: tuple[int, int, int], changes: dict[str, Any], caveat: str
) -> None:
    record = make_record("lmdb+original", **changes)
    store = dataclasses.replace(record.store, image_shape=shape)
    assert caveats(cells_of(dataclasses.replace(record, store=store))) == ([caveat] if caveat else [])


def test_skipped_files_are_a_caveat() -> None:
    record = make_record("lmdb")
    store = dataclasses.replace(record.store, skipped_files=3)
    assert caveats(cells_of(dataclasses.replace(record, store=store))) == [
        "SKIPPED files: 3 unreadable files left out"
    ]
