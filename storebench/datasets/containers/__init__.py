"""Datasets that another program has packed into a few files: tar shards, Parquet, Arrow, TFRecord, MDS, LMDB, HDF5."""

from storebench.datasets.containers.dataset import open_container
from storebench.datasets.containers.recognize import is_container

__all__ = ["is_container", "open_container"]
