"""ImageNet (ILSVRC2012): class folders, or the published archives, which are read without unpacking."""

from pathlib import Path

import numpy as np

from storebench.datasets import images
from storebench.datasets.base import Dataset, DatasetInfo, Origin, Provenance
from storebench.datasets.containers.base import ByteSpans, Classes, NamedFields
from storebench.datasets.containers.dataset import ContainerImages, scanned
from storebench.datasets.containers.tar import TarShards
from storebench.datasets.image_folder import TEST_FOLDERS, has_class_folders, is_left_out, open_folder
from storebench.datasets.listing import Listings
from storebench.datasets.names import SampleNames
from storebench.datasets.sources import Member, members, open_source
from storebench.errors import CorruptDataError
from storebench.plain_text import text_of_name
from storebench.settings.words import Split

TRAIN_TAR = "ILSVRC2012_img_train.tar"
NAME = "imagenet"


def find(root: Path) -> Path | None:
    """Return the folder below the data folder `root` that holds any part of ImageNet, or None."""
    folder = root / "imagenet"
    by_class = any(has_class_folders(folder / split) for split in ("train", *TEST_FOLDERS))
    here = (place for place in (folder, root) if (place / TRAIN_TAR).is_file())
    return folder if by_class else next(here, None)


def open_imagenet(
    folder: Path, split: Split, image_size: int | None = None, listings: Listings | None = None
) -> Dataset:
    """Open a split of ImageNet; "test" is its validation split."""
    path = folder / TRAIN_TAR
    if split == Split.TEST or not path.is_file() or has_class_folders(folder / "train"):
        return open_folder(folder, split, image_size, listings, name=NAME)
    archive = TrainArchive("ImageNet's archive", [path.absolute()], NamedFields())
    container = scanned(archive, listings)
    info = DatasetInfo(
        name=NAME,
        split=Split.TRAIN,
        count=len(container.classes.labels),
        image_shape=container.shape,
        class_names=container.classes.names,
        provenance=Provenance(origin=Origin.REAL, source=path.name),
        fingerprint="",
    )
    return ContainerImages(info, container, image_size)


class TrainArchive(TarShards):
    """The published archive, a tar of one tar per class, which is read without unpacking."""

    streams = False

    def scan(self) -> None:
        self.spans, self.keys = ByteSpans(self.files), SampleNames()
        by_class = _train_members(self.files[0])
        names = tuple(sorted(by_class))
        for name in names:
            for member in by_class[name]:
                self.spans.append(0, member.offset, member.size)
                self.keys.append(f"{name}/{member.name}")
        counts = [len(by_class[name]) for name in names]
        self.classes = Classes(np.repeat(np.arange(len(names)), counts), names)


def _train_members(path: Path) -> dict[str, list[Member]]:
    classes: dict[str, list[Member]] = {}
    with open_source(path) as stream:
        for inner in members(stream, str(path), suffixes=(".tar",)):
            where = f"{path}:{inner.name}"
            if is_left_out(inner.name):
                continue
            if not inner.name.endswith(".tar"):
                raise CorruptDataError(
                    "is not the tar of a class", where=where, hint="Use the original archive."
                )
            wnid = text_of_name(inner.name.rpartition("/")[2].removesuffix(".tar"))
            end = inner.offset + inner.size
            files = (
                member
                for member in members(stream, where, inner.offset, end, suffixes=images.EXTENSIONS)
                if member.name.lower().endswith(images.EXTENSIONS) and not is_left_out(member.name)
            )
            classes[wnid] = sorted(files, key=lambda member: member.name)
    if not any(classes.values()):
        raise CorruptDataError("holds no images", where=path, hint="Use the original archive.")
    return {wnid: of_class for wnid, of_class in classes.items() if of_class}
