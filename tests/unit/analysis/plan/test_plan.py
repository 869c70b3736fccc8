"""`storebench plan` on planted runs: what each store delivers on the target, what limits it, and what is refused."""

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import pytest

from storebench.analysis.plan.prediction_errors import read_errors
from storebench.record.schema import Ceilings, Conditions, Counters, Record, Status
from tests.support.planted import make_record, write_run

ROOT = Path(__file__).resolve().parents[4]
BATCH, STEPS = 32, 100
CORES = Conditions(wall_s=10.0, cores=2, others_cpu_s=0.0)
CEILINGS = Ceilings(
    device_random_1_bytes_per_s=1e8, device_sequential_bytes_per_s=1e9, device_best_bytes_per_s=1e9
)


def loading(backend: str, sample_ms: float, *, decodes: bool = False, **changes: Any) -> list[Record]:
    """Return the rounds of a cell that only loads, and keeps one core busy for each producer."""
    workers = changes.get("workers", 0)
    made_ms = sample_ms * BATCH
    counters = Counters(
        cpu_user_s=changes.pop("cpu_ms", sample_ms) * 1e-3 * BATCH * STEPS,
        cpu_system_s=0.0,
        device_read_bytes=changes.pop("read_bytes", 0) * BATCH * STEPS,
        read_calls=BATCH * STEPS,
        major_faults=0,
    )
    fields: dict[str, Any] = {
        "wait_ms": made_ms / max(1, workers),
        "compute_ms": 0.0,
        "fetch_ms": 0.0 if decodes else made_ms,
        "decode_ms": made_ms if decodes else 0.0,
        "prep_ms": 0.0,
        "compute": "none",
        "model": "none",
        "counters": counters,
        "conditions": CORES,
        "ceilings": CEILINGS,
    }
    return [make_record(backend, replicate=n, steps=STEPS, **(fields | changes)) for n in range(3)]


