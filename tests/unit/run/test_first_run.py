"""What a run chooses that names no backend: a pure function of the samples, the machine and what was asked for."""

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storebench.record.schema import Cell
from storebench.run.first_run import FEWEST_SAMPLES, FirstRun, Machine, Samples, asked_matrix, choose
from storebench.run.scenario import FEWEST_REPLICATES, Scenario, make_scenario
from storebench.settings.words import CacheState, ComputeKind

GIB = 2**30
PHOTOS = Samples(
    count=100_000,
    are_files=True,
    side=224,
    raw_bytes=224 * 224 * 3,
    file_bytes=137_000,
    read_s=0.0019,
    copy_s=0.0002,
    kind="JPEG",
    short_side=375,
)
TINY = Samples(count=5_000, are_files=True, side=None, raw_bytes=32 * 32 * 3, file_bytes=900, read_s=0.00008)
DIGITS = Samples(count=60_000, are_files=False, side=None, raw_bytes=28 * 28, file_bytes=300, read_s=0.00005)
LAPTOP = Machine(cores=2, memory_bytes=24 * GIB, free_bytes=70 * GIB, evicts=True)


def chosen(
    samples: Samples = PHOTOS, machine: Machine = LAPTOP, rounds: int | None = None, **asked: Any
) -> FirstRun:
    return choose(samples, machine, asked_matrix({"dataset": "folder:/photos"} | asked), rounds)


def scenario_of(first: FirstRun) -> Scenario:
    return make_scenario(first.scenario)


def loading(first: FirstRun) -> list[Cell]:
    return [cell for cell in scenario_of(first).cells() if cell.compute.kind is not ComputeKind.EMULATED]


def handing(first: FirstRun) -> list[Cell]:
    return [cell for cell in scenario_of(first).cells() if cell.compute.kind is ComputeKind.EMULATED]


def backends(first: FirstRun, cache: str = "warm") -> list[str]:
    return [cell.backend.name for cell in loading(first) if cell.cache == cache]


def test_photographs_are_measured_as_files_and_pixels_warm_and_cold() -> None:
    first = chosen()
    stores = ["original", "lmdb+original", "lmdb", "lmdb+jpeg"]
    assert backends(first) == stores
    # 2,000 small JPEGs would be read ahead within a few steps.
    assert backends(first, "cold") == [name for name in stores if name != "lmdb+jpeg"]
    cells = scenario_of(first).cells()
    assert {cell.compute.kind for cell in loading(first)} == {ComputeKind.NONE}
    assert {cell.model for cell in cells} == {"none"}
    assert {cell.workers for cell in cells} == {LAPTOP.cores}
    assert {cell.data.image_size for cell in cells if cell.backend.codec != "jpeg"} == {224}
    assert {cell.data.image_size for cell in cells if cell.backend.codec == "jpeg"} == {256}


@pytest.mark.parametrize(
    ("kind", "short_side", "decoders", "more"),
    [
        ("JPEG", 375, ("opencv",), ["lmdb+jpeg", "original:opencv"]),
        ("JPEG", 600, (), ["lmdb+jpeg", "original?scale=dct"]),
        ("JPEG", 256, (), []),
        ("PNG", 600, ("simplejpeg", "opencv"), ["lmdb+jpeg", "original:opencv"]),
    ],
)
def test_smaller_jpegs_and_faster_decoders_are_measured_where_they_make_sense(
    kind: str, short_side: int, decoders: tuple[str, ...], more: list[str]
) -> None:
    samples = dataclasses.replace(PHOTOS, kind=kind, short_side=short_side)
    first = chosen(samples, dataclasses.replace(LAPTOP, decoders=decoders))
    asked = [name for matrix in first.scenario["matrix"] for name in matrix["backends"]]
    assert {*asked} == {"original", "lmdb+original", "lmdb", *more}
    missing = kind == "JPEG" and not decoders
    assert any("pip install simplejpeg" in note for note in first.notes) is missing


