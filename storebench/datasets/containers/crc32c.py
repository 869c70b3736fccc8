"""The checksum CRC-32C (Castagnoli), a block at a time: each byte's contribution is looked up by its place."""

import functools

import numpy as np
import numpy.typing as npt

_POLYNOMIAL = 0x82F63B78  # reflected
_BLOCK = 2048  # bytes of a block: its table of 2 MiB stays in the cache of a core
_PLACES = np.arange(_BLOCK, dtype=np.int64) * 256
_START = bytes.fromhex("54641f64")
"""What leads from state 0, which any zeros before it keep, to the state in which a checksum begins: all ones."""


@functools.cache
def _contributions() -> npt.NDArray[np.uint32]:
    """Return what a byte followed by so many zeros contributes, uint32 [_BLOCK x 256], for `_BLOCK` - 1 zeros first."""
    table: npt.NDArray[np.uint32] = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = (table >> np.uint32(1)) ^ (table & np.uint32(1)) * np.uint32(_POLYNOMIAL)
    rows = [table]
    for _ in range(_BLOCK - 1):
        rows.append(table[rows[-1] & 0xFF] ^ (rows[-1] >> 8))
    return np.concatenate(rows[::-1])


def crc32c(data: bytes | memoryview) -> int:
    table, state = _contributions(), np.zeros(1, "<u4")
    zeros = bytes(-(len(_START) + len(data)) % _BLOCK)
    for block in np.frombuffer(bytearray().join([zeros, _START, data]), np.uint8).reshape(-1, _BLOCK):
        block[:4] ^= state.view(np.uint8)  # a state counts as the same bits in the next four bytes
        state[0] = np.bitwise_xor.reduce(table[_PLACES + block])
    return int(state[0]) ^ 0xFFFF_FFFF


def masked(crc: int) -> bytes:
    """Return a checksum as TFRecord stores it."""
    return (((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFF_FFFF).to_bytes(4, "little")
