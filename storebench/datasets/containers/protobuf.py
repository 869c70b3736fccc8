"""Messages of protocol buffers by their wire format, without a schema: for Caffe's Datum and tf.train.Example."""

from collections.abc import Iterator

# Wire types: a number, 8 bytes, a length with that many bytes, 4 bytes.
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5

_FIXED = {FIXED64: 8, FIXED32: 4}
_MOST_VARINT_BYTES = 10


def wire_fields(message: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """Yield number and value of each field, an int for a number; a damaged message raises ValueError."""
    at = 0
    while at < len(message):
        tag, at = read_varint(message, at)
        number, wire_type = tag >> 3, tag & 7
        if not 0 < number < 1 << 29:
            raise ValueError(f"no field has the number {number}")
        if wire_type == VARINT:
            value, at = read_varint(message, at)
            yield number, value
            continue
        if wire_type not in (BYTES, *_FIXED):
            raise ValueError(f"no field has the wire type {wire_type}")
        size, at = read_varint(message, at) if wire_type == BYTES else (_FIXED[wire_type], at)
        if size > len(message) - at:
            raise ValueError(f"a field of {size:,} bytes is cut short")
        yield number, message[at : at + size]
        at += size


def messages(message: memoryview, wanted: int) -> Iterator[memoryview]:
    """Yield the messages, or byte strings, in the field of a number."""
    for number, value in wire_fields(message):
        if number == wanted:
            if not isinstance(value, memoryview):
                raise ValueError(f"field {wanted} is a number, not a message")
            yield value


def read_varint(message: memoryview, at: int) -> tuple[int, int]:
    """Return a number and the position behind it: seven bits per byte, the lowest first."""
    value = 0
    for place, byte in enumerate(message[at : at + _MOST_VARINT_BYTES]):
        value |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return value & 0xFFFF_FFFF_FFFF_FFFF, at + place + 1
    raise ValueError("a number is cut short or too long")


def signed(value: int) -> int:
    """Return an int32 or int64 from the 64 bits that the wire has of it."""
    return value - (1 << 64) if value >> 63 else value
