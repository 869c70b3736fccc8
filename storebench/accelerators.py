"""Named accelerators: published rates at which one device trains an image network, each with its source."""

import re
from dataclasses import dataclass

from storebench.errors import UnknownNameError, UsageError


@dataclass(frozen=True, kw_only=True)
class Publication:
    title: str
    date: str
    """The year, or year and month, of the figures: "2014", "2023-02"."""
    url: str

    def __str__(self) -> str:
        return f"{self.title} ({self.date})"


@dataclass(frozen=True)
class Accelerator:
    """One device that trains one network."""

    name: str
    model: str
    device: str
    network: str
    precision: str
    images_per_s: float
    source: Publication | None

    @property
    def key(self) -> str:
        """Its full name: "a100:resnet50"."""
        return f"{self.name}:{self.model}" if self.model else self.name

    @property
    def title(self) -> str:
        """Device and network as text: "A100, ResNet-50"."""
        return f"{self.device}, {self.network}" if self.network else self.device

    @property
    def origin(self) -> str:
        """Where its rate comes from, as text: "mixed precision; TITLE (2021)" or "as given"."""
        return f"{self.precision}; {self.source}" if self.source else "as given"


_CAFFE = Publication(
    title="Caffe, Performance and Hardware Configuration",
    date="2014",
    url="https://github.com/BVLC/caffe/blob/master/docs/performance_hardware.md",
)
_TENSORFLOW = Publication(
    title="TensorFlow, Benchmarks", date="2017", url="https://www.tensorflow.org/performance/benchmarks"
)
_NVIDIA = Publication(
    title="NVIDIA DeepLearningExamples, ResNet50 v1.5 for PyTorch",
    date="2021",
    url="https://github.com/NVIDIA/DeepLearningExamples/blob/master/"
    "PyTorch/Classification/ConvNets/resnet50v1.5/README.md",
)
_TIMM = Publication(
    title="timm, training benchmark of an RTX 3090",
    date="2022",
    url="https://github.com/huggingface/pytorch-image-models/blob/main/results/"
    "benchmark-train-amp-nhwc-pt112-cu113-rtx3090.csv",
)

_VIT = Publication(
    title="NVIDIA JAX-Toolbox, Vision Transformer",
    date="2023-07",
    url="https://github.com/NVIDIA/JAX-Toolbox/blob/main/rosetta/rosetta/projects/vit/README.md",
)
_MLPERF = Publication(
    title="MLCommons, MLPerf Training v4.0, log of Dell R760xa with four L40S",
    date="2024-04",
    url="https://github.com/mlcommons/training_results_v4.0/blob/main/Dell/results/R760xax4L40S/resnet/result_0.txt",
)


def _lambda(date: str) -> Publication:
    return Publication(
        title="Lambda, PyTorch training throughput of one GPU",
        date=date,
        url="https://github.com/lambdal/deeplearning-benchmark/blob/master/pytorch/pytorch-train-throughput-fp16.csv",
    )


# Every profile, the oldest device first; of one device, the one that its name alone means first.
ACCELERATORS: tuple[Accelerator, ...] = (
    Accelerator("k40", "caffenet", "K40", "CaffeNet", "FP32, cuDNN", 267.0, _CAFFE),
    Accelerator("k40", "caffenet-plain", "K40", "CaffeNet", "FP32, without cuDNN", 193.0, _CAFFE),
    Accelerator("k80", "resnet50", "K80 (one of its two GPUs)", "ResNet-50", "FP32", 51.9, _TENSORFLOW),
    Accelerator("k80", "alexnet", "K80 (one of its two GPUs)", "AlexNet", "FP32", 656.0, _TENSORFLOW),
    Accelerator("p100", "resnet50", "P100", "ResNet-50", "FP32", 219.0, _TENSORFLOW),
    Accelerator("p100", "alexnet", "P100", "AlexNet", "FP32", 2987.0, _TENSORFLOW),
    Accelerator("v100", "resnet50", "V100", "ResNet-50", "mixed precision", 1200.0, _NVIDIA),
    Accelerator("v100", "resnet50-fp32", "V100", "ResNet-50", "FP32", 367.0, _NVIDIA),
    Accelerator("rtx3090", "resnet50", "RTX 3090", "ResNet-50", "mixed precision", 1218.0, _TIMM),
    Accelerator("rtx3090", "resnet18", "RTX 3090", "ResNet-18", "mixed precision", 3482.0, _TIMM),
    Accelerator("rtx3090", "vit_b16", "RTX 3090", "ViT-B/16", "mixed precision", 393.0, _TIMM),
    Accelerator("a100", "resnet50", "A100 80 GB", "ResNet-50", "mixed precision", 2470.0, _NVIDIA),
    Accelerator("a100", "resnet50-tf32", "A100 80 GB", "ResNet-50", "TF32", 938.0, _NVIDIA),
    Accelerator("a100", "vit_b16", "A100 80 GB", "ViT-B/16", "bfloat16, one of eight", 900.0, _VIT),
    Accelerator("a10", "resnet50", "A10", "ResNet-50", "mixed precision", 638.0, _lambda("2023-02")),
    Accelerator(
        "rtx4090", "resnet50", "RTX 4090", "ResNet-50", "mixed precision", 1301.0, _lambda("2022-10")
    ),
    Accelerator("h100", "resnet50", "H100 SXM", "ResNet-50", "mixed precision", 2787.0, _lambda("2024-04")),
    Accelerator("h100", "vit_b16", "H100 SXM", "ViT-B/16", "bfloat16, one of eight", 1459.0, _VIT),
    Accelerator(
        "h100-pcie", "resnet50", "H100 PCIe", "ResNet-50", "mixed precision", 1866.0, _lambda("2022-11")
    ),
    Accelerator("l40s", "resnet50", "L40S", "ResNet-50", "mixed precision, one of four", 2184.0, _MLPERF),
)

