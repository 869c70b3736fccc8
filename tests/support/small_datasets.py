"""Datasets made in memory for tests of the converter: picklable, with known pixels, and able to misbehave."""

import os
import time
from dataclasses import dataclass, field

import numpy as np

from storebench.datasets.base import Dataset, DatasetInfo, DatasetSpec, Image, Origin, Provenance
from storebench.digests import sample_digest, set_digest
from storebench.settings.words import Split

CLASSES = tuple("abcdefghij")
SPEC = DatasetSpec(name="small")


def info(count: int, shape: tuple[int, int, int], fingerprint: str = "small") -> DatasetInfo:
    return DatasetInfo(
        name="small",
        split=Split.TRAIN,
        count=count,
        image_shape=shape,
        class_names=CLASSES,
        provenance=Provenance(origin=Origin.SYNTHETIC, source="a test"),
        fingerprint=f"{fingerprint}-{count}-{shape}",
    )


@dataclass(frozen=True)
class Gradients(Dataset):
    """Smooth images with a little noise, each different, labels cycling through ten classes."""

    count: int = 60
    shape: tuple[int, int, int] = (12, 10, 3)
    fingerprint: str = "small"
    changed: dict[int, tuple[Image, int]] = field(default_factory=dict)

    @property
    def info(self) -> DatasetInfo:
        return info(self.count, self.shape, self.fingerprint)

    def sample(self, index: int) -> tuple[Image, int]:
        if index in self.changed:
            return self.changed[index]
        height, width, _ = self.shape
        ramp = np.add.outer(np.arange(height) * 2, np.arange(width) * 3) + index * 5
        noise = np.random.default_rng(index).integers(0, 6, self.shape)
        return ((ramp[:, :, None] + noise) % 256).astype(np.uint8), index % len(CLASSES)

    def digest(self) -> str:
        """Return the digest of the samples, taken without any part of the converter."""
        return set_digest(sample_digest(*self.sample(index)) for index in range(self.count))


@dataclass(frozen=True)
class ProcessIds(Dataset):
    """Each image is the id of the process that made it, so that a test can see who did the work."""

    count: int
    slow_s: float = 0.0
    shape: tuple[int, int, int] = (128, 128, 3)

    @property
    def info(self) -> DatasetInfo:
        return info(self.count, self.shape)

    def sample(self, index: int) -> tuple[Image, int]:
        time.sleep(self.slow_s)
        image = np.zeros(self.shape, np.uint8)
        image[0, :4, 0] = list(os.getpid().to_bytes(4, "little"))
        return image, 0


@dataclass(frozen=True)
class Suicidal(Gradients):
    """The process that makes sample 40 is killed, as the kernel kills who takes too much memory."""

    parent: int = 0

    def sample(self, index: int) -> tuple[Image, int]:
        if index == 40 and os.getpid() != self.parent:
            os.kill(os.getpid(), 9)
        return super().sample(index)


@dataclass(frozen=True)
class Unreadable(Gradients):
    """The file of sample 7 may not be read."""

    def sample(self, index: int) -> tuple[Image, int]:
        if index == 7:
            raise PermissionError(13, "Permission denied", "/photos/seven.png")
        return super().sample(index)
