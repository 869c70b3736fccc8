"""Test accuracy, outside every timer: the same test samples for every backend, from one store in memory."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from storebench.codecs import any_size, get_codec
from storebench.formats.base import Batch, Indices, Reader
from storebench.formats.registry import open_reader
from storebench.loading.augment import Augment, center_crop
from storebench.training.compute import CpuStep

BATCH = 256


def accuracy(
    step: CpuStep, augment: Augment, test_store: Path, *, after_batch: Callable[[], object] = bool
) -> tuple[float, int]:
    """Return the share of the test store's samples that the network classifies correctly, and their number."""
    with open_reader(test_store) as reader:
        total = len(reader.labels)
        right = count_right(step, augment, reader, np.arange(total), after_batch=after_batch)
    return (right / total if total else 0.0), total


def count_right(
    step: CpuStep,
    augment: Augment,
    reader: Reader,
    indices: Indices,
    *,
    after_batch: Callable[[], object] = bool,
) -> int:
    """Return the number of samples of a store that the network classifies correctly, without random augmentation."""
    step.network.eval()
    right = 0
    crops = not any_size(reader.payload_codec)  # others are decoded to the size of the network's images
    shape = reader.image_shape if crops else augment.output_shape(reader.image_shape)
    with torch.inference_mode():
        pixels = np.empty((BATCH, *shape), dtype=np.uint8)
        for start in range(0, len(indices), BATCH):
            batch = indices[start : start + BATCH]
            _read(reader, batch, pixels)
            images = torch.from_numpy(center_crop(pixels[: len(batch)], augment.crop))
            guesses = step.network(images.to(step.device)).argmax(dim=1).cpu().numpy()
            right += int((guesses == reader.labels[batch]).sum())
            after_batch()
    step.network.train()
    return right


def _read(reader: Reader, indices: Indices, pixels: Batch) -> None:
    if not any_size(reader.payload_codec):
        reader.read_into(indices, pixels)
        return
    codec = get_codec(reader.payload_codec)
    for payload, image in zip(reader.fetch(indices), pixels, strict=False):
        codec.decode_into(payload, image)
