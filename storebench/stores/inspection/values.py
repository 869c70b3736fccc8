"""Name the contents of a value by its first bytes: images, pickles, Caffe's Datum. Nothing is unpickled or decoded."""

import itertools
import pickletools
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

_MAGIC: tuple[tuple[int, bytes, str], ...] = (
    (0, b"\xff\xd8\xff", "JPEG"),
    (0, b"\x89PNG\r\n\x1a\n", "PNG"),
    (8, b"WEBP", "WebP"),
    (0, b"GIF8", "GIF"),
    (0, b"II*\0", "TIFF"),
    (0, b"MM\0*", "TIFF"),
    (0, b"\0\0\0\x0cjP  ", "JPEG 2000"),
    (4, b"ftypavif", "AVIF"),
    (0, b"\x93NUMPY", "a .npy file"),
    (0, b"PK\x03\x04", "a zip archive, as torch.save writes"),
    (0, b"\x1f\x8b", "gzip"),
    (0, b"\x28\xb5\x2f\xfd", "zstd"),
    (0, b"\x04\x22\x4d\x18", "LZ4"),
)

_MOST_OPCODES = 10_000
_PROTOCOLS = range(2, 6)
_MOST_NAMES = 3

_DATUM_NUMBERS = {1: "channels", 2: "height", 3: "width", 5: "label", 7: "encoded"}
_DATUM_DATA, _DATUM_FLOATS = 4, 6
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_MOST_VARINT_BYTES = 10
_MOST_FIELDS = 10_000


def contents_of(values: Sequence[bytes]) -> str:
    """Return the contents of some values in words, the most frequent kinds first; "" if they are of no known kind."""
    kinds = Counter(content_of(value) for value in values)
    if set(kinds) == {""}:
        return ""
    names = [kind or "other bytes" for kind, _ in kinds.most_common(_MOST_NAMES)]
    return " or ".join(names)


def content_of(value: bytes) -> str:
    """Return the kind of one value ("JPEG", "Caffe Datum of JPEG"); "" if it is none of the known ones."""
    return _magic(value) or _pickled(value) or _datum(value)


def _magic(value: bytes) -> str:
    return next((name for at, magic, name in _MAGIC if value[at : at + len(magic)] == magic), "")


def _pickled(value: bytes) -> str:
    """Describe a pickle of protocol 2 or later by its opcodes. They are read as text, and never executed."""
    if len(value) < 4 or value[0] != 0x80 or value[1] not in _PROTOCOLS or value[-1:] != b".":
        return ""
    names: list[str] = []
    longest = b""
    texts: list[str] = []
    try:
        for opcode, argument, _ in itertools.islice(pickletools.genops(value), _MOST_OPCODES):
            if isinstance(argument, bytes | bytearray):
                longest = max(longest, bytes(argument), key=len)
            if opcode.name == "GLOBAL":
                names.append(str(argument).split(" ")[-1])
            elif opcode.name == "STACK_GLOBAL":
                names += texts[-1:]
            elif isinstance(argument, str):
                texts.append(argument)
    except (ValueError, OverflowError):
        return ""
    return f"pickled{_inside(names, longest)}, protocol {value[1]}"


def _inside(names: Sequence[str], longest: bytes) -> str:
    inner = _magic(longest)
    if inner:
        return f" {inner}"
    if any(name in ("_reconstruct", "_frombuffer", "ndarray") for name in names):
        return " numpy array"
    if any(name.startswith("_rebuild_tensor") for name in names):
        return " torch tensor"
    return ""


@dataclass(kw_only=True)
class _Datum:
    """The fields of a message that may be Caffe's Datum; `data` is the part of the value that holds the pixels."""

    numbers: dict[str, int] = field(default_factory=dict)
    data: bytes | None = None
    floats: bool = False


def _datum(value: bytes) -> str:
    """Describe a value that is a complete message of Caffe's type Datum, in the wire format of protocol buffers."""
    datum = _Datum()
    try:
        for number, kind, content in _fields(value):
            _take(datum, number, kind, content)
    except (ValueError, IndexError):
        return ""
    if datum.floats:
        return "Caffe Datum of floats"
    if datum.data is None:
        return ""
    if datum.numbers.get("encoded"):
        return f"Caffe Datum of {_magic(datum.data) or 'encoded bytes'}"
    sides = [datum.numbers.get(name, 0) for name in ("channels", "height", "width")]
    if sides[0] * sides[1] * sides[2] != len(datum.data) or not datum.data:
        return ""
    return f"Caffe Datum of raw pixels, {'x'.join(map(str, sides))}"


def _take(datum: _Datum, number: int, kind: int, content: int | bytes) -> None:
    """Take over one field; raise `ValueError` if Datum has no such field."""
    if number in _DATUM_NUMBERS and isinstance(content, int) and kind == _VARINT:
        datum.numbers[_DATUM_NUMBERS[number]] = content
    elif number == _DATUM_DATA and isinstance(content, bytes) and kind == _BYTES:
        datum.data = content
    elif number == _DATUM_FLOATS and kind in (_BYTES, _FIXED32):
        datum.floats = True
    else:
        raise ValueError(f"a Datum has no field {number} of kind {kind}")


def _fields(value: bytes) -> Iterator[tuple[int, int, int | bytes]]:
    """Yield number, kind and content of the first fields of a message; raise `ValueError` if it is none."""
    at = 0
    for _ in range(_MOST_FIELDS):
        if at == len(value):
            return
        tag, at = _varint(value, at)
        content: int | bytes
        if tag & 7 == _VARINT:
            content, at = _varint(value, at)
        else:
            length, at = _length(value, at, tag & 7)
            content = value[at : at + length]
            at += length
        if at > len(value):
            raise ValueError("a field ends beyond the message")
        yield tag >> 3, tag & 7, content


def _length(value: bytes, at: int, kind: int) -> tuple[int, int]:
    if kind == _BYTES:
        return _varint(value, at)
    if kind in (_FIXED32, _FIXED64):
        return (4 if kind == _FIXED32 else 8), at
    raise ValueError(f"no field is of kind {kind}")


def _varint(value: bytes, at: int) -> tuple[int, int]:
    """Return a number of variable length and the position behind it."""
    number = 0
    for place in range(_MOST_VARINT_BYTES):
        byte = value[at + place]
        number |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return number, at + place + 1
    raise ValueError("a number has too many bytes")