_NUMBER = re.compile(r"[0-9]+(\.[0-9]+)?")
_MOST_RATE = 1e9
_LONGEST = 40
_COUNT = re.compile(r"[^=]+:(-?[0-9.]+)(=|$)")
# What may stand in a device's name, or be missing: makers, memory, sockets, spaces and hyphens.
_UNSAID = re.compile(r"nvidia|amd|geforce|tesla|instinct|sxm[0-9]?|[0-9]+ ?gb|hbm3|[^a-z0-9]")


def find_accelerator(text: str) -> Accelerator:
    """Return the profile that ``NAME[:MODEL]`` means, or one of a rate that is given: ``NAME=RATE`` or ``RATE``.

    A device is known by its usual names, such as "A100 80GB" or "4090".
    """
    label, given, rate = text.strip().rpartition("=")
    if count := _COUNT.match(text.strip()):
        hint = "plan --accelerator takes NAME:COUNT, 1 or more; other commands take the name alone."
        raise UsageError(f"no count of accelerators can be {count[1]} here", hint=hint)
    name, _, model = text.strip().lower().partition(":")
    # The card of the H100 is a device of its own; cards of others differ little.
    of_device = _called(_core(name)) or _called(_core(name).removesuffix("pcie"))
    if given or (_NUMBER.fullmatch(rate) and not of_device):
        return _of_rate(label.strip(), rate.strip(), text)
    if not of_device:
        names = ", ".join(dict.fromkeys(profile.name for profile in ACCELERATORS))
        hint = f"Give its rate in images/s, {name or 'NAME'}=RATE, or name one of these: {names}."
        raise UnknownNameError(f"no accelerator is called {name!r}", hint=hint)
    if not model:
        return of_device[0]
    accelerator = next((profile for profile in of_device if profile.model == model), None)
    if accelerator is None:
        raise UnknownNameError.of("accelerator", f"{name}:{model}", [profile.key for profile in of_device])
    return accelerator


def _core(name: str) -> str:
    """Return the letters and digits of a device's name that tell it from others."""
    return _UNSAID.sub("", name.lower().replace("hbm2e", "pcie"))


def _called(core: str) -> list[Accelerator]:
    return [profile for profile in ACCELERATORS if core in _names(profile)]


def _names(profile: Accelerator) -> set[str]:
    names = {_core(text) for text in (profile.name, profile.device, profile.title)}
    return names | {name.removeprefix("rtx") for name in names}


def _of_rate(label: str, rate: str, text: str) -> Accelerator:
    images_per_s = float(rate) if _NUMBER.fullmatch(rate) else 0.0
    if not 0 < images_per_s <= _MOST_RATE:
        raise UsageError(
            f"{rate!r} is no rate of an accelerator", hint="Write NAME=RATE in images/s, such as h200=3000."
        )
    if not label and "=" in text:
        raise UsageError("there is no name before '='", hint=f"Write NAME={rate}, or {rate} alone.")
    if len(label) > _LONGEST or not label.isprintable():
        raise UsageError(
            f"an accelerator's name has at most {_LONGEST} printable characters", hint="Shorten the name."
        )
    device = label or "an accelerator"
    return Accelerator(device, "", device, "", "", images_per_s, None)
