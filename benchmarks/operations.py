"""Are the operations of a sample measured, and the gains without them? ``python -m benchmarks.operations PHOTOS``.

Ten pipelines read the photographs of a folder, without workers and with two. The profile's shares stand beside those of
a timer around each operation in the same run; predicted gains beside the CPU time of loops with and without the
operation. Beside storebench it needs albumentations, imageio, monai, opencv-python-headless and simplejpeg. Exit code 1
if more than a tenth of the shares or of the gains are beyond the goals.
"""

import argparse
import collections
import functools
import os
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import albumentations
import cv2
import imageio.v2 as imageio
import monai.transforms as monai
import numpy as np
import simplejpeg
import torch
from PIL import Image, ImageFile, ImageFilter
from torch.utils.data import DataLoader, Dataset

import storebench
from storebench.profiling.operations import DECODING, READING

MOST_POINTS, MOST_ERROR, GOAL = 0.03, 0.15, 0.9
BATCH, TURNS = 8, 2
# Shares are counted by some hundred looks per epoch.
EPOCHS = 5


class Stopwatch:
    """Times functions in the process that calls them, each without those inside of it."""

    def __init__(self) -> None:
        self.times: dict[str, float] = {}
        self._inside = [0.0]

    def timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        self.times[name] = 0.0

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            self._inside.append(0.0)
            began = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                took = time.perf_counter() - began
                self.times[name] += took - self._inside.pop()
                self._inside[-1] += took

        call.is_timed = True  # type: ignore[attr-defined]
        return call

    def wrap(self, step: Any) -> Any:
        """Return a function timed, or an object whose class is timed."""
        if hasattr(step, "__name__"):
            return self.timed(step.__name__, step)
        for part in getattr(step, "transforms", []):
            self.wrap(part)
        kind = type(step)
        kind.__call__ = self.timed(kind.__name__, unwrapped(kind, "__call__"))
        return step


def unwrapped(owner: Any, name: str) -> Any:
    """Return a function without the timer of an earlier loop."""
    function = getattr(owner, name)
    return function.__wrapped__ if hasattr(function, "is_timed") else function


class Photos(Dataset[Any]):
    """Photographs, decoded by a function unless they are decoded already, and what a timer says of each."""

    def __init__(
        self, paths: list[str], decode: Any, transform: Any, watch: Stopwatch, *, is_decoded: bool
    ) -> None:
        self.paths, self.transform, self.watch = paths, transform, watch
        self.decoded = list(map(decode, paths)) if is_decoded else []
        self.decode = watch.timed(DECODING, decode)

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Any:
        self.watch.times = dict.fromkeys(self.watch.times, 0.0)
        began = time.perf_counter()
        photo = self.decoded[index] if self.decoded else self.decode(self.paths[index])
        if isinstance(self.transform, albumentations.Compose):
            photo = self.transform(image=photo)["image"]
        else:
            photo = self.transform(photo)
        return photo, self.watch.times | {"": time.perf_counter() - began}


class Listed:
    """A pipeline of one's own."""

    def __init__(self, steps: list[Any]) -> None:
        self.steps = steps

    def __call__(self, photo: Any) -> Any:
        for step in self.steps:
            photo = step(photo)
        return photo


def pillow(path: str) -> Any:
    with Image.open(path) as photo:
        return photo.convert("RGB")


def opencv(path: str) -> Any:
    return cv2.imread(path, cv2.IMREAD_COLOR_RGB)


def simple(path: str) -> Any:
    return simplejpeg.decode_jpeg(Path(path).read_bytes(), colorspace="RGB")


def named(path: str) -> Any:
    return {"image": path}


def by_imageio(path: str) -> Any:
    photo = imageio.imread(path)
    return photo if photo.ndim == 3 else np.repeat(photo[..., None], 3, axis=2)


def shrink(photo: Any) -> Any:
    return photo.resize((224, 224), Image.Resampling.BICUBIC)


