"""Datasets: sequences of (uint8 image, label), read from the files as they are published."""

from storebench.datasets.base import Dataset, DatasetInfo, DatasetSpec, Image, Origin, Provenance
from storebench.datasets.catalog import DATA_ENV, DATASETS, data_root, open_dataset

__all__ = [
    "DATASETS",
    "DATA_ENV",
    "Dataset",
    "DatasetInfo",
    "DatasetSpec",
    "Image",
    "Origin",
    "Provenance",
    "data_root",
    "open_dataset",
]
