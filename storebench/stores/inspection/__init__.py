"""Estimate and measure the cost of a random read from any LMDB, LevelDB or HDF5 file."""

from storebench.stores.inspection.file import inspect
from storebench.stores.inspection.findings import Inspection, Reads, SampleSet

__all__ = ["Inspection", "Reads", "SampleSet", "inspect"]
