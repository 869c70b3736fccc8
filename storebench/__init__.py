"""Measure how to store image training data.

Notebooks and other programs may rely on the names below. They are imported when
they are first used, so ``import storebench`` stays fast.
"""

from storebench._version import __version__

TYPE_CHECKING = False  # type checkers know the name; importing typing would delay the program's first line

if TYPE_CHECKING:
    from typing import Any

    from storebench.analysis.runs import compare, load_results, load_steps
    from storebench.auditing.audit import audit
    from storebench.formats.registry import open_reader
    from storebench.loading.torch_dataset import StoreDataset
    from storebench.loading.torch_loader import Loader
    from storebench.profiling.profiler import profile
    from storebench.report.plots.codecs import plot_codecs
    from storebench.report.plots.roofline_plot import plot_roofline
    from storebench.report.plots.scaling import plot_ranks, plot_workers
    from storebench.report.plots.step_time import plot_rank_steps, plot_step_time
    from storebench.report.plots.throughput import plot_throughput
    from storebench.report.plots.waits import plot_loss, plot_wait_distribution, plot_wait_over_epoch

__all__ = [
    "Loader",
    "StoreDataset",
    "__version__",
    "audit",
    "compare",
    "load_results",
    "load_steps",
    "open_reader",
    "plot_codecs",
    "plot_loss",
    "plot_rank_steps",
    "plot_ranks",
    "plot_roofline",
    "plot_step_time",
    "plot_throughput",
    "plot_wait_distribution",
    "plot_wait_over_epoch",
    "plot_workers",
    "profile",
]

_HOMES = {
    "Loader": "storebench.loading.torch_loader",
    "StoreDataset": "storebench.loading.torch_dataset",
    "audit": "storebench.auditing.audit",
    "compare": "storebench.analysis.runs",
    "load_results": "storebench.analysis.runs",
    "load_steps": "storebench.analysis.runs",
    "open_reader": "storebench.formats.registry",
    "plot_codecs": "storebench.report.plots.codecs",
    "plot_loss": "storebench.report.plots.waits",
    "plot_rank_steps": "storebench.report.plots.step_time",
    "plot_ranks": "storebench.report.plots.scaling",
    "plot_roofline": "storebench.report.plots.roofline_plot",
    "plot_step_time": "storebench.report.plots.step_time",
    "plot_throughput": "storebench.report.plots.throughput",
    "plot_wait_distribution": "storebench.report.plots.waits",
    "plot_wait_over_epoch": "storebench.report.plots.waits",
    "plot_workers": "storebench.report.plots.scaling",
    "profile": "storebench.profiling.profiler",
}


def __getattr__(name: str) -> "Any":
    import importlib

    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
