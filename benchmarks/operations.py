"""Are the operations of a sample measured, and the gains without them? ``python -m benchmarks.operations PHOTOS``.

Ten pipelines read the photographs of a folder. Of each, the profile's shares of the operations stand beside those of a
timer around each operation in a process of its own; then the predicted gain without an operation beside that of a loop
without it. Beside storebench it needs albumentations, datasets, imageio, monai, opencv-python-headless, simplejpeg and
torchvision. Exit code 1 if fewer than the goals are right.
"""

import argparse
import collections
import dataclasses
import functools
import multiprocessing
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
from storebench.profiling.profile_report import ProfileReport

# torchvision's build for GPUs registers kernels of these, which no pipeline calls.
_OPERATORS = torch.library.Library("torchvision", "FRAGMENT")
for _operator in ("nms", "qnms"):
    _OPERATORS.define(f"{_operator}(Tensor boxes) -> Tensor")

from torchvision import transforms as V1  # noqa: E402, N812
from torchvision.transforms import v2 as V2  # noqa: E402, N812

MOST_POINTS, MOST_ERROR, GAIN_GOAL = 0.03, 0.15, 30 / 34
BATCH = 16
DECODING = "decode"


class Photos(Dataset[Any]):
    """Photographs that Pillow opens, and decodes unless they are decoded already."""

    def __init__(self, paths: list[str], transform: Any, count: int, *, is_decoded: bool) -> None:
        self.paths, self.transform, self.count = paths, transform, count
        self.decoded = [self.decode(path) for path in paths] if is_decoded else []

    def __len__(self) -> int:
        return self.count

    def decode(self, path: str) -> Any:
        with Image.open(path) as photo:
            return photo.convert("RGB")

    def __getitem__(self, index: int) -> Any:
        path = self.paths[index % len(self.paths)]
        return self.transform(self.decoded[index % len(self.paths)] if self.decoded else self.decode(path))


class OpenCvPhotos(Photos):
    def decode(self, path: str) -> Any:
        return cv2.imread(path, cv2.IMREAD_COLOR_RGB)

    def __getitem__(self, index: int) -> Any:
        path = self.paths[index % len(self.paths)]
        photo = self.decoded[index % len(self.paths)] if self.decoded else self.decode(path)
        photo = self.transform(image=photo)["image"]
        return torch.from_numpy(np.ascontiguousarray(photo.transpose(2, 0, 1)))


class SimpleJpegPhotos(Photos):
    def decode(self, path: str) -> Any:
        return simplejpeg.decode_jpeg(Path(path).read_bytes(), colorspace="RGB")


class ImageioPhotos(Photos):
    def decode(self, path: str) -> Any:
        photo = imageio.imread(path)
        return photo if photo.ndim == 3 else np.repeat(photo[..., None], 3, axis=2)


class Dictionaries(Photos):
    """The names of photographs, which the pipeline reads."""

    def decode(self, path: str) -> Any:
        return {"image": path}


class Listed:
    """A pipeline of one's own."""

    def __init__(self, steps: list[Any]) -> None:
        self.steps = steps

    def __call__(self, photo: Any) -> Any:
        for step in self.steps:
            photo = step(photo)
        return photo


def shrink(photo: Any) -> Any:
    return photo.resize((224, 224), Image.Resampling.BICUBIC)


def sharpen(photo: Any) -> Any:
    return photo.filter(ImageFilter.UnsharpMask(3))


def to_array(photo: Any) -> Any:
    return np.asarray(photo, np.float32) / 255


def noise(photo: Any) -> Any:
    return photo + np.random.default_rng(7).normal(0, 0.1, photo.shape).astype(np.float32)


def to_tensor(photo: Any) -> Any:
    return torch.from_numpy(np.ascontiguousarray(photo.transpose(2, 0, 1)))


def fit(photo: Any) -> Any:
    return cv2.resize(photo, (224, 224), interpolation=cv2.INTER_AREA)


