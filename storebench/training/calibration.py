"""How fast torch computes here: what the training of two machines can be related by."""

import math
import statistics
import time

import torch

SIDE = 1024
"""Rows and columns of the float32 matrices of the yardstick: 2.1 billion operations, 4 MiB each."""


def matrix_products_per_s(device: str = "cpu", *, repeats: int = 5) -> float:
    """Return how many products of two float32 [1024, 1024] matrices torch computes a second, with its threads as set.

    The median of `repeats` products that follow one untimed one; on a GPU each is waited for.
    """
    left = torch.full((SIDE, SIDE), 1 / math.sqrt(SIDE), device=device)
    return 1 / statistics.median([_seconds(left) for _ in range(repeats + 1)][1:])


def _seconds(left: torch.Tensor) -> float:
    started = time.perf_counter()
    product = left @ left
    if product.is_cuda:
        torch.cuda.synchronize()
    return time.perf_counter() - started
