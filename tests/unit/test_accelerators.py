"""Named accelerators: each has a source, and a wrong name is refused with what can be given instead."""

import json
import subprocess
from collections.abc import Callable
from urllib.parse import urlparse

import pytest

from storebench.accelerators import ACCELERATORS, find_accelerator
from storebench.errors import UnknownNameError, UsageError

Cli = Callable[..., subprocess.CompletedProcess[str]]


def test_every_accelerator_names_the_source_of_its_rate() -> None:
    for accelerator in ACCELERATORS:
        assert accelerator.source is not None
        assert urlparse(accelerator.source.url).scheme == "https", accelerator.key
        assert 2010 < int(accelerator.source.date[:4]) < 2030, accelerator.key
        assert accelerator.source.date in str(accelerator.source), accelerator.key
        assert accelerator.images_per_s > 0, accelerator.key
    assert len({accelerator.key for accelerator in ACCELERATORS}) == len(ACCELERATORS)


def test_a_name_alone_means_the_first_network_of_its_device() -> None:
    assert find_accelerator("a100").key == "a100:resnet50"
    assert find_accelerator(" A100:ResNet50-TF32 ").images_per_s == 938


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("NVIDIA A100-SXM4-80GB", "a100:resnet50"),
        ("A100 80 GB, ResNet-50", "a100:resnet50"),
        ("GeForce RTX 4090", "rtx4090:resnet50"),
        ("4090", "rtx4090:resnet50"),
        ("3090:vit_b16", "rtx3090:vit_b16"),
        ("Tesla V100-PCIE-16GB", "v100:resnet50"),
        ("NVIDIA H100 80GB HBM3", "h100:resnet50"),
        ("NVIDIA H100 80GB HBM2e", "h100-pcie:resnet50"),
        ("NVIDIA H100 PCIe", "h100-pcie:resnet50"),
        ("NVIDIA A100-PCIE-40GB:vit_b16", "a100:vit_b16"),
    ],
)
def test_a_device_is_known_by_its_usual_names(text: str, key: str) -> None:
    assert find_accelerator(text).key == key


@pytest.mark.parametrize(
    "text",
    ["NVIDIA A100-SXM4-80GB MIG 1g.10gb", "NVIDIA A10G", "NVIDIA GeForce RTX 4090 Laptop GPU"],
)
def test_a_part_or_a_variant_is_not_taken_for_the_device(text: str) -> None:
    with pytest.raises(UnknownNameError, match="name one of these: k40, k80"):
        find_accelerator(text)
    with pytest.raises(UnknownNameError, match="h100-pcie:resnet50"):
        find_accelerator("h100 pcie:vit_b16")


@pytest.mark.parametrize(
    ("text", "number"), [("a100:0", "0"), ("a100:vit_b16:0", "0"), ("a100:-1", "-1"), ("gpu:0=5", "0")]
)
def test_a_number_behind_the_colon_is_a_count(text: str, number: str) -> None:
    with pytest.raises(UsageError, match=f"no count of accelerators can be {number} here.*NAME:COUNT"):
        find_accelerator(text)


@pytest.mark.parametrize(
    ("text", "title", "rate"),
    [("h100=3000", "h100", 3000), ("My GPU = 12.5", "My GPU", 12.5), ("2470", "an accelerator", 2470)],
)
def test_a_rate_of_ones_own_is_an_accelerator(text: str, title: str, rate: float) -> None:
    found = find_accelerator(text)
    assert (found.title, found.images_per_s, found.origin) == (title, rate, "as given")


@pytest.mark.parametrize(
    "text", ["h100=", "h100=fast", "h100=0", "0", "h100=-3", "h100=inf", "h100=1" + "0" * 400]
)
def test_what_is_no_rate_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"is no rate of an accelerator\. Write NAME=RATE in images/s"):
        find_accelerator(text)
    with pytest.raises(UsageError, match="at most 40 printable characters"):
        find_accelerator("x" * 41 + "=3")
    with pytest.raises(UsageError, match=r"no name before '='\. Write NAME=5, or 5 alone"):
        find_accelerator(" =5")


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        (
            "h200",
            "Give its rate in images/s, h200=RATE, or name one of these: k40, k80, p100, v100, rtx3090, a100, a10, ",
        ),
        ("a100:resnet", "'a100:resnet50'"),
        ("", "NAME=RATE, or name one of these: k40"),
    ],
)
def test_an_unknown_accelerator_is_refused_with_a_way_out(text: str, hint: str) -> None:
    """No other device is suggested: the nearest name to "h200" is that of a slower GPU."""
    with pytest.raises(UnknownNameError) as refused:
        find_accelerator(text)
    assert hint in str(refused.value)


def test_the_command_lists_every_accelerator(cli: Cli) -> None:
    done = cli("accelerators")
    assert done.returncode == 0
    assert all(
        accelerator.key in done.stdout and str(accelerator.source) in done.stdout
        for accelerator in ACCELERATORS
    )
    listed = json.loads(cli("accelerators", "--json").stdout)
    assert [row["key"] for row in listed] == [accelerator.key for accelerator in ACCELERATORS]
    assert listed[0]["source"]["url"].startswith("https://")