def test_one_cell_in_memory_measures_the_handoff_beside_an_accelerator() -> None:
    [cell] = handing(chosen())
    assert (cell.backend.name, cell.compute.kind, cell.cache) == ("lmdb", ComputeKind.EMULATED, "warm")
    in_flight = 2 * LAPTOP.cores
    assert cell.warmup_steps == in_flight
    assert (cell.passes or 1) * (cell.max_steps or 0) > 12 * in_flight
    alike = next(loader for loader in loading(chosen()) if loader.backend == cell.backend)
    assert (alike.batch_size, alike.workers, alike.data) == (cell.batch_size, cell.workers, cell.data)


def test_each_loader_with_workers_has_its_own_handoff() -> None:
    first = chosen(workers=[0, 2, 4], loader=["processes", "threads"])
    assert {(cell.workers, cell.loader) for cell in handing(first)} == {
        (workers, loader) for workers in (2, 4) for loader in ("processes", "threads")
    }


@pytest.mark.parametrize(
    "asked",
    [{"workers": [0]}, {"cache": ["cold"]}, {"compute": ["emulated:20"]}, {"model": "resnet50"}],
)
def test_a_handoff_is_measured_only_where_it_can_be(asked: dict[str, Any]) -> None:
    cells = scenario_of(chosen(**asked)).cells()
    assert len({cell.compute for cell in cells}) == 1


def test_rounds_are_those_that_fit_into_the_budget_or_were_asked_for() -> None:
    scenario, fixed = scenario_of(chosen()), scenario_of(chosen(rounds=2))
    assert scenario.replicates > FEWEST_REPLICATES
    assert scenario.budget_s == 225
    assert (fixed.budget, fixed.replicates) == (None, 2)


def test_fewer_and_smaller_batches_of_slow_images_are_measured() -> None:
    first = chosen(dataclasses.replace(PHOTOS, read_s=0.4, file_bytes=20e6, count=3_000))
    [limit] = {cell.data.limit for cell in scenario_of(first).cells()}
    assert limit == FEWEST_SAMPLES
    [batch] = {cell.batch_size for cell in loading(first)}
    assert batch == 8
    assert {cell.batch_size for cell in loading(chosen(dataclasses.replace(PHOTOS, count=64)))} == {64}


def test_a_part_of_a_large_folder_is_measured_and_said() -> None:
    first = chosen()
    [limit] = {cell.data.limit for cell in scenario_of(first).cells()}
    assert limit == 2_000
    assert "2,000 of the 100,000 images are measured" in first.notes[0]
    assert first.whole.count == 100_000


def test_a_small_folder_is_measured_whole_and_never_cold() -> None:
    first = chosen(dataclasses.replace(PHOTOS, count=200))
    assert {cell.data.limit for cell in scenario_of(first).cells()} == {None}
    assert not backends(first, "cold")
    assert first.notes[-1] == (
        "cold is left out: read-ahead would cache all 26 MiB within a few steps; it needs 64 MiB of images"
    )


def test_a_disk_in_memory_has_no_cold_cells() -> None:
    first = chosen(machine=dataclasses.replace(LAPTOP, evicts=False))
    assert not backends(first, "cold")
    assert "cold is left out: the stores' file system is in memory" in first.notes


@pytest.mark.parametrize(
    ("machine", "words"),
    [
        (dataclasses.replace(LAPTOP, free_bytes=10 * GIB), "14.0 GiB, and 10.0 GiB are free"),
        (dataclasses.replace(LAPTOP, memory_bytes=19 * GIB), "more than memory holds beside training"),
    ],
)
def test_raw_pixels_that_do_not_fit_are_left_out_and_it_is_said(machine: Machine, words: str) -> None:
    first = chosen(machine=machine)
    assert backends(first) == ["original", "lmdb+original", "lmdb+jpeg"]
    assert any(words in note for note in first.notes), first.notes


