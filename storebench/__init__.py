"""Measure how to store image training data.

Notebooks and other programs may rely on the names below. They are imported when
they are first used, so ``import storebench`` stays fast.
"""

from storebench._version import __version__

TYPE_CHECKING = False  # type checkers know the name; importing typing would delay the program's first line

if TYPE_CHECKING:
    from typing import Any

    from storebench.formats.registry import open_reader
    from storebench.loading.torch_dataset import StoreDataset
    from storebench.report.analysis import compare, load_results, load_steps
    from storebench.report.plots.amplification import plot_amplification
    from storebench.report.plots.cold_curve import plot_cold_curve
    from storebench.report.plots.container_codec import plot_container_codec
    from storebench.report.plots.loss import plot_loss
    from storebench.report.plots.rank_steps import plot_rank_steps
    from storebench.report.plots.ranks import plot_ranks
    from storebench.report.plots.roofline import plot_roofline
    from storebench.report.plots.size import plot_size
    from storebench.report.plots.steady_state import plot_steady_state
    from storebench.report.plots.step_time import plot_step_time
    from storebench.report.plots.throughput import plot_throughput
    from storebench.report.plots.wait_distribution import plot_wait_distribution
    from storebench.report.plots.wait_over_epoch import plot_wait_over_epoch
    from storebench.report.plots.workers import plot_workers

__all__ = [
    "StoreDataset",
    "__version__",
    "compare",
    "load_results",
    "load_steps",
    "open_reader",
    "plot_amplification",
    "plot_cold_curve",
    "plot_container_codec",
    "plot_loss",
    "plot_rank_steps",
    "plot_ranks",
    "plot_roofline",
    "plot_size",
    "plot_steady_state",
    "plot_step_time",
    "plot_throughput",
    "plot_wait_distribution",
    "plot_wait_over_epoch",
    "plot_workers",
]

_HOMES = {
    "StoreDataset": "storebench.loading.torch_dataset",
    "compare": "storebench.report.analysis",
    "load_results": "storebench.report.analysis",
    "load_steps": "storebench.report.analysis",
    "open_reader": "storebench.formats.registry",
    "plot_amplification": "storebench.report.plots.amplification",
    "plot_cold_curve": "storebench.report.plots.cold_curve",
    "plot_container_codec": "storebench.report.plots.container_codec",
    "plot_loss": "storebench.report.plots.loss",
    "plot_rank_steps": "storebench.report.plots.rank_steps",
    "plot_ranks": "storebench.report.plots.ranks",
    "plot_roofline": "storebench.report.plots.roofline",
    "plot_size": "storebench.report.plots.size",
    "plot_steady_state": "storebench.report.plots.steady_state",
    "plot_step_time": "storebench.report.plots.step_time",
    "plot_throughput": "storebench.report.plots.throughput",
    "plot_wait_distribution": "storebench.report.plots.wait_distribution",
    "plot_wait_over_epoch": "storebench.report.plots.wait_over_epoch",
    "plot_workers": "storebench.report.plots.workers",
}


def __getattr__(name: str) -> "Any":
    import importlib

    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
