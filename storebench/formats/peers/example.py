"""The ``tf.train.Example`` in which TFRecord and ArrayRecord files hold a sample."""

from storebench.datasets.containers.protobuf import BYTES, messages
from storebench.formats.peers.rows import IMAGE, LABEL

_IMAGE = IMAGE.encode()


def pack_example(payload: bytes, label: int) -> bytes:
    """Return an Example with the features ``image`` (one byte string) and ``label`` (one integer)."""
    image = _field(1, _field(1, payload))
    number = _field(3, _field(1, _varint(label)))
    entries = [(IMAGE, image), (LABEL, number)]
    features = b"".join(_field(1, _field(1, name.encode()) + _field(2, value)) for name, value in entries)
    return _field(1, features)


def image_of(record: bytes | memoryview) -> memoryview:
    """Return the bytes of the feature ``image`` of an Example; raise `ValueError` if it has none."""
    for features in messages(memoryview(record), 1):
        for entry in messages(features, 1):
            if any(name == _IMAGE for name in messages(entry, 1)):
                for feature in messages(entry, 2):
                    for values in messages(feature, 1):
                        return next(messages(values, 1))
    raise ValueError("a record has no image")


def _field(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | BYTES) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
