"""The sampler of resident pages: a real process that watches real files."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from storebench.probes.page_cache import evict, warm
from storebench.probes.page_count import PAGE_BYTES, Residency, resident
from storebench.probes.residency import (
    MOST_FILES,
    MOST_POINTS,
    RECOUNTS,
    SAMPLING_ERROR_FRAC,
    Sampler,
    chosen_files,
    settled,
)

pytestmark = pytest.mark.still_pages

MIB = 1 << 20


@pytest.fixture
def sampler(big_file: Path) -> Iterator[Sampler]:
    evict([big_file])
    watching = Sampler([big_file])
    yield watching
    watching.close()


def read_part(path: Path, start: int, length: int) -> None:
    with path.open("rb", buffering=0) as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
        for at in range(start, start + length, MIB):
            os.pread(file.fileno(), MIB, at)


def ended(pid: int) -> bool:
    """Wait a moment for a process to end, be it waited for or not."""
    for _ in range(200):
        try:
            if Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z":
                return True
        except (FileNotFoundError, ProcessLookupError):
            return True
        time.sleep(0.01)
    return False


def open_files_of(pid: int) -> set[str]:
    return {str(link.readlink()) for link in Path(f"/proc/{pid}/fd").iterdir()}


def test_the_curve_follows_the_clock_of_the_reading_process(big_file: Path, sampler: Sampler) -> None:
    size = big_file.stat().st_size
    sampler.begin()
    began_ns = time.perf_counter_ns()
    time.sleep(0.05)
    read_part(big_file, 0, size // 2)
    half_ns = time.perf_counter_ns()
    time.sleep(0.8)
    rest_ns = time.perf_counter_ns()
    read_part(big_file, size // 2, size // 2)
    end_ns = time.perf_counter_ns()
    curve = sampler.stop()
    assert curve.reason == ""
    points = list(zip(curve.at_ns, curve.resident_frac, strict=True))
    assert list(curve.at_ns) == sorted(curve.at_ns)
    assert began_ns - 50_000_000 < points[0][0]
    assert points[0][1] == 0
    assert points[-1] == (points[-1][0], 1.0)
    assert points[-1][0] > end_ns
    # Beside other work a count may be late, or there may be none.
    assert {frac for at_ns, frac in points if half_ns < at_ns < rest_ns - 400_000_000} <= {0.5}


def test_the_largest_count_stays_when_points_are_thinned(big_file: Path) -> None:
    """It decides whether a limit was kept; 151 is odd, so thinning would drop it."""
    script = (
        "from storebench.probes import residency\n"
        "from storebench.probes.page_count import Residency\n"
        "shares = iter([10] * 151 + [99] + [10] * 100_000)\n"
        "def settled(count, limit_bytes):\n"
        "    return Residency(pages_total=100, pages_resident=next(shares), method='planted'), 0\n"
        "residency.settled, residency._GROWTH = settled, 0.0\n"
        f"residency.sample([{str(big_file)!r}], late=False, limit_bytes=None)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as one:
        assert one.stdin is not None
        assert one.stdout is not None
        assert one.stdout.readline() == b"ready\n"
        one.stdin.write(b"b")
        one.stdin.flush()
        time.sleep(1.5)
        out, _ = one.communicate(b"s")
    curve = json.loads(out.removeprefix(b"c"))
    assert len(curve["at_ns"]) == len(curve["resident_frac"]) <= MOST_POINTS
    assert sorted(curve["at_ns"]) == curve["at_ns"]
    assert max(curve["resident_frac"]) == 0.99


def test_a_late_sampler_opens_nothing_before_it_begins(big_file: Path) -> None:
    evict([big_file])
    late = Sampler([big_file], late=True)
    try:
        assert str(big_file) not in open_files_of(late.pid)
        late.begin()
        read_part(big_file, 0, MIB)
        deadline = time.monotonic() + 20
        while str(big_file) not in open_files_of(late.pid):
            assert time.monotonic() < deadline, "it opens nothing"
            time.sleep(0.01)
        curve = late.stop()
    finally:
        late.close()
    assert curve.resident_frac[-1] == pytest.approx(MIB / big_file.stat().st_size)


def test_of_many_files_some_that_nobody_knows_are_counted_and_kept_open(disk: Path) -> None:
    folder = disk / "thousand"
    folder.mkdir(exist_ok=True)
    files = [folder / f"{number:04d}" for number in range(1500)]
    for path in files:
        path.write_bytes(b"x" * PAGE_BYTES)
    evict(files)
    chosen = chosen_files(files)
    assert len(set(chosen)) == MOST_FILES
    random.seed(0)
    again = chosen_files(files)
    random.seed(0)
    assert len({frozenset(chosen), frozenset(again), frozenset(chosen_files(files))}) == 3
    assert chosen_files(files[:MOST_FILES]) == files[:MOST_FILES]
    many = Sampler(files)
    try:
        assert len([name for name in open_files_of(many.pid) if name.startswith(str(folder))]) == MOST_FILES
        many.begin()
        warm(files[::2])
        curve = many.stop()
    finally:
        many.close()
    truth = resident(files).frac
    assert truth is not None
    assert truth == pytest.approx(0.5, abs=0.05)
    assert curve.resident_frac[0] == 0
    assert curve.resident_frac[-1] == pytest.approx(truth, abs=0.09)
    assert curve.error_frac == SAMPLING_ERROR_FRAC


def test_the_sampler_ends_with_its_parent_even_when_that_is_killed(big_file: Path) -> None:
    script = (
        "import sys, time; from storebench.probes.residency import Sampler\n"
        "one = Sampler(sys.argv[1:]); one.begin(); print(one.pid, flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", script, str(big_file)], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert Path(f"/proc/{pid}").exists()
        parent.send_signal(signal.SIGKILL)
        parent.wait()
    assert ended(pid)


def test_a_sampler_that_is_killed_says_so(big_file: Path, sampler: Sampler) -> None:
    sampler.begin()
    os.kill(sampler.pid, signal.SIGKILL)
    assert ended(sampler.pid)
    curve = sampler.stop()
    assert curve.at_ns == ()
    assert "sampler" in curve.reason


def test_pages_that_stay_above_a_limit_are_seen(big_file: Path) -> None:
    warm([big_file])
    watching = Sampler([big_file], limit_bytes=big_file.stat().st_size // 2)
    watching.begin()
    curve = watching.stop()
    assert set(curve.resident_frac) == {1.0}
    assert curve.recounts == RECOUNTS * len(curve.resident_frac)
    assert curve.error_frac == 0


@pytest.mark.parametrize(
    ("counts", "limit", "stands", "repetitions"),
    [
        ([52, 51, 49, 60], 50, 49, 2),
        ([53, 52, 54, *[55] * 10], 50, 52, RECOUNTS),
        ([100, 1], None, 100, 0),
    ],
)
def test_a_count_above_the_limit_is_repeated_and_the_smallest_stands(
    counts: list[int], limit: int | None, stands: int, repetitions: int
) -> None:
    left = iter(counts)

    def count() -> Residency:
        return Residency(pages_total=100, pages_resident=next(left), method="cachestat")

    found, again = settled(count, None if limit is None else limit * PAGE_BYTES)
    assert (found.pages_resident, again) == (stands, repetitions)