def sharpen(photo: Any) -> Any:
    return photo.filter(ImageFilter.UnsharpMask(3))


def to_array(photo: Any) -> Any:
    return np.asarray(photo, np.float32) / 255


def noise(photo: Any) -> Any:
    return photo + np.random.default_rng(7).normal(0, 0.1, photo.shape).astype(np.float32)


def gamma(photo: Any) -> Any:
    return photo**0.8


def histogram(photo: Any) -> Any:
    counts = [0] * 256
    for value in photo[::2, ::8, 0].ravel().tolist():
        counts[value] += 1
    return photo


def to_tensor(photo: Any) -> Any:
    return torch.from_numpy(np.ascontiguousarray(photo.transpose(2, 0, 1)))


def fit(photo: Any) -> Any:
    return cv2.resize(photo, (224, 224), interpolation=cv2.INTER_AREA)


def denoise(photo: Any) -> Any:
    return cv2.bilateralFilter(photo, 5, 40, 40)


@dataclass(frozen=True)
class Pipeline:
    """A decoder and a pipeline; the names of the operations that are taken out."""

    name: str
    decode: Callable[[str], Any]
    compose: Callable[[list[Any]], Any]
    steps: Callable[[], list[Any]]
    without: tuple[str, ...]

    def loader(self, paths: list[str], workers: int, without: str = "") -> DataLoader[Any]:
        watch = Stopwatch()
        steps = [watch.wrap(step) for step in self.steps() if name_of(step) != without]
        for owner, name, row in (
            (Image, "open", READING),
            (ImageFile.ImageFile, "load", DECODING),
            (Path, "read_bytes", READING),
        ):
            setattr(owner, name, watch.timed(row, unwrapped(owner, name)))
        samples = Photos(paths, self.decode, self.compose(steps), watch, is_decoded=without == DECODING)
        return DataLoader(samples, BATCH, num_workers=workers)


def name_of(step: Any) -> str:
    return str(getattr(step, "__name__", type(step).__name__))


def train(loader: Any) -> tuple[float, dict[str, float]]:
    """Return the CPU seconds of a loop, as other programs take turns with it, and the shares that timers say."""
    times, began_s = collections.Counter[str](), cpu_s()
    for _, seconds in loader:
        times.update({name: float(values.sum()) for name, values in seconds.items()})
    whole_s = times.pop("")
    return cpu_s() - began_s, {name: value / whole_s for name, value in times.items()}


def cpu_s() -> float:
    """Return the CPU time of this process and of the workers that have ended."""
    return sum(os.times()[:4])


