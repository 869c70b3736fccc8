"""Samples that a rank holds for others: kept once, packed in the order asked for, on disk as in memory."""

import tempfile
from pathlib import Path

import numpy as np
import pytest

from storebench.arrays import Indices
from storebench.errors import CellFailedError, CorruptDataError
from storebench.ranks import spill
from storebench.ranks.held import HeldPayloads, HeldPixels, cut, joined_sizes
from storebench.ranks.spill import SpillFile, spill_refusal, spilled_array

SHAPE = (2, 3, 1)
OWN = np.array([3, 5, 8], np.int64)


def ids(*samples: int) -> Indices:
    return np.array(samples, np.int64)


def image(sample: int) -> np.ndarray:
    return np.full(SHAPE, sample, np.uint8)


def images(*samples: int) -> np.ndarray:
    return np.stack([image(sample) for sample in samples])


def payload(sample: int) -> bytes:
    return bytes([sample]) * (sample + 1)


@pytest.fixture(params=[False, True], ids=["memory", "disk"])
def spilled(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def test_only_own_pixels_are_kept(spilled: bool) -> None:
    held = HeldPixels(OWN, SHAPE, spilled=spilled)
    assert held.missing == 3
    held.keep(ids(8, 1, 3), images(8, 1, 3))
    assert held.missing == 1
    assert held.held_bytes == 2 * 6
    held.keep(ids(5, 9), images(5, 9))
    assert held.missing == 0
    assert held.held_bytes == 3 * 6


def test_a_sample_that_comes_twice_is_kept_once(spilled: bool) -> None:
    """Padding of an epoch repeats samples within a batch, and a second pass repeats all of them."""
    held = HeldPixels(OWN, SHAPE, spilled=spilled)
    held.keep(ids(5, 3, 5), np.stack([image(5), image(3), image(77)]))
    held.keep(ids(5), images(99))
    assert held.held_bytes == 2 * 6
    assert held.pack(ids(5)).tolist() == [5] * 6


def test_pixels_are_packed_in_the_order_asked_for(spilled: bool) -> None:
    held = HeldPixels(OWN, SHAPE, spilled=spilled)
    held.keep(OWN, images(3, 5, 8))
    assert held.pack(ids(8, 3)).tolist() == [8] * 6 + [3] * 6
    out = np.zeros((4, *SHAPE), np.uint8)
    held.put(ids(5, 8), np.array([2, 0]), out)
    assert out[:, 0, 0, 0].tolist() == [8, 0, 5, 0]


def test_a_packed_message_is_a_copy() -> None:
    held = HeldPixels(OWN, SHAPE)
    held.keep(OWN, images(3, 5, 8))
    message = held.pack(ids(3))
    message[:] = 0
    assert held.pack(ids(3)).tolist() == [3] * 6


def test_payloads_of_any_size_come_back(spilled: bool) -> None:
    held = HeldPayloads(OWN, spilled=spilled)
    held.keep(ids(8, 2, 3), [payload(8), payload(2), payload(3)])
    assert held.sizes.tolist() == [4, 0, 9]
    assert held.held_bytes == 4 + 9
    held.keep(ids(3, 5), [b"another", payload(5)])
    assert held.payloads(ids(5, 8, 3)) == [payload(5), payload(8), payload(3)]
    assert held.pack(ids(8, 5)).tobytes() == payload(8) + payload(5)
    assert held.held_bytes == 4 + 6 + 9


def test_an_empty_payload_is_a_payload(spilled: bool) -> None:
    held = HeldPayloads(OWN, spilled=spilled)
    held.keep(OWN, [b"", b"x", b""])
    assert held.missing == 0
    assert held.payloads(OWN) == [b"", b"x", b""]


@pytest.mark.parametrize("asked", [(4,), (3, 4), (9,), (8,)], ids=str)
def test_a_sample_that_is_not_held_is_refused(asked: tuple[int, ...], spilled: bool) -> None:
    held = HeldPayloads(OWN, spilled=spilled)
    held.keep(ids(3, 5), [payload(3), payload(5)])
    with pytest.raises(CellFailedError, match="does not hold"):
        held.payloads(ids(*asked))


def test_a_rank_without_samples_holds_nothing() -> None:
    held = HeldPixels(ids(), SHAPE)
    held.keep(ids(1, 2), images(1, 2))
    assert (held.missing, held.held_bytes, held.pack(ids()).tolist()) == (0, 0, [])
    with pytest.raises(CellFailedError, match="does not hold"):
        held.pack(ids(1))


def test_a_message_is_cut_into_its_payloads() -> None:
    parts = [payload(4), b"", payload(1)]
    content = np.frombuffer(b"".join(parts), np.uint8)
    assert cut(content, ids(*map(len, parts))) == parts


def test_sizes_of_all_ranks_are_joined_by_owner() -> None:
    owners = np.array([1, 0, 1, -1, 0], np.int32)
    assert joined_sizes([ids(10, 20), ids(7, 9)], owners).tolist() == [7, 10, 9, 0, 20]


def test_spilled_samples_follow_each_other() -> None:
    file = SpillFile()
    assert [file.append(content) for content in (b"abc", b"", b"defgh")] == [0, 3, 3]
    assert (file.read(3, 5), file.read(0, 3), file.read(3, 0)) == (b"defgh", b"abc", b"")


def test_a_spilled_sample_that_is_cut_off_is_refused() -> None:
    file = SpillFile()
    start = file.append(b"abcdef")
    with pytest.raises(CorruptDataError, match="spilled to disk cannot be read"):
        file.read(start + 2, 6)


def test_an_array_on_disk_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    array = spilled_array((3, 2))
    array[:] = [[1, 2], [3, 4], [5, 6]]
    assert array.sum(axis=0).tolist() == [9, 12]
    assert spilled_array((0, 4)).shape == (0, 4)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("kind", "refused"),
    [("tmpfs", True), ("ramfs", True), ("tmpfs (shared)", True), ("ext4", False), ("overlay", False)],
)
def test_a_folder_in_memory_takes_no_spilled_samples(
    kind: str, refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spill, "file_system", lambda place: kind)
    refusal = spill_refusal(3)
    assert (refusal is not None) is refused
    assert refusal is None or ("on node 3" in refusal and "TMPDIR" in refusal)
