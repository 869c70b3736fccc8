"""Cells with a store larger than the page cache may be, and cells on a device of their own: real, and gone after."""

import functools
import json
import re
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from PIL import Image

from storebench.errors import UsageError
from storebench.probes.cgroup import ThrottledGroup, find_controller
from storebench.probes.loop_mount import own_namespace, why_not
from storebench.probes.machine import IN_MEMORY, mount_of
from storebench.probes.page_count import resident
from storebench.record.manifest import Manifest
from tests.support.copies import own_mounts, run_in_copy
from tests.support.harness_tools import Bench
from tests.support.quick_cli import run_command

MIB = 1 << 20
LIMIT = 40 * MIB
COUNT = 260
"""Images of 192 KiB: 49 MiB of pixels, and no less as PNG files, for they are noise."""

WORK = ("--model", "none", "--compute", "emulated:0.01", "--batch-size", "20")

pytestmark = [pytest.mark.root, pytest.mark.still_pages]


@pytest.fixture(scope="module", autouse=True)
def permitted(bench: Bench) -> None:
    mount = mount_of(bench.root)
    if mount.fstype in IN_MEMORY or mount.device is None:
        pytest.skip(f"the temporary folder is on {mount.fstype}: a disk is needed (pytest --basetemp)")
    try:
        find_controller()
    except UsageError as error:
        pytest.skip(str(error))
    if reason := why_not(bench.root):
        pytest.skip(f"read-ahead per cell {reason}")


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Write a folder of images; return the dataset's name."""
    folder = tmp_path_factory.mktemp("larger-than-limit")
    noise = np.random.default_rng(7)
    for name in ("cats", "dogs"):
        (folder / name).mkdir()
    for number in range(COUNT):
        pixels = noise.integers(0, 256, (256, 256, 3), np.uint8)
        path = folder / ("cats", "dogs")[number % 2] / f"{number:04d}.png"
        Image.fromarray(pixels).save(path, compress_level=0)
    return f"folder:{folder}"


