"""The speed of torch on this machine, a yardstick that relates the training of two machines."""

import math
import statistics
import time

import torch

SIDE = 1024
"""Rows and columns of the yardstick's float32 matrices: 2.1 billion operations, 4 MiB each."""


def matrix_products_per_s(device: str = "cpu", *, repeats: int = 5) -> float:
    """Return the number of products of two float32 [1024, 1024] matrices per second, with torch's current threads."""
    left = torch.full((SIDE, SIDE), 1 / math.sqrt(SIDE), device=device)
    return 1 / statistics.median([_seconds(left) for _ in range(repeats + 1)][1:])


def _seconds(left: torch.Tensor) -> float:
    started = time.perf_counter()
    product = left @ left
    if product.is_cuda:
        torch.cuda.synchronize()
    return time.perf_counter() - started