def denoise(photo: Any) -> Any:
    return cv2.bilateralFilter(photo, 5, 40, 40)


HALF = [0.5] * 3


@dataclass(frozen=True)
class Pipeline:
    """A dataset and its pipeline; the steps that can be taken out by the names of their rows."""

    name: str
    dataset: Callable[..., Any]
    compose: Callable[[list[Any]], Any]
    steps: Callable[[], list[Any]]
    without: tuple[str, ...]
    workers: int = 2
    loop_s: float = 0.004
    count: int = 448

    def loader(self, paths: list[str], without: str = "") -> DataLoader[Any]:
        steps = [step for step in self.steps() if getattr(step, "__name__", type(step).__name__) != without]
        samples = self.dataset(paths, self.compose(steps), self.count, is_decoded=without == DECODING)
        return DataLoader(samples, BATCH, num_workers=self.workers)

    def train(self, loader: Any) -> float:
        """Return the seconds per step of a loop, from its second batch on."""
        for step, _batch in enumerate(loader):
            if not step:
                began = time.perf_counter()
            time.sleep(self.loop_s)
        return (time.perf_counter() - began) / step


PIPELINES = [
    Pipeline(
        "torchvision v1, training",
        Photos,
        V1.Compose,
        lambda: [
            V1.RandomResizedCrop(224),
            V1.RandomHorizontalFlip(),
            V1.ColorJitter(0.4, 0.4, 0.4),
            V1.ToTensor(),
            V1.Normalize(HALF, HALF),
            V1.RandomErasing(p=1.0, value="random"),
        ],
        ("RandomHorizontalFlip", "ColorJitter", "Normalize", "RandomErasing", DECODING),
    ),
    Pipeline(
        "torchvision v1, validation",
        Photos,
        V1.Compose,
        lambda: [V1.Resize(256), V1.CenterCrop(224), V1.ToTensor(), V1.Normalize(HALF, HALF)],
        ("Normalize", DECODING),
        workers=0,
        loop_s=0.02,
    ),
    Pipeline(
        "torchvision v2, tensors",
        Photos,
        V2.Compose,
        lambda: [
            V2.PILToTensor(),
            V2.RandomResizedCrop(224, antialias=True),
            V2.RandomHorizontalFlip(),
            V2.ToDtype(torch.float32, scale=True),
            V2.GaussianBlur(5),
            V2.Normalize(HALF, HALF),
        ],
        ("GaussianBlur", "Normalize", "RandomHorizontalFlip", DECODING),
    ),
    Pipeline(
        "torchvision v2, photographs",
        Photos,
        V2.Compose,
        lambda: [
            V2.Resize((224, 224)),
            V2.RandomRotation(30),
            V2.TrivialAugmentWide(),
            V2.ToImage(),
            V2.ToDtype(torch.float32, scale=True),
        ],
        ("RandomRotation", "TrivialAugmentWide", DECODING),
        workers=1,
        loop_s=0.05,
    ),
    Pipeline(
        "Albumentations",
        OpenCvPhotos,
        albumentations.Compose,
        lambda: [
            albumentations.RandomResizedCrop((224, 224)),
            albumentations.HorizontalFlip(),
            albumentations.HueSaturationValue(p=1.0),
            albumentations.CoarseDropout(p=1.0),
            albumentations.Normalize(),
        ],
        ("HorizontalFlip", "HueSaturationValue", "CoarseDropout", "Normalize", DECODING),
    ),
    Pipeline(
        "Albumentations, choices",
        OpenCvPhotos,
        albumentations.Compose,
        lambda: [
            albumentations.Resize(256, 256),
            albumentations.OneOf(
                [albumentations.MedianBlur(7, p=1.0), albumentations.GaussNoise(p=1.0)], p=1.0
            ),
            albumentations.CLAHE(p=1.0),
            albumentations.ElasticTransform(p=1.0),
            albumentations.RandomCrop(224, 224),
        ],
        ("CLAHE", "ElasticTransform", DECODING),
        workers=1,
        loop_s=0.03,
    ),
    Pipeline(
        "MONAI, dictionaries",
        Dictionaries,
        monai.Compose,
        lambda: [
            monai.LoadImaged("image", reader="PILReader", converter=lambda photo: photo.convert("RGB")),
            monai.EnsureChannelFirstd("image"),
            monai.Resized("image", (128, 128)),
            monai.RandGaussianNoised("image", prob=1.0),
            monai.RandGaussianSmoothd("image", prob=1.0),
        ],
        ("RandGaussianNoised", "RandGaussianSmoothd"),
        count=256,
    ),
    Pipeline(
        "MONAI, arrays of simplejpeg",
        SimpleJpegPhotos,
        monai.Compose,
        lambda: [
            monai.Transpose((2, 0, 1)),
            monai.ScaleIntensity(),
            monai.Resize((128, 128)),
            monai.RandAffine(prob=1.0, rotate_range=0.5),
            monai.RandGaussianNoise(prob=1.0),
        ],
        ("ScaleIntensity", "RandAffine", "RandGaussianNoise", DECODING),
        workers=0,
        loop_s=0.03,
        count=256,
    ),
    Pipeline(
        "functions of one's own",
        Photos,
        Listed,
        lambda: [shrink, sharpen, to_array, noise, to_tensor],
        ("sharpen", "noise", DECODING),
        workers=1,
    ),
    Pipeline(
        "functions of one's own, imageio",
        ImageioPhotos,
        Listed,
        lambda: [denoise, fit, to_array, noise, to_tensor],
        ("denoise", "noise", DECODING),
        loop_s=0.06,
    ),
]