A, M = albumentations, monai
PIPELINES = [
    Pipeline(
        "Albumentations, colours",
        opencv,
        A.Compose,
        lambda: [A.RandomResizedCrop((224, 224)), A.HueSaturationValue(p=1.0), A.Normalize()],
        ("HueSaturationValue", "Normalize", DECODING),
    ),
    Pipeline(
        "Albumentations, shapes",
        opencv,
        A.Compose,
        lambda: [A.Resize(256, 256), A.CLAHE(p=1.0), A.ElasticTransform(p=1.0), A.RandomCrop(224, 224)],
        ("CLAHE", "ElasticTransform", DECODING),
    ),
    Pipeline(
        "Albumentations, a choice",
        simple,
        A.Compose,
        lambda: [
            A.Resize(256, 256),
            A.OneOf([A.MedianBlur((7, 7), p=1.0), A.GaussNoise(p=1.0)], p=1.0),
            A.ToGray(p=1.0),
        ],
        (DECODING,),
    ),
    Pipeline(
        "Albumentations, sharper",
        opencv,
        A.Compose,
        lambda: [A.RandomBrightnessContrast(p=1.0), A.Resize(224, 224), A.Sharpen(p=1.0)],
        ("RandomBrightnessContrast", "Sharpen", DECODING),
    ),
    Pipeline(
        "MONAI, dictionaries",
        named,
        M.Compose,
        lambda: [
            M.LoadImaged("image", reader="PILReader", converter=lambda photo: photo.convert("RGB")),
            M.EnsureChannelFirstd("image"),
            M.Resized("image", (128, 128)),
            M.RandGaussianNoised("image", prob=1.0),
            M.RandGaussianSmoothd("image", prob=1.0),
        ],
        ("RandGaussianNoised", "RandGaussianSmoothd"),
    ),
    Pipeline(
        "MONAI, arrays",
        simple,
        M.Compose,
        lambda: [
            M.Transpose((2, 0, 1)),
            M.ScaleIntensity(),
            M.Resize((128, 128)),
            M.RandAffine(prob=1.0, rotate_range=0.5),
            M.RandGaussianNoise(prob=1.0),
        ],
        ("ScaleIntensity", "RandAffine", DECODING),
    ),
    Pipeline(
        "own functions, Pillow",
        pillow,
        Listed,
        lambda: [shrink, sharpen, to_array, noise, to_tensor],
        ("sharpen", "noise", DECODING),
    ),
    Pipeline(
        "own functions, imageio",
        by_imageio,
        Listed,
        lambda: [denoise, fit, to_array, noise, to_tensor],
        ("denoise", "noise", DECODING),
    ),
    Pipeline(
        "pure Python beside OpenCV",
        opencv,
        Listed,
        lambda: [histogram, denoise, fit, to_tensor],
        ("histogram", "denoise", DECODING),
    ),
    Pipeline(
        "arithmetic of numpy",
        simple,
        Listed,
        lambda: [fit, to_array, gamma, noise, to_tensor],
        ("gamma", "noise", DECODING),
    ),
]


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="of photographs")
    parser.add_argument("--only", default="", help="part of the names of pipelines")
    options = parser.parse_args()
    torch.set_num_threads(1)
    cv2.setNumThreads(1)
    warnings.filterwarnings("ignore")
    paths = sorted(map(str, options.folder.rglob("*.[jJ][pP]*[gG]")))[:200]
    close = shares = near = count = 0
    for pipeline in PIPELINES:
        if options.only not in pipeline.name:
            continue
        for workers in (0, 2):
            whole_s = dict.fromkeys(("", *pipeline.without), 0.0)
            profiled = storebench.profile(pipeline.loader(EPOCHS * paths, workers), show=False)
            _, direct = train(profiled)
            report = profiled.report()
            for name in [*whole_s] * TURNS:
                whole_s[name] += train(pipeline.loader(paths[:48], workers, without=name))[0]
            rows = {row.name: row for row in report.operations}
            making = 1.0 - rows["collate"].share if "collate" in rows else 1.0
            print(f"\n{pipeline.name}, {workers} workers")
            print(
                f"  {'operation':26} {'profile':>8} {'timer':>8} {'points':>7} {'predicted':>9} {'measured':>9}"
            )
            for name in sorted(
                (name for name in direct if direct[name] >= 0.01), key=lambda name: -direct[name]
            ):
                share = rows[name].share / making if name in rows else 0.0
                points = 100 * (share - direct[name])
                shares, close = shares + 1, close + (abs(points) <= 100 * MOST_POINTS)
                gains = ""
                if name in pipeline.without:
                    predicted, measured = (
                        rows[name].gain if name in rows else 1.0,
                        whole_s[""] / whole_s[name],
                    )
                    error = predicted / measured - 1.0
                    count, near = count + 1, near + (abs(error) <= MOST_ERROR)
                    gains = f"{predicted:9.2f} {measured:9.2f} {error:+5.0%}"
                print(f"  {name:26} {share:8.1%} {direct[name]:8.1%} {points:+7.1f} {gains}", flush=True)
    print(
        f"\nshares within {MOST_POINTS:.0%}: {close} of {shares}; gain within {MOST_ERROR:.0%}: {near} of {count}"
    )
    sys.exit(int(close < GOAL * shares or near < GOAL * count))


if __name__ == "__main__":
    main()
