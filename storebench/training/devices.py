"""Whether the devices that cells ask for are there."""

import warnings
from collections.abc import Iterable

import torch

from storebench.errors import UsageError


def require_devices(devices: Iterable[str], *, ranks: int = 1) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of a driver that it cannot use; the error says so
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    for device in sorted(set(devices) - {"cpu"}):
        number = int(device.partition(":")[2] or 0)
        if not count:
            raise UsageError("there is no CUDA device here", where=device, hint="Use the device cpu.")
        if number >= count:
            raise UsageError(
                "there is no such device here", where=device, hint=f"Use cuda:0 to cuda:{count - 1}."
            )
    if ranks > max(1, count):
        raise UsageError(
            f"{ranks} ranks need as many GPUs, and this machine has {count}",
            where="cuda",
            hint=f"Ask for {count} ranks at most, or use the device cpu.",
        )
