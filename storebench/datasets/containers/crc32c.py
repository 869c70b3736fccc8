"""The checksum CRC-32C (Castagnoli), a block at a time: each byte's contribution is looked up by its place."""

import functools

import numpy as np
import numpy.typing as npt

_POLYNOMIAL = 0x82F63B78  # reflected
_BLOCK = 2048  # bytes of a block: its table of 2 MiB stays in the cache of a core


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


_PLACES = np.arange(_BLOCK, dtype=np.int64) * 256


def crc32c(data: bytes | memoryview) -> int:
    table, state = _contributions(), np.uint32(0xFFFF_FFFF)
    padded = np.frombuffer(data, np.uint8)
    for start in range(0, len(padded), _BLOCK):
        block = padded[start : start + _BLOCK].copy()
        places = _PLACES[_BLOCK - len(block) :]
        if len(block) < 4:  # the state reaches beyond the block
            for byte in block.tolist():
                state = table[_PLACES[-1] + ((int(state) ^ byte) & 0xFF)] ^ (state >> np.uint32(8))
            continue
        # A state counts as the same bits in the first four bytes.
        block[:4] ^= np.frombuffer(state.astype("<u4").tobytes(), np.uint8)
        state = np.bitwise_xor.reduce(table[places + block])
    return int(state) ^ 0xFFFF_FFFF


def masked(crc: int) -> int:
    """Return a checksum as TFRecord stores it."""
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFF_FFFF
