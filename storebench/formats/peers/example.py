"""``tf.train.Example`` by hand: the protocol buffer message in which TFRecord and ArrayRecord files hold a sample."""

from collections.abc import Iterator

from storebench.formats.peers.rows import IMAGE, LABEL

_LENGTH_DELIMITED = 2


def pack_example(payload: bytes, label: int) -> bytes:
    """Return an Example with the features ``image`` (one byte string) and ``label`` (one integer)."""
    image = _field(1, _field(1, payload))
    number = _field(3, _field(1, _varint(label)))
    entries = [(IMAGE, image), (LABEL, number)]
    features = b"".join(_field(1, _field(1, name.encode()) + _field(2, value)) for name, value in entries)
    return _field(1, features)


def image_of(record: bytes) -> memoryview:
    """Return the bytes of the feature ``image`` of an Example; raise `ValueError` if it has none."""
    view = memoryview(record)
    for features in _fields(view, 1):
        for entry in _fields(features, 1):
            if any(name == IMAGE.encode() for name in _fields(entry, 1)):
                return next(
                    value
                    for feature in _fields(entry, 2)
                    for many in _fields(feature, 1)
                    for value in _fields(many, 1)
                )
    raise ValueError("a record has no image")


def _field(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | _LENGTH_DELIMITED) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _fields(message: memoryview, number: int) -> Iterator[memoryview]:
    """Yield the contents of the length-delimited fields of a message that have this number."""
    at, end = 0, len(message)
    while at < end:
        key, at = _read_varint(message, at)
        if key & 7 != _LENGTH_DELIMITED:
            raise ValueError(f"a field of type {key & 7} where bytes were expected")
        size, at = _read_varint(message, at)
        if at + size > end:
            raise ValueError("a field ends beyond its message")
        if key >> 3 == number:
            yield message[at : at + size]
        at += size


def _read_varint(message: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[at]
        value |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise ValueError("a number is too long")
