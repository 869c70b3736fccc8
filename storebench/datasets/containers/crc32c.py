"""The checksum CRC-32C (Castagnoli), by a library where it is installed: without one, a megabyte takes 0.1 s."""

import functools

_POLYNOMIAL = 0x82F63B78  # reflected


@functools.cache
def _table() -> list[int]:
    table = list(range(256))
    for _ in range(8):
        table = [value >> 1 ^ (value & 1) * _POLYNOMIAL for value in table]
    return table


def crc32c(data: bytes | memoryview) -> int:
    try:
        from google_crc32c import value
    except ImportError:
        state, table = 0xFFFF_FFFF, _table()
        for byte in data:
            state = table[(state ^ byte) & 0xFF] ^ state >> 8
        return state ^ 0xFFFF_FFFF
    return int(value(bytes(data)))


def masked(data: bytes | memoryview) -> bytes:
    """Return the checksum of some bytes as TFRecord stores it."""
    crc = crc32c(data)
    return (((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFF_FFFF).to_bytes(4, "little")
