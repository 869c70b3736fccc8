"""What may never change by accident: digests, ids, the fields of a record, the columns of a table of steps.

``python -m tests.golden.make_golden`` writes the golden file again. A name that
goes or changes its type needs a new schema version; a digest that changes means
that no older result can be compared.
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from storebench.digests import array_digest, sample_digest, set_digest
from storebench.loading.augment import Augment
from storebench.loading.order import epoch_order, order_digest, split_batches
from storebench.results import SCHEMA_VERSION
from storebench.runs.records import json_schema
from storebench.training.step_table import step_table

GOLDEN = Path(__file__).with_name("golden.json")


def fields(schema: dict[str, Any], definitions: dict[str, Any], prefix: str = "") -> dict[str, str]:
    """Return the dotted name of every field with its JSON type."""
    found = {}
    for name, value in schema.get("properties", {}).items():
        options = value.get("anyOf", [value])
        found[prefix + name] = " | ".join(_type(option) for option in options)
        for option in options:
            if "$ref" in option:
                target = definitions[option["$ref"].rpartition("/")[2]]
                found |= fields(target, definitions, f"{prefix}{name}.")
    return found


def _type(option: dict[str, Any]) -> str:
    return str(option["$ref"].rpartition("/")[2] if "$ref" in option else option.get("type", "any"))


def images(count: int, side: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return images whose every pixel is known: a counter modulo 251."""
    return (np.arange(count * side * side * 3) % 251).astype(np.uint8).reshape(count, side, side, 3)


def augmented_digest() -> str:
    """Return the digest of five images, cropped and mirrored."""
    out = np.empty((5, 9, 9, 3), dtype=np.uint8)
    Augment(crop=9, mirror=True).apply(images(5, 16), np.arange(5), out, seed=7, epoch=2)
    return array_digest(out)


def golden() -> dict[str, Any]:
    """Return everything that is held fast."""
    schema = json_schema()
    batches = split_batches(epoch_order(1000, seed=3, epoch=1), 64)
    samples = [sample_digest(image, label) for label, image in enumerate(images(3, 4))]
    return {
        "schema_version": SCHEMA_VERSION,
        "fields": fields(schema, schema["$defs"]),
        "step_columns": {
            name: str(column.dtype) for name, column in step_table([], [], warmup_steps=0).items()
        },
        "sample_digests": [sample.hex() for sample in samples],
        "set_digest": set_digest(samples),
        "order_digest": order_digest(batches),
        "augmented_digest": augmented_digest(),
    }


if __name__ == "__main__":
    GOLDEN.write_text(json.dumps(golden(), indent=2) + "\n")
    print(GOLDEN, file=sys.stderr)
