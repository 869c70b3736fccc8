"""Test accuracy, outside every timer: the same test samples for every backend, from one array in memory."""

from pathlib import Path

import numpy as np
import torch

from storebench.formats.registry import open_reader
from storebench.loading.augment import center_crop
from storebench.training.models import ModelSpec
from storebench.training.steps import CpuStep

BATCH = 256


def accuracy(step: CpuStep, spec: ModelSpec, test_store: Path) -> tuple[float, int]:
    """Return the share of the test store's samples that the network classifies correctly, and their number."""
    step.network.eval()
    right = total = 0
    with open_reader(test_store) as reader, torch.inference_mode():
        pixels = np.empty((BATCH, *reader.image_shape), dtype=np.uint8)
        for start in range(0, len(reader.labels), BATCH):
            indices = np.arange(start, min(start + BATCH, len(reader.labels)), dtype=np.int64)
            reader.fetch_into(indices, pixels)
            images = torch.from_numpy(center_crop(pixels[: len(indices)], spec.augment.crop))
            guesses = step.network(images.to(step.device)).argmax(dim=1).cpu().numpy()
            right += int((guesses == reader.labels[indices]).sum())
            total += len(indices)
    step.network.train()
    return (right / total if total else 0.0), total
