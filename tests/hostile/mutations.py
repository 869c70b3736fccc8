"""Seeded damage to files: JSON whose values are exchanged for impossible ones, and bytes that are cut or replaced."""

import copy
import json
import random
from typing import Any

IMPOSSIBLE: tuple[Any, ...] = (
    *(None, True, False, -1, 0, 1, 2**40, 2**62, 2**64, -(2**70), 1e-320, 1e18, 1e308),
    *(float("nan"), float("inf"), float("-inf")),
    *("", "x", "0", "\x00", "\x1b[31m", "\n::error::planted", "../../../etc/passwd", "/dev/zero", "x" * 5000),
    *("\ud800", "2026-01-01T00:00:00", "9999-12-31T23:59:59+00:00", "$a_{$", "=1+1", "<script>"),
    *([], {}, [0, 0, 0], [-1, 2, 3], [1e9] * 3, [[[[[]]]]], {"x": {"x": {}}}, [{"cell_id": []}]),
)
"""Values that may stand anywhere in somebody's JSON."""

DEEP = 100_000

RAW: dict[str, bytes] = {
    "nothing": b"",
    "zeros": bytes(4096),
    "noise": random.Random(13).randbytes(5000),
    "half a table": b'{"schema_version": 1, "run_id": "x", "cells": [',
    "lists of lists": b"[" * DEEP + b"]" * DEEP,
    "lists of lists, never ended": b"[" * DEEP,
    "UTF-16": '{"schema_version": 1}'.encode("utf-16"),
    "a long number": b'{"schema_version": ' + b"9" * 6000 + b"}",
    "half of a character": b'{"schema_version": 1, "run_id": "\\ud800", "cells": []}',
    "an array of numpy's that promises much": b"\x93NUMPY\x01\x00v\x00{'descr': '|u1', 'fortran_order': False, "
    b"'shape': (4611686018427387904, 2), }" + b" " * 40 + b"\n",
    "an array of numpy's with a strange header": b"\x93NUMPY\x01\x00v\x00" + b"(" * 118,
}
"""Contents for any file: text of other encodings, deep nesting, headers that lie."""


def mutated(document: Any, random_: random.Random) -> tuple[str, Any]:
    """Return a copy of a JSON value with one change, and the change in words."""
    changed = copy.deepcopy(document)
    places = list(_places(changed, ()))
    path = random_.choice(places)
    parent = changed
    for key in path[:-1]:
        parent = parent[key]
    name = ".".join(map(str, path))
    kind = random_.randrange(8)
    if kind == 0:
        del parent[path[-1]]
        return f"{name} is missing", changed
    if kind == 1 and isinstance(parent, dict):
        parent[f"{path[-1]}x"] = parent.pop(path[-1])
        return f"{name} is misspelt", changed
    value = random_.choice(IMPOSSIBLE)
    parent[path[-1]] = value
    return f"{name} is {value!r:.40}", changed


def cut_or_flipped(content: bytes, random_: random.Random) -> tuple[str, bytes]:
    """Return bytes with an end cut off, or with a few of them changed, and the change in words."""
    if random_.random() < 0.3:
        length = random_.randrange(len(content))
        return f"cut to {length} bytes", content[:length]
    changed = bytearray(content)
    places = [random_.randrange(len(changed)) for _ in range(random_.choice((1, 1, 4, 64)))]
    for place in places:
        changed[place] = random_.choice((0, 1, 0x7F, 0x80, 0xFF, random_.randrange(256)))
    return f"bytes {places[:4]} changed", bytes(changed)


def as_json(document: Any) -> bytes:
    """Return JSON as anybody's program writes it, numbers that are none included."""
    return json.dumps(document).encode()


def _places(value: Any, path: tuple[Any, ...]) -> Any:
    children = (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    )
    for key, child in children:
        yield (*path, key)
        yield from _places(child, (*path, key))