class Uneven(Dataset[Any]):
    """Samples of which one in fifty takes a hundred times as long."""

    def __len__(self) -> int:
        return 960

    def __getitem__(self, index: int) -> int:
        time.sleep(0.3 if index % 50 == 25 else 0.003)
        return index


def any_order() -> tuple[float, float]:
    """Return the predicted and the measured gain if the loop takes batches in any order."""

    def train(loader: Any) -> float:
        began = time.perf_counter()
        for _ in loader:
            time.sleep(0.03)
        return time.perf_counter() - began

    profiled = storebench.profile(DataLoader(Uneven(), 8, num_workers=2), show=False)
    seconds = train(profiled)
    return profiled.report().reordered, seconds / train(
        DataLoader(Uneven(), 8, num_workers=2, in_order=False)
    )


class Stopwatch:
    """Times functions, each without those inside of it."""

    def __init__(self) -> None:
        self.times: dict[str, float] = collections.defaultdict(float)
        self._inside = [0.0]

    def timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
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

        return call

    def wrap(self, step: Any) -> Any:
        """Return a function timed, or an object whose class is."""
        if hasattr(step, "__name__"):
            return self.timed(step.__name__, step)
        kind, inner = type(step), getattr(step, "transforms", [])
        for part in inner if isinstance(inner, list) else []:
            self.wrap(part)
        if not hasattr(kind.__call__, "__wrapped__") or kind.__call__.__wrapped__.__name__ != kind.__name__:
            kind.__call__ = self.timed(kind.__name__, kind.__call__)
        return step


def directly(number: int, paths: list[str], count: int) -> dict[str, float]:
    """Return the share of each operation in the dataset's time, by timers; it changes the libraries."""
    watch, pipeline = Stopwatch(), PIPELINES[number]
    steps = [watch.wrap(step) for step in pipeline.steps()]
    for owner, name, row in (
        (Image, "open", "open"),
        (ImageFile.ImageFile, "load", "decode (Pillow)"),
        (cv2, "imread", "decode (OpenCV)"),
        (simplejpeg, "decode_jpeg", "decode (simplejpeg)"),
        (imageio, "imread", "decode (imageio)"),
        (Path, "read_bytes", "open"),
    ):
        setattr(owner, name, watch.timed(row, getattr(owner, name)))
    samples = pipeline.dataset(paths, pipeline.compose(steps), count, is_decoded=False)
    for index in range(20):
        samples[index]
    watch.times.clear()
    began = time.perf_counter()
    for index in range(count):
        samples[index]
    whole_s = time.perf_counter() - began
    return joined({name: seconds / whole_s for name, seconds in watch.times.items()})