RUN = [
    *loading("png", 2.0, decodes=True),
    *loading("png", 2.0, decodes=True, workers=2),
    *loading("lmdb:direct", 0.1),
    *loading("lmdb:direct", 0.1, workers=2),
    *loading("lmdb:direct", 2.1, cpu_ms=0.1, cache="cold", read_bytes=200_000),
    *loading("png", 4.0, cpu_ms=2.0, decodes=True, cache="cold", read_bytes=200_000),
]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Return a run of two stores on two cores: 2 ms to decode a PNG file, 0.1 ms for raw pixels, 2 ms to read them."""
    return write_run(tmp_path / "run", RUN)


def planned(cli: Any, run: Path, *options: str) -> dict[str, dict[str, Any]]:
    done = cli("plan", str(run), "--accelerator", *options, "--json")
    assert done.returncode == 0, done.stderr
    return {store["store"]: store for store in json.loads(done.stdout)["stores"]}


CASES: list[tuple[str, str, float, str]] = [
    ("gpu=100", "png", 100, "compute"),
    ("gpu=100000 --workers 0", "png", 500, "loading in the loop"),
    ("gpu=100000 --workers 2", "png", 1000, "workers"),
    ("gpu=100000 --workers 16", "png", 1000, "cores"),
    ("gpu=100000:4 --workers 4 --cores 64 --nodes 3", "png", 24000, "workers"),
    ("gpu=1000000 --workers 0 --memory 0", "lmdb:direct", 476, "read latency"),
    ("gpu=1000000 --workers 99 --cores 999 --read-mb-s 100", "lmdb:direct", 500, "device bandwidth"),
    ("gpu=1000000 --workers 99 --cores 999 --iops 300", "lmdb:direct", 300, "device requests"),
    ("gpu=1000000 --workers 9 --cores 99 --iops 3e8 --first-byte-ms 9", "lmdb:direct", 989, "read latency"),
]


@pytest.mark.parametrize(("words", "store", "rate", "limit"), CASES)
def test_a_store_delivers_what_the_scarcest_resource_permits(
    words: str, store: str, rate: float, limit: str, run: Path, cli: Any
) -> None:
    found = planned(cli, run, *words.split())[store]
    assert found["limit"] == limit
    assert found["images_per_s"] == pytest.approx(rate, rel=0.06)
    assert found["low"] < found["images_per_s"] <= found["high"]


def test_what_lifts_the_limit_keeps_the_accelerators_busy(run: Path, cli: Any) -> None:
    given = {"workers": 1, "cores": 2}
    for _ in range(2):
        options = [word for name, value in given.items() for word in (f"--{name}", str(value))]
        before = planned(cli, run, "gpu=1000:4", *options)["png"]
        assert before["busy"] < 0.6
        count, _, name = before["lift"].removesuffix(" each").partition(" ")
        given[name] = int(count)
    options = [word for name, value in given.items() for word in (f"--{name}", str(value))]
    assert planned(cli, run, "gpu=1000:4", *options)["png"]["busy"] >= 0.9
    assert planned(cli, run, "gpu=100", "--workers", "2")["png"]["lift"] == ""


def test_converting_pays_after_the_epochs_that_save_its_time(run: Path, cli: Any) -> None:
    found = planned(cli, run, "gpu=100000", "--workers", "0", "--samples", "36000", "--epochs", "10")
    png, lmdb = found["png"], found["lmdb:direct"]
    saved_s = 3600 * (png["epoch_h"] - lmdb["epoch_h"])
    assert png["pays_after_epochs"] == pytest.approx(10.0 * 36_000 / 4_000 / saved_s)
    assert lmdb["pays_after_epochs"] is None
    # Its first epoch reads from the device, 2.1 ms a sample; later ones find all in memory.
    assert lmdb["total_h"] == pytest.approx(36_000 * (2.1e-3 + 9 * 0.1e-3 + 10 * 1e-5) / 3600, rel=1e-6)
    for store in (png, lmdb):
        assert store["total_h"] == pytest.approx(store["first_h"] + 9 * store["epoch_h"], rel=1e-9)
        assert store["images_per_s"] == pytest.approx(10 * 36_000 / store["total_h"] / 3600)
        assert store["busy"] == pytest.approx(store["images_per_s"] / 100_000)


@pytest.mark.parametrize(
    ("rate", "beginning", "store"),
    [
        ("20", "1 x gpu: ", "PNG files"),  # both are fast enough, and files need no conversion
        ("1000", "1 x gpu: ", "LMDB (direct)"),
        ("9000", "No store feeds 1 x gpu: ", "LMDB (direct)"),
    ],
)
def test_the_first_line_names_the_store_to_use(
    rate: str, beginning: str, store: str, run: Path, cli: Any
) -> None:
    done = cli("plan", str(run), "--accelerator", f"gpu={rate}", "--workers", "0")
    first = done.stdout.splitlines()[0]
    assert first.startswith(beginning)
    assert f"busy with {store}" in first


def test_errors_stand_once_per_kind_and_what_is_not_real_is_named(run: Path, cli: Any) -> None:
    slept = loading("lmdb", 0.1, workers=2, compute="emulated:10", compute_ms=10.0, handoff_ms=1.0)
    busy = loading("hdf5", 0.1, conditions=dataclasses.replace(CORES, disturbed="other work"))
    other = write_run(run.parent / "other", [*RUN, *slept, *busy, *loading("lmdb", 0.1, origin="derived")])
    options = ("--accelerator", "gpu:2=1000", "--workers", "2", "--iops", "500")
    done = cli("plan", str(other), *options)
    assert done.returncode == 0, done.stderr
    assert "DERIVED images" in done.stdout
    assert "EMULATED accelerators" in done.stdout
    assert done.stdout.endswith("DISTURBED rounds: HDF5\n")
    assert "2 x gpu" in done.stdout
    assert done.stdout.count("another storage: ") == 1


REFUSED: list[tuple[str, int, str]] = [
    ("--accelerator a100:0", 2, "no count of accelerators can be 0"),
    ("--accelerator gpu=100:-3", 2, "'100:-3' is no rate of an accelerator"),
    ("--accelerator a100:lenet", 2, "no accelerator is called 'a100:lenet'"),
    ("--accelerator a100 --memory nan", 2, "--memory: must be"),
    ("--accelerator a100 --iops 0", 2, "--iops: must be more than 0"),
    ("--accelerator a100 --dataset mnist", 3, "no cell of 'mnist' has figures. These runs have imagenet."),
]


@pytest.mark.parametrize(("options", "code", "line"), REFUSED)
def test_absurd_targets_are_refused_in_one_line(
    options: str, code: int, line: str, run: Path, cli: Any
) -> None:
    done = cli("plan", str(run), *options.split())
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr.startswith(f"storebench: {line}")
    assert done.stderr.count("\n") == 1


def test_a_run_that_lacks_cells_says_which_to_add(tmp_path: Path, cli: Any) -> None:
    lacking = write_run(tmp_path / "lacking", loading("lmdb", 0.1))
    done = cli("plan", str(lacking), "--accelerator", "a100", "--workers", "2")
    assert done.returncode == 3
    assert "add a cell with workers = 2" in done.stderr
    partly = write_run(tmp_path / "partly", [*RUN, *loading("hdf5", 0.1, cache="any", cpu_ms=0.1)])
    done = cli("plan", str(partly), "--accelerator", "a100", "--workers", "2")
    assert done.returncode == 0
    assert 'not planned: hdf5: add a cell with cache = "warm"' in done.stderr
    assert 'add cells with workers = 2 and compute = "emulated:10"' in done.stderr


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"tier": "gp3"}, "read from emulated storage"),
        ({"share": "node"}, "read by shared readers"),
        ({"status": Status.FAILED, "failure": "x"}, "no round has figures"),
    ],
)
def test_a_store_that_no_cell_permits_to_plan_is_named_with_the_reason(
    changes: dict[str, Any], reason: str, tmp_path: Path, cli: Any
) -> None:
    useless = loading("hdf5", 0.1, **changes)
    target = ("--accelerator", "a100", "--allow-invalid")
    done = cli("plan", str(write_run(tmp_path / "some", [*RUN, *useless])), *target)
    assert f"not planned: hdf5: {reason}\n" in done.stderr
    done = cli("plan", str(write_run(tmp_path / "all", useless)), *target, "--samples", "9")
    assert done.returncode == 3
    assert f"(hdf5: {reason})" in done.stderr


def test_a_store_with_an_order_of_its_own_has_one_worker_for_each_process(tmp_path: Path, cli: Any) -> None:
    stream = [r for n in (0, 1) for r in loading("webdataset:stream", 2.0, decodes=True, workers=n)]
    run = write_run(tmp_path / "run", [*RUN, *stream])
    found = planned(cli, run, "gpu=100000:4", "--workers", "8", "--cores", "64")["webdataset:stream"]
    assert found["images_per_s"] == pytest.approx(4 * 500, rel=0.05)
    assert (found["limit"], found["lift"]) == ("workers", "another reader")


def test_images_as_the_user_has_them_are_preferred_and_nothing_converts_to_them(
    tmp_path: Path, cli: Any
) -> None:
    run = write_run(tmp_path / "run", [*RUN, *loading("container", 0.1, decodes=True)])
    done = cli("plan", str(run), "--accelerator", "gpu=9000", "--workers", "0")
    assert "busy with container (" in done.stdout.splitlines()[0]
    assert "a conversion to LMDB (direct) has saved its time" in done.stdout


def test_the_handoff_is_the_limit_where_it_keeps_the_accelerator_waiting(run: Path, cli: Any) -> None:
    slept = loading("lmdb:direct", 0.1, workers=2, compute="emulated:10", compute_ms=10.0, handoff_ms=10.0)
    other = write_run(run.parent / "other", [*RUN, *slept])
    found = planned(cli, other, "gpu=2000", "--workers", "2", "--cores", "8")["lmdb:direct"]
    assert 0.5 < found["busy"] < 0.65
    assert (found["limit"], found["lift"]) == ("handoff", "larger batches")
    read = planned(cli, other, "gpu=2000", "--workers", "1", "--cores", "8", "--memory", "0")["lmdb:direct"]
    assert read["limit"] == "read latency"
    assert " workers each or " in read["lift"]


def test_stores_of_images_of_another_size_are_named(tmp_path: Path, cli: Any) -> None:
    def small(record: Record) -> Record:
        data = dataclasses.replace(record.cell.data, image_size=16)
        return dataclasses.replace(record, cell=dataclasses.replace(record.cell, data=data))

    records = [*RUN, *map(small, loading("hdf5", 0.1))]
    done = cli("plan", str(write_run(tmp_path / "run", records)), "--accelerator", "a100")
    assert "not planned: hdf5: its images have another size\n" in done.stderr


def test_choices_of_other_sizes_are_planned_beside_the_users_files(tmp_path: Path, cli: Any) -> None:
    folder: dict[str, Any] = {"dataset": "folder:/photos", "image_size": 224, "workers": 2}
    records = [
        *loading("original", 2.0, decodes=True, **folder),
        *loading("lmdb+jpeg", 0.6, decodes=True, **(folder | {"image_size": 256})),
        *loading("lmdb", 0.1, **folder),
    ]
    found = planned(cli, write_run(tmp_path / "run", records), "gpu=2000", "--workers", "2")
    told = {name: (store["change"], store["busy"] > 0.9) for name, store in found.items()}
    assert told == {
        "original": ("nothing", False),
        "lmdb+jpeg": ("central crops only", True),
        "lmdb": ("no random crops", True),
    }


REFERENCE = ROOT / "results" / "reference"


def test_nodes_that_divide_an_epoch_read_nearly_all_of_the_second_from_the_storage(cli: Any) -> None:
    runs, totals = [REFERENCE / "codecs", REFERENCE / "answer"], {}
    for epochs in (2, 90):
        target = "a100:8 --nodes 64 --cores 64 --workers 8 --memory 256 --samples 1281167 --read-mb-s 100000"
        target += f" --epochs {epochs}"
        done = cli("plan", *map(str, runs), "--accelerator", *target.split(), "--json")
        assert done.returncode == 0, done.stderr
        made = json.loads(done.stdout)
        stores = {store["store"]: store for store in made["stores"]}
        totals[epochs] = 3600 * stores["png"]["total_h"]
    # An epoch takes 1.5 s from the storage, and 1.02 s if the accelerators never wait.
    misses = [(63 / 64) ** epoch for epoch in range(90)]
    assert totals[2] == pytest.approx(1.515 + 1.515 * 63 / 64, rel=0.01)
    assert totals[90] == pytest.approx(sum(max(1.022, 1.515 * share) for share in misses), rel=0.01)
    png = stores["png"]
    assert png["asked"]["bytes_per_s"] == pytest.approx(512 * 2470 * 118_238, rel=0.01)
    assert png["asked"]["requests_per_s"] == png["asked"]["opens_per_s"] == pytest.approx(512 * 2470)
    assert made["choice"] in made["ties"]
    assert 'files+raw and 14 more: add a cell with cache = "cold"' in made["lacking"]


def test_errors_of_several_kinds_add_up(run: Path, cli: Any) -> None:
    widths = {str(kind): error.half_width for kind, error in read_errors().items()}
    widest = max(width for width in widths.values() if width)
    store = planned(cli, run, "gpu=100000:2", "--workers", "9", "--read-mb-s", "10")["lmdb:direct"]
    assert len(store["kinds"]) > 2
    width = math.hypot(*(widths.get(kind) or widest for kind in store["kinds"]))
    assert store["low"] == pytest.approx(store["images_per_s"] * math.exp(-width))
    assert store["busy_low"] == pytest.approx(store["low"] / 200_000)


REFUSED_RUNS: list[tuple[str, str, int, str]] = [
    ("answer", "--memory 1", 3, "no cell has a rate of its device; measure with --cache cold"),
    ("codecs", "--memory 1", 3, 'add a cell with cache = "limited"'),
    ("gpu roofline", "", 3, "these runs are of 2 machines"),
]


@pytest.mark.parametrize(("runs", "options", "code", "line"), REFUSED_RUNS)
def test_what_no_cell_tells_is_refused(runs: str, options: str, code: int, line: str, cli: Any) -> None:
    target = ("--accelerator", "a100:8", "--cores", "64", "--samples", "1281167", "--json")
    paths = (str(REFERENCE / name) for name in runs.split())
    done = cli("plan", *paths, *target, *options.split())
    assert (done.returncode, done.stdout) == (code, "")
    assert line in done.stderr
    assert done.stderr.count("\n") == 1


def test_records_that_a_report_refuses_are_refused(tmp_path: Path, cli: Any) -> None:
    wrong = write_run(tmp_path / "wrong", [*RUN, *loading("lmdb+jpeg", 0.1)])  # it decodes nothing
    target = ("plan", str(wrong), "--accelerator", "a100")
    done = cli(*target, "--json")
    assert (done.returncode, done.stdout) == (5, "")
    assert done.stderr == cli("report", str(wrong), "--out", str(tmp_path / "report")).stderr
    done = cli(*target, "--allow-invalid")
    assert done.returncode == 0
    assert "INVALID records: LMDB+JPEG\n" in done.stdout


SERVED = Path(__file__).parents[4] / "results" / "reference" / "remote"
SINGLES = "jpeg:objects?inflight=16"


def test_a_server_delivers_its_requests_in_flight_over_the_time_of_one(cli: Any) -> None:
    def at_the_store(place: str, *options: str) -> dict[str, Any]:
        done = cli("plan", str(SERVED), "--accelerator", "gpu=2000", "--workers", "0", "--json", *options)
        assert done.returncode == 0, done.stderr
        plans = json.loads(done.stdout)["stores"]
        return next(one for one in plans if (one["store"], one["place"]) == (SINGLES, place))

    near, far = at_the_store("s3:here?first-byte-ms=20"), at_the_store("s3:here", "--first-byte-ms", "200")
    assert near["limit"] == far["limit"] == "read latency"
    assert far["images_per_s"] == pytest.approx(16 / 0.2, rel=0.02)
    assert near["images_per_s"] == pytest.approx(16 / 0.0205, rel=0.05)
    assert far["lift"] == "361 requests in flight"  # 0.9 of 2,000 images/s, 200 ms each, and the transfer
    slow = at_the_store("s3:here", "--read-mb-s", "10")
    assert slow["limit"] == "device bandwidth"
    assert slow["images_per_s"] == pytest.approx(10e6 / 22_250, rel=0.02)
