"""TFRecord and tf.train.Example: bytes that other programs agree on, and damage that never passes."""

import contextlib
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storebench.datasets.containers.tfrecord import masked, records
from storebench.errors import CorruptDataError
from storebench.formats.peers.rows import ERRORS
from storebench.formats.peers.tfrecord import image_of, pack_example, write_record
from tests.support.thinning import examples

EXAMPLE = bytes.fromhex("0a20 0a0e0a05696d61676512050a030a0161 0a0e0a056c6162656c12051a030a0107")
"""Field by field after the definitions of tensorflow/core/example/{example,feature}.proto: image "a", label 7."""


def test_an_example_has_the_bytes_of_the_definition() -> None:
    assert pack_example(b"a", 7) == EXAMPLE


@given(payload=st.binary(max_size=300), label=st.integers(0, 2**40))
@examples(200)
def test_the_image_comes_back(payload: bytes, label: int) -> None:
    assert bytes(image_of(pack_example(payload, label))) == payload


@given(record=st.binary(max_size=60))
@examples(400)
def test_bytes_that_are_no_example_are_an_error_that_readers_report(record: bytes) -> None:
    with contextlib.suppress(*ERRORS):
        image_of(record)


def contents(path: Path) -> list[bytes]:
    with path.open("rb") as file:
        return [bytes(record) for _, record in records(file, path)]


def test_every_damaged_byte_is_found(tmp_path: Path) -> None:
    path = tmp_path / "data.tfrecord"
    with path.open("wb") as file:
        for record in (b"first", b"", b"third"):
            write_record(file, record)
    whole = path.read_bytes()
    assert contents(path) == [b"first", b"", b"third"]
    damaged = [whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :] for at in range(len(whole))]
    for content in [*damaged, whole[:-1], whole[:7]]:
        path.write_bytes(content)
        with pytest.raises(CorruptDataError, match=r"record|cut short|checksum"):
            contents(path)


@pytest.mark.parametrize("library", [True, False])
def test_a_record_has_the_checksums_of_the_format(library: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if library:
        pytest.importorskip("google_crc32c")
    else:
        monkeypatch.setitem(sys.modules, "google_crc32c", None)
    # CRC-32C of 32 zero bytes (RFC 3720, B.4), masked as tensorflow/core/lib/hash/crc32c.h does.
    crc = 0x8A9136AA
    expected = ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
    assert masked(bytes(32)) == expected.to_bytes(4, "little")
