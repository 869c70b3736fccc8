"""What may never change by accident: digests, orders, crops.

``python -m tests.golden.make_golden`` writes the golden file again; a digest that changes means that no older result
can be compared.
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from storebench.digests import array_digest, sample_digest, set_digest
from storebench.loading.augment import Augment
from storebench.loading.order import epoch_order, order_digest, split_batches

GOLDEN = Path(__file__).with_name("golden.json")


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
    batches = split_batches(epoch_order(1000, seed=3, epoch=1), 64)
    samples = [sample_digest(image, label) for label, image in enumerate(images(3, 4))]
    return {
        "sample_digests": [sample.hex() for sample in samples],
        "set_digest": set_digest(samples),
        "order_digest": order_digest(batches),
        "augmented_digest": augmented_digest(),
    }


if __name__ == "__main__":
    GOLDEN.write_text(json.dumps(golden(), indent=2) + "\n")
    print(GOLDEN, file=sys.stderr)