def test_what_memory_cannot_hold_is_read_as_planned() -> None:
    first = chosen(machine=dataclasses.replace(LAPTOP, memory_bytes=8 * GIB))
    assert backends(first, "cold")[:3] == ["original", "lmdb+original:direct", "lmdb:direct"]
    assert not first.whole.fits


@pytest.mark.parametrize("workers", [0, 2, 8])
@pytest.mark.parametrize("batch", [8, 256])
@pytest.mark.parametrize("count", [64, 2_000])
def test_few_images_are_repeated_until_all_workers_have_several_batches(
    workers: int, batch: int, count: int
) -> None:
    first = chosen(dataclasses.replace(PHOTOS, count=count), workers=[workers], batch_size=[batch])
    cells = loading(first)
    assert {cell.batch_size for cell in cells} == {batch}
    for cell in cells:
        if cell.cache == "cold":
            continue
        steps = (cell.passes or 1) * min(cell.max_steps or 0, -(-count // batch))
        assert steps - cell.warmup_steps >= max(6, 3 * workers)


def test_what_was_asked_for_replaces_what_is_chosen() -> None:
    first = chosen(cache=["cold"], workers=[0, 4], batch_size=[16], max_steps=1)
    cells = scenario_of(first).cells()
    assert {cell.cache for cell in cells} == {CacheState.COLD}
    assert {cell.workers for cell in cells} == {0, 4}
    assert {cell.batch_size for cell in cells} == {16}
    assert {cell.max_steps for cell in cells} == {1}


@given(
    samples=st.builds(
        Samples,
        count=st.integers(FEWEST_SAMPLES, 2_000_000),
        are_files=st.booleans(),
        side=st.none() | st.integers(8, 224),
        raw_bytes=st.integers(192, 200_000),
        file_bytes=st.floats(100, 3e7),
        read_s=st.floats(1e-5, 1.0),
        copy_s=st.floats(1e-8, 1e-2),
    ),
    machine=st.builds(
        Machine,
        cores=st.integers(1, 128),
        memory_bytes=st.integers(GIB, 2000 * GIB),
        free_bytes=st.integers(40 * GIB, 4000 * GIB),
        evicts=st.booleans(),
    ),
)
def test_any_choice_is_a_valid_scenario(samples: Samples, machine: Machine) -> None:
    first = chosen(samples, machine)
    scenario = scenario_of(first)
    assert len(backends(first)) >= 3
    for cell in scenario.cells():
        steps = (cell.passes or 1) * min(
            cell.max_steps or 0, -(-(cell.data.limit or samples.count) // cell.batch_size)
        )
        assert steps - cell.warmup_steps >= 6 or cell.cache == "cold"  # a cold epoch reads each image once


STREAM = dataclasses.replace(PHOTOS, container="container:stream", container_bytes=GIB)
TABLE = dataclasses.replace(PHOTOS, container="container", container_bytes=GIB)


@pytest.mark.parametrize(
    ("samples", "asked", "first_backend", "workers", "note"),
    [
        (TABLE, {}, "container", {2}, ""),
        (STREAM, {}, "container:stream", {1}, ""),
        (STREAM, {"workers": [0]}, "container:stream", {0}, ""),
        (STREAM, {"workers": [4]}, "container", {4}, "at most one worker"),
        (
            dataclasses.replace(TABLE, container_bytes=400 * GIB),
            {},
            "original",
            {2},
            "400.0 GiB are more than memory holds beside training; name the backend container",
        ),
        (dataclasses.replace(TABLE, container_s=200), {}, "original", {2}, "1.0 GiB take 3 min to be read"),
        (dataclasses.replace(PHOTOS, container_note="it is packed"), {}, "original", {2}, "it is packed"),
    ],
)
def test_a_container_is_measured_first_where_it_can_be(
    samples: Samples, asked: dict[str, Any], first_backend: str, workers: set[int], note: str
) -> None:
    first = chosen(samples, **asked)
    assert backends(first)[0] == first_backend
    assert {cell.workers for cell in loading(first)} == workers
    assert any(note in said for said in first.notes)
    assert any("the first ones" in said for said in first.notes)