def joined(shares: dict[str, float]) -> dict[str, float]:
    """Return shares of which all decoding is one: imageio decodes with Pillow."""
    decoding = {name: share for name, share in shares.items() if name.startswith(DECODING)}
    return {DECODING: sum(decoding.values())} | {
        name: shares[name] for name in shares.keys() - decoding.keys()
    }


def in_child(function: Callable[..., Any], *args: Any) -> Any:
    """Return what a function returns in a process of its own."""
    with multiprocessing.get_context("fork").Pool(1) as pool:
        return pool.apply(function, args)


def shares_of(report: ProfileReport) -> dict[str, float]:
    """Return the share of each operation in the dataset's time."""
    rows = {row.name: row.share for row in report.operations if row.name != "collate"}
    collate = sum(row.share for row in report.operations if row.name == "collate")
    return joined({name: share / (1.0 - collate) for name, share in rows.items()})


def gain_without(report: ProfileReport, name: str) -> float:
    """Return the predicted gain without an operation."""
    gains = {row.name: row.gain for row in report.operations} | {DECODING: report.decoding or 1.0}
    return gains.get(name, 1.0)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="of photographs")
    parser.add_argument("--only", default="", help="part of the names of pipelines")
    parser.add_argument("--count", type=int, help="samples of each loop [default: that of the pipeline]")
    parser.add_argument("--show", action="store_true", help="show each verdict")
    options = parser.parse_args()
    torch.set_num_threads(1)
    cv2.setNumThreads(1)
    warnings.filterwarnings("ignore")
    paths = sorted(map(str, options.folder.rglob("*.[jJ][pP]*[gG]")))[:200]
    wrong = near = count = 0
    for number, listed in enumerate(PIPELINES):
        if options.only not in listed.name:
            continue
        pipeline = dataclasses.replace(listed, count=options.count or listed.count)
        direct = in_child(directly, number, paths, pipeline.count // 2)
        profiled = storebench.profile(pipeline.loader(paths), show=False)
        limited_s = pipeline.train(profiled)
        report = profiled.report()
        if options.show:
            print(report)
        seen = shares_of(report)
        worst = 0.0
        print(f"\n{pipeline.name}\n  {'operation':26} {'profile':>8} {'timer':>8} {'points':>7}")
        for name in sorted(direct.keys() | seen.keys(), key=lambda name: -direct.get(name, 0.0)):
            shares = seen.get(name, 0.0), direct.get(name, 0.0)
            if max(shares) < 0.01 or (name not in direct and name not in pipeline.without):
                continue
            points = shares[0] - shares[1]
            worst = max(worst, abs(points))
            print(f"  {name:26} {shares[0]:8.1%} {shares[1]:8.1%} {100 * points:+7.1f}")
        wrong += worst > MOST_POINTS
        print(f"  {'without':26} {'predicted':>9} {'measured':>9} {'error':>6}")
        for name in pipeline.without:
            predicted = gain_without(report, name)
            half = dataclasses.replace(pipeline, count=pipeline.count // 2)
            measured = limited_s / half.train(half.loader(paths, without=name))
            error = predicted / measured - 1.0
            count += 1
            near += abs(error) <= MOST_ERROR
            print(f"  {name:26} {predicted:9.2f} {measured:9.2f} {error:+6.0%}", flush=True)
    if not options.only:
        print("\nany order, one sample in fifty slow: predicted {:.2f}, measured {:.2f}".format(*any_order()))
    print(
        f"\nshares beyond {MOST_POINTS:.0%}: {wrong} pipelines; gain within {MOST_ERROR:.0%} for {near} of {count}"
    )
    sys.exit(int(wrong > 0 or near < GAIN_GOAL * count))


if __name__ == "__main__":
    main()
