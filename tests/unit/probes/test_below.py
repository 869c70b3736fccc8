"""The search for caches below this kernel: how it decides, and what it finds on disks whose answer is known."""

import dataclasses
import json
import time
from pathlib import Path

import numpy as np
import pytest

from storebench.probes import page_cache
from storebench.probes.below import (
    CACHED_LOOP,
    MOST_TRIES,
    READ_BYTES,
    STATE_FILE,
    Touches,
    below_cache,
    below_sentence,
    decide,
    with_below,
)
from storebench.probes.machine import attached
from storebench.probes.mounts import mount_of
from storebench.probes.unread import Candidates, unread_ranges
from storebench.results import BelowCache, CacheFacts, CacheVerdict
from storebench.settings.words import CacheState
from tests.support.disks import loop_disk

COLD = CacheFacts(
    requested=CacheState.COLD,
    method="fadvise",
    resident_frac_before=0.0,
    resident_frac_after=0.5,
    verdict=CacheVerdict.VERIFIED,
)


def touches(ratio: float, ratio_16: float | None = None, *, pairs: int = 100, spread: float = 0.2) -> Touches:
    """Return durations of which first reads take `ratio` times as long, with noise."""
    rng = np.random.default_rng(pairs)

    def side(centre: float, count: int) -> list[float]:
        return list(centre * np.exp(rng.normal(0, spread, count)))

    both = [1e-3, 1e-3] if ratio_16 is None else [ratio_16 * 1e-3, 1e-3]
    groups = 0 if ratio_16 is None else 20
    return Touches(
        first=side(ratio * 2e-4, pairs),
        second=side(2e-4, pairs),
        first_groups=side(both[0], groups),
        second_groups=side(both[1], groups),
    )


@pytest.mark.parametrize(
    ("found", "verdict"),
    [
        (touches(3.0, 2.0), BelowCache.SEEN),
        (touches(1.0, 3.0), BelowCache.SEEN),
        (touches(3.0, 1.0), BelowCache.SEEN),
        (touches(1.0, 1.0, spread=0.05), BelowCache.NOT_SEEN),
        (touches(1.0, spread=0.05), BelowCache.NOT_SEEN),
        (touches(1.05, 1.0, spread=0.02), BelowCache.NOT_SEEN),
        (touches(1.0, 1.0, spread=2.0), BelowCache.UNKNOWN),
        (touches(0.5, 1.0, spread=0.05), BelowCache.UNKNOWN),
        (touches(1.0, 1.15, spread=0.25), BelowCache.UNKNOWN),
        (touches(9.0, 9.0, pairs=3), BelowCache.UNKNOWN),
    ],
)
def test_a_verdict_needs_an_interval_that_leaves_no_doubt(found: Touches, verdict: BelowCache) -> None:
    below = decide(found)
    assert below.verdict is verdict
    assert below.reason
    if below.ratio is not None:
        assert below.low is not None
        assert below.high is not None
        assert below.low < below.ratio < below.high


def test_without_a_cache_below_it_is_claimed_in_few_of_many_runs() -> None:
    claims = 0
    for seed in range(300):
        rng = np.random.default_rng(seed)
        noise = rng.standard_t(3, (4, 40)) * 0.3
        first, second, first_16, second_16 = (list(1e-4 * np.exp(value)) for value in noise)
        found = Touches(first=first, second=second, first_groups=first_16[:20], second_groups=second_16[:20])
        claims += decide(found).verdict is BelowCache.SEEN
    assert claims <= 0.05 * 300


def test_a_few_slow_reads_among_many_fast_ones_are_seen() -> None:
    rng = np.random.default_rng(0)
    first, second = (2e-4 * np.exp(rng.normal(0, 0.2, 256)) for _ in range(2))
    first[rng.random(256) < 0.15] *= 25
    assert decide(Touches(first=list(first), second=list(second))).verdict is BelowCache.SEEN


@pytest.mark.parametrize(
    ("verdict", "words"),
    [
        (BelowCache.SEEN, "a cache below it answers: first reads take 3.00 times"),
        (BelowCache.NOT_SEEN, "no cache below it was seen: first reads take 3.00 times"),
        (BelowCache.UNKNOWN, "whether a cache below it answers is unknown: first over second reads"),
    ],
)
def test_the_sentence_says_what_cold_means(verdict: BelowCache, words: str) -> None:
    below = dataclasses.replace(decide(touches(3.0)), verdict=verdict, ratio=3.0)
    sentence = below_sentence(with_below(COLD, below))
    assert sentence.startswith("cold = not in this kernel's page cache; ")
    assert words in sentence


def test_records_that_were_made_without_the_probe_say_so() -> None:
    assert below_sentence(COLD).endswith("is unknown: it was not checked")


def test_a_cache_below_the_filesystem_is_seen_and_remembered(disk: Path, tmp_path: Path, root: None) -> None:
    with loop_disk(disk / "cached", cached=True) as mount:
        before = {path: path.stat() for path in mount.glob("file*")}
        for _ in range(MOST_TRIES):  # where other work hides the difference, the next call measures again
            found = below_cache(mount, state=tmp_path, since_s=time.time() + 1)
            if found.ratio is not None:
                break
        assert found.verdict is BelowCache.SEEN, found.reason
        assert found.remembered
        again = below_cache(mount, state=tmp_path, since_s=time.time() + 1)
        assert again == found, "a call after a finding does not measure"
        after = {path: path.stat() for path in mount.glob("file*")}
    kept = [(one.st_size, one.st_mtime_ns, one.st_ctime_ns, one.st_atime_ns) for one in before.values()]
    assert kept == [
        (one.st_size, one.st_mtime_ns, one.st_ctime_ns, one.st_atime_ns) for one in after.values()
    ]