@pytest.fixture(scope="module")
def limited(
    photos: str, bench: Bench, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> dict[tuple[str, int], dict[str, Any]]:
    """Run limited cells of LMDB, with --full of PNG files too, once; return their records by backend and epoch."""
    out = tmp_path_factory.mktemp("limited") / "run"
    backends = ("png", "lmdb", "lmdb:direct")[0 if request.config.getoption("--full") else 1 :]
    limit = ("--cache", "limited", "--memory", "40 MiB")
    done, records = bench.run(*backends, "-d", photos, *WORK, *limit, out=out)
    assert done.returncode == 0, done.stderr
    return {(record["cell"]["backend"], record["epoch"]): record for record in records}


def home_of(bench: Bench) -> Path:
    """Return the folder of the stores of `photos`."""
    [home] = bench.stores.glob("*larger-than-limit*-train")
    return home


def groups() -> list[Path]:
    """Return the groups whose makers have gone."""
    found = find_controller_folder().glob("storebench-*")
    return [folder for folder in found if not psutil.pid_exists(int(folder.name.split("-")[1]))]


@functools.cache
def find_controller_folder() -> Path:
    return find_controller().parent


def devices(bench: Bench) -> list[str]:
    """Return the loop devices whose image lies below the test's folder."""
    images = [path.read_text() for path in Path("/sys/block").glob("loop*/loop/backing_file")]
    return [image for image in images if str(bench.root) in image]


def mounts(bench: Bench) -> list[str]:
    """Return the mounts below the test's folder that any process sees."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/mountinfo"):
        try:
            found |= {line for line in path.read_text().splitlines() if str(bench.root) in line}
        except OSError:
            continue
    return sorted(found)


@pytest.mark.parametrize("backend", [pytest.param("png", marks=pytest.mark.full), "lmdb"])
def test_a_limited_cell_starts_cold_and_stays_below_its_limit(
    backend: str, limited: dict[tuple[str, int], dict[str, Any]]
) -> None:
    first, second = limited[backend, 0], limited[backend, 1]
    total = first["store"]["file_bytes"]
    assert total > LIMIT
    for record in (first, second):
        cache = record["cache"]
        assert record["status"] == "ok", record["failure"]
        assert (cache["requested"], cache["verdict"]) == ("limited", "verified")
        assert cache["limit_bytes"] == LIMIT
        assert 0 < cache["limit_peak_bytes"] <= LIMIT
        assert 0 < cache["limit_own_bytes"] < LIMIT
        assert cache["resident_frac_after"] <= LIMIT / total + 0.01
        assert cache["method"].startswith("cgroup-v")
        assert record["cell"]["memory_bytes"] == LIMIT
        assert record["coverage"]["missing"] == record["coverage"]["timed_wrong"] == 0
        assert record["counters"]["device_read_bytes"] > 0.2 * record["payload_bytes"]
        assert cache["resident_max_frac"] <= LIMIT / total + 0.01
        assert len(cache["curve"]) >= 2
    assert first["cache"]["resident_frac_before"] <= 0.01, "a cold start"
    assert second["cache"]["resident_frac_before"] > 0.1, "the second epoch finds what the first one left"
    assert second["portion"]["steps"] == second["timed_steps"], "the cache had filled in the first epoch"
    assert groups() == []


@pytest.mark.full
def test_reads_of_an_emulated_tier_are_as_slow_as_it(photos: str, bench: Bench, tmp_path: Path) -> None:
    more = ("--readahead", "128", "--ranks", "2", "--max-steps", "3")
    out, tier = tmp_path / "run", ("--cache", "limited", "--memory", "40 MiB", "--tier", "40:900")
    done, records = bench.run("png", "-d", photos, *WORK, *tier, *more, "--replicates", "1", out=out)
    assert done.returncode == 0, done.stderr
    for record in records:
        facts = record["tier"]
        assert record["status"] == "ok", record["failure"]
        assert (facts["limit_bytes_per_s"], facts["limit_requests_per_s"]) == (40e6, 900)
        assert facts["read_bytes"] >= 0.9 * record["counters"]["device_read_bytes"] > 0
        assert 0 < facts["read_bytes"] / facts["seconds"] < 1.2 * 40e6
        assert facts["requests"] > 0
    assert bench.cli("validate", out).returncode == 0
    told = bench.cli("report", out, "--out", tmp_path / "page").stdout
    assert "EMULATED" in told
    assert "40:900" in told, "in the conditions of an answer, or in a line of its own"
    folder = find_controller(ThrottledGroup).parent
    assert [
        p for p in folder.glob("storebench-[0-9]*") if not psutil.pid_exists(int(p.name.split("-")[1]))
    ] == []


def test_ranks_share_one_limit_and_their_epochs_validate(photos: str, bench: Bench, tmp_path: Path) -> None:
    """Residency is sampled by one rank, which must begin before any other one reads."""
    out, sized = tmp_path / "run", ("--cache", "limited", "--memory", "40 MiB")
    done, records = bench.run("lmdb", "-d", photos, *WORK, *sized, "--ranks", "2", "--epochs", "3", out=out)
    assert done.returncode == 0, done.stderr
    for record in records:
        cache = record["cache"]
        assert record["status"] == "ok", record["failure"]
        assert 0 < cache["limit_peak_bytes"] <= LIMIT
        assert cache["curve"][0]["elapsed_s"] == 0
    assert records[-1]["portion"]
    found = bench.cli("validate", out)
    assert found.returncode == 0, found.stdout


def test_a_process_that_the_limit_kills_is_a_failed_cell_that_says_so(
    photos: str, bench: Bench, tmp_path: Path
) -> None:
    """The payloads of a batch of files are taken under the limit; memory of the batch itself is there before."""
    large = ("-d", photos, *WORK, "--batch-size", str(COUNT))
    done, [record, *_] = bench.run(
        "png", *large, "--cache", "limited", "--memory", "32 MiB", out=tmp_path / "run"
    )
    assert done.returncode == 5
    assert record["status"] == "failed"
    assert record["failure"].startswith(
        "out of memory: the limit of 32 MiB was too small for the process itself"
    )
    assert "SIGKILL" in record["failure"]
    assert groups() == []


@pytest.fixture(scope="module")
def read_ahead(
    photos: str, bench: Bench, tmp_path_factory: pytest.TempPathFactory
) -> dict[int, dict[str, Any]]:
    """Run one cold LMDB cell for each of two read-aheads, by a scenario; return the records by read-ahead."""
    folder = tmp_path_factory.mktemp("readahead")
    path, out = folder / "readahead.toml", folder / "run"
    path.write_text(
        f"""
name = "readahead"
test_limit = 0

[[matrix]]
dataset = "{photos}"
model = "none"
compute = "emulated:0.01"
threads = 1
backends = ["lmdb"]
cache = "cold"
readahead = [128, 4096]
batch_size = 5
max_steps = 4
"""
    )
    done = bench.cli("bench", path, "--stores", bench.stores, "--out", out, "--json")
    assert done.returncode == 0, done.stderr
    return {entry["cell"]["readahead_kib"]: entry for entry in json.loads(done.stdout)}


def test_a_cells_read_ahead_is_in_force_and_nothing_else_changes(
    read_ahead: dict[int, dict[str, Any]], bench: Bench
) -> None:
    few, many = (read_ahead[kib]["cache"]["resident_frac_after"] for kib in (128, 4096))
    assert few < 0.4 * many, "a fault brings in 128 KiB, or 4 MiB"
    amplified = [read_ahead[kib]["counters"]["read_amplification"] for kib in (128, 4096)]
    assert amplified[0] < 0.4 * amplified[1]
    for kib, record in read_ahead.items():
        assert record["cache"]["verdict"] == "verified", record["cache"]["reason"]
        own = record["environment"]["notes"]["own_device"]
        assert own["read_ahead_kb"] == str(kib)
        assert re.fullmatch(r"loop over \w+ on .+ with direct I/O", own["model"])
    keys = {record["environment"]["key"] for record in read_ahead.values()}
    assert len(keys) == 1, "the cell's own setting tells them apart, not the machine"
    assert devices(bench) == mounts(bench) == []


def test_the_image_holds_the_same_store_and_is_not_cached_itself(
    read_ahead: dict[int, dict[str, Any]], bench: Bench
) -> None:
    home = home_of(bench)
    folder = home / ".devices" / "lmdb+raw"
    assert (resident([folder / "store.img"]).frac or 0.0) < 0.01
    assert (folder / "manifest.json").read_bytes() == (home / "lmdb+raw" / "manifest.json").read_bytes()
    script = (
        "import sys; from pathlib import Path; from storebench.probes.loop_mount import mount_image;"
        "from storebench.stores.verify import verify_store; from storebench.probes.page_count import resident;"
        "image, point = map(Path, sys.argv[1:]); mount_image(image, point, 128);"
        "print(verify_store(point).count, resident([image]).frac)"
    )
    python = [bench.command()[0], "-c", script, str(folder / "store.img"), str(folder / "store")]
    done = subprocess.run(own_namespace(python), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    count, frac = done.stdout.split()
    assert int(count) == COUNT
    assert float(frac) < 0.01, "the device reads its image with direct I/O"


def test_an_image_is_copied_again_when_its_store_changes(
    read_ahead: dict[int, dict[str, Any]], photos: str, bench: Bench, tmp_path: Path
) -> None:
    image = home_of(bench) / ".devices" / "lmdb+raw" / "store.img"
    options = ("-d", photos, *WORK, "--max-steps", "2", "--cache", "cold", "--readahead", "128")
    before = image.stat().st_ino
    done, _ = bench.run("lmdb", *options, out=tmp_path / "same")
    assert done.returncode == 0, done.stderr
    assert image.stat().st_ino == before
    manifest = home_of(bench) / "lmdb+raw" / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"build_s": ', '"build_s": 1'))
    done, [record] = bench.run("lmdb", *options, out=tmp_path / "changed")
    assert done.returncode == 0, done.stderr
    assert image.stat().st_ino != before
    assert record["store"]["build_s"] == Manifest.read(manifest.parent).build_s


@pytest.mark.full
def test_a_store_that_another_process_holds_is_not_limited(photos: str, bench: Bench, tmp_path: Path) -> None:
    limit = ("-d", photos, *WORK, "--cache", "limited", "--memory", "40 MiB")
    built, _ = bench.run("lmdb", *limit, "--max-steps", "4", out=tmp_path / "built")
    assert built.returncode == 0, built.stderr
    data = home_of(bench) / "lmdb+raw" / "data.mdb"
    command = bench.command(
        "run", "lmdb", *limit, "--epochs", "3", "--stores", bench.stores, "--out", tmp_path / "run"
    )
    with subprocess.Popen(command, cwd=bench.root, env=dict(bench.env), stderr=subprocess.DEVNULL) as runner:
        _inside(runner.pid)
        while runner.poll() is None:  # what this process reads is charged to its own group
            data.read_bytes()
            time.sleep(0.1)
    records = [json.loads(line) for line in (tmp_path / "run" / "records.jsonl").read_text().splitlines()]
    beyond = [record for record in records if record["failure"]]
    assert beyond, "it was seen"
    assert "the cache was not limited: " in beyond[-1]["failure"]
    assert any(record["cache"]["recounts"] for record in beyond), "counts above the limit were repeated"
    assert all(record["cache"]["sampling_error_frac"] == 0 for record in records), "one file is counted whole"


def _inside(runner: int) -> int:
    """Return the cell's process id once it is under its limit."""
    found: list[int] = []

    def entered() -> bool:
        for child in psutil.Process(runner).children(recursive=True):
            try:
                groups_of_it = Path("/proc", str(child.pid), "cgroup").read_text()
            except OSError:
                continue
            if "/storebench-" in groups_of_it and "storebench.worker" in " ".join(child.cmdline()):
                found.append(child.pid)
        return bool(found)

    _until(entered)
    return found[0]


def _until(condition: Any, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_optional_cells_that_are_not_permitted_are_left_out_and_named(bench: Bench, tmp_path: Path) -> None:
    scenario = tmp_path / "optional.toml"
    matrix = '[[matrix]]\ndataset = "mnist"\nsynthetic = true\nlimit = 64\nmodel = "tiny"\nthreads = 1\n'
    scenario.write_text(
        f'name = "optional"\ntest_limit = 0\n\n{matrix}backends = ["lmdb"]\nmax_steps = 1\n'
        f'\n{matrix}backends = ["lmdb", "png"]\ncache = "limited"\nmemory = "40 MiB"\noptional = true\n'
    )
    dry = without_groups(bench, "bench", scenario, "--dry-run")
    assert "2 cells left out: the page cache cannot be limited here" in dry.stdout
    assert "1 cell x 1 replicate;" in dry.stdout
    done = without_groups(bench, "bench", scenario, "--out", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("cells left out") == 1
    about = json.loads((tmp_path / "run" / "run.json").read_text())
    assert [one["backend"] for one in about["left_out"]] == ["lmdb", "png"]
    assert len(about["cells"]) == 1
    scenario.write_text(scenario.read_text().replace("optional = true", "optional = false"))
    refused = without_groups(bench, "bench", scenario, "--out", tmp_path / "other")
    assert refused.returncode == 2
    assert len(refused.stderr.splitlines()) == 1
    assert not (tmp_path / "other").exists()


def run_after(
    first: Callable[[], None], *arguments: str | Path, cwd: Path, env: Mapping[str, str]
) -> "subprocess.CompletedProcess[str]":
    """Run the command line in a copy of this process that first drops some privileges."""

    def work() -> None:
        first()
        run_command(*map(str, arguments))

    return run_in_copy(work, cwd, env)


def without_groups(bench: Bench, *arguments: str | Path) -> "subprocess.CompletedProcess[str]":
    """Run the command line where no control group can be seen."""
    hide = functools.partial(own_mounts, "mount -t tmpfs none /sys/fs/cgroup")
    return run_after(hide, *arguments, cwd=bench.root, env=bench.env)
