"""Names and layout of image files in class folders, and their writer."""

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from storebench.codecs import Payload, any_size, get_codec
from storebench.datasets.images import SUFFIXES, suffix_of
from storebench.formats.base import Writer
from storebench.formats.common import save_array, sync_folder
from storebench.manifest import StoreSpec

IMAGES = "images"

LABELS_FILE = "labels.npy"

SUFFIXES_FILE = "suffixes.npy"
"""Number of each sample's file extension in `SUFFIXES`, where samples are image files as they are."""


def class_folders(class_names: Sequence[str]) -> list[str]:
    """Return a folder name for each class: its name with safe characters only, and unique."""
    folders: list[str] = []
    for label, name in enumerate(class_names):
        safe = re.sub(r"[^A-Za-z0-9_.-]", "_", name).lstrip(".") or "_"
        while safe in folders:
            safe += f"-{label}"
        folders.append(safe)
    return folders


class FilesWriter(Writer):
    """Write each payload to a separate file."""

    def __init__(self, folder: Path, spec: StoreSpec) -> None:
        super().__init__(folder, spec)
        self._labels: list[int] = []
        self._suffix = None if any_size(spec.codec) else get_codec(spec.codec).suffix
        self._suffixes: list[int] = []
        self._folders = [folder / IMAGES / name for name in class_folders(spec.dataset.class_names)]
        for path in self._folders:
            path.mkdir(parents=True)

    def append(self, payload: Payload, label: int) -> None:
        """Write one file."""
        suffix = self._suffix or suffix_of(bytes(payload[:12]))
        path = self._folders[label] / f"{len(self._labels):08d}{suffix}"
        with path.open("xb", buffering=0) as file:
            written = file.write(payload)
            while written < len(payload):
                # A disk that fills up first causes a short write; the next write reports the reason.
                written += file.write(memoryview(payload)[written:])
        self._labels.append(label)
        if self._suffix is None:
            self._suffixes.append(SUFFIXES.index(suffix))

    def close(self) -> None:
        """Write the labels and sync all files."""
        save_array(self.folder / LABELS_FILE, np.asarray(self._labels, dtype=np.int64))
        if self._suffix is None:
            save_array(self.folder / SUFFIXES_FILE, np.asarray(self._suffixes, dtype=np.uint8))
        sync_folder(self.folder)