def test_only_bytes_that_are_neither_resident_nor_used_are_candidates(disk: Path, root: None) -> None:
    with loop_disk(disk / "candidates", cached=True, files=6) as mount:
        page_cache.warm([mount / "file0"])
        used = {(str(mount / "file1"), at) for at in (0, READ_BYTES)}
        wanted = Candidates(folder=mount, mount=mount_of(mount), size=READ_BYTES, since_s=time.time() + 1)
        found = unread_ranges(wanted, 100, used=used, limit_s=5)
    names = {Path(path).name for path, _ in found}
    assert names == {"file2", "file3", "file4", "file5"}


def test_a_direct_loop_device_has_the_verdict_of_its_images_device(
    disk: Path, tmp_path: Path, root: None
) -> None:
    with loop_disk(disk / "direct", cached=False, files=4) as mount:
        below_cache(mount, state=tmp_path, since_s=0.0)
    kept = json.loads((tmp_path / STATE_FILE).read_text(encoding="utf-8"))["devices"]
    device = mount_of(disk).device
    assert device is not None
    assert list(kept) == [attached(device)]


def test_a_device_that_gets_the_numbers_of_an_earlier_one_is_looked_at(
    disk: Path, tmp_path: Path, root: None
) -> None:
    numbers = []
    for name in ("earlier", "later"):
        with loop_disk(disk / name, cached=True, files=1) as mount:
            numbers.append(mount_of(mount).device)
            below_cache(mount, state=tmp_path, since_s=0.0)
    if numbers[0] != numbers[1]:
        pytest.skip("other loop devices were attached in between")
    kept = json.loads((tmp_path / STATE_FILE).read_text(encoding="utf-8"))["devices"]
    assert len(kept) == 2, "the findings of one device were taken for those of the other"


def test_a_loop_device_without_direct_io_has_a_cache_below(disk: Path, tmp_path: Path, root: None) -> None:
    with loop_disk(disk / "fresh", cached=True, files=1) as mount:
        verdicts = [below_cache(mount, state=tmp_path, since_s=0.0) for _ in range(MOST_TRIES + 1)]
    assert {(verdict.verdict, verdict.ratio, verdict.reason) for verdict in verdicts} == {
        (BelowCache.SEEN, None, CACHED_LOOP)
    }
    assert below_sentence(with_below(COLD, verdicts[-1])).endswith(
        f"a cache below them answers: {CACHED_LOOP}"
    )


def test_a_real_device_gets_one_of_three_verdicts_within_the_time(disk: Path, tmp_path: Path) -> None:
    started = time.monotonic()
    found = below_cache(disk, state=tmp_path)
    assert time.monotonic() - started < 10
    assert found.verdict in BelowCache
    assert found.reason
    device = mount_of(disk).device
    assert device is not None
    kept = json.loads((tmp_path / STATE_FILE).read_text(encoding="utf-8"))["devices"][attached(device)]
    assert kept["found"]["verdict"] == found.verdict
    used = {(path, offset) for path, offset in kept["used"]}
    assert len(used) == len(kept["used"])


def test_an_unknown_verdict_is_tried_again_but_not_for_ever(disk: Path, tmp_path: Path) -> None:
    """Nothing is older than 1970, so no bytes are found."""
    for number in range(1, MOST_TRIES + 3):
        found = below_cache(disk, state=tmp_path, since_s=0.0)
        assert found.verdict is BelowCache.UNKNOWN
        assert "not been read since boot" in found.reason
        (kept,) = json.loads((tmp_path / STATE_FILE).read_text(encoding="utf-8"))["devices"].values()
        assert kept["tries"] == min(number, MOST_TRIES)


def test_what_was_found_before_the_last_boot_counts_no_more(disk: Path, tmp_path: Path) -> None:
    below_cache(disk, state=tmp_path, since_s=0.0)
    path = tmp_path / STATE_FILE
    kept = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(kept | {"boot_id": "another"}), encoding="utf-8")
    below_cache(disk, state=tmp_path, since_s=0.0)
    assert json.loads(path.read_text(encoding="utf-8"))["boot_id"] == kept["boot_id"]
    (again,) = json.loads(path.read_text(encoding="utf-8"))["devices"].values()
    assert again["tries"] == 1


@pytest.mark.parametrize(
    "text", ["", "[]", '{"devices": 3}', '{"boot_id": "BOOT", "devices": {"DEVICE": 7}}']
)
def test_a_damaged_state_file_counts_as_none(disk: Path, tmp_path: Path, text: str) -> None:
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    device = "{}:{}".format(*(mount_of(disk).device or ()))
    text = text.replace("BOOT", boot).replace("DEVICE", device)
    (tmp_path / STATE_FILE).write_text(text, encoding="utf-8")
    assert below_cache(disk, state=tmp_path, since_s=0.0).verdict is BelowCache.UNKNOWN


def test_where_nothing_can_be_kept_it_says_so_or_uses_the_other_folder(disk: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    unwritable = tmp_path / "file" / "cache"
    assert not below_cache(disk, state=unwritable, since_s=0.0).remembered
    assert below_cache(disk, state=unwritable, fallback=tmp_path / "run", since_s=0.0).remembered
    assert (tmp_path / "run" / STATE_FILE).exists()


def test_the_state_is_in_the_users_cache_folder(
    disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    below_cache(disk, since_s=0.0)
    assert [path.name for path in (tmp_path / "storebench").iterdir()] == [STATE_FILE]


def test_memory_has_no_device_below(shm: Path, tmp_path: Path) -> None:
    found = below_cache(shm.parent, state=tmp_path)
    assert found.verdict is BelowCache.UNKNOWN
    assert found.reason == "tmpfs has no device"
    assert list(tmp_path.iterdir()) == []
