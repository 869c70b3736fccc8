"""What a store says of itself: ``manifest.json``, written last, read first.

Schema versions
---------------
1. The first.
"""

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from storebench.datasets.base import DatasetInfo, Origin, Provenance
from storebench.errors import CorruptDataError, CorruptStoreError, SchemaVersionError
from storebench.reading import read_small_file
from storebench.results import StoreFacts

SCHEMA_VERSION = 1
MANIFEST_NAME = "manifest.json"
DIGESTS_NAME = "sample_digests.npy"

MOST_BYTES = 256 * 2**20
"""What a manifest may have: it names every class, which makes 1 MB for the 22,000 of ImageNet-21k."""


@dataclass(frozen=True, kw_only=True)
class StoreSpec:
    """What is to be written: which dataset, into which format, with which codec."""

    dataset: DatasetInfo
    format: str
    codec: str


@dataclass(frozen=True, kw_only=True)
class Manifest(StoreSpec):
    """What was written.

    Attributes
    ----------
    count
        Samples in the store.
    payload_bytes
        Sum of the payloads' lengths, before the container adds anything.
    file_bytes
        Sum of the apparent sizes of the store's data files.
    bytes_on_disk
        Sum of the blocks that the filesystem allocated for them, in bytes.
    samples_digest
        Digest of all decoded samples and labels (see `storebench.digests`).
    lossless
        False where decoding does not give back the dataset's own pixels (JPEG).
    build_s
        Seconds from the first sample to the data being synced to disk.
    """

    schema_version: int = SCHEMA_VERSION
    count: int
    payload_bytes: int
    file_bytes: int
    bytes_on_disk: int
    samples_digest: str
    lossless: bool
    build_s: float
    created_utc: str
    storebench_version: str

    def write(self, folder: Path) -> None:
        """Write this manifest into a store's folder."""
        text = json.dumps(dataclasses.asdict(self), indent=2, sort_keys=True)
        (folder / MANIFEST_NAME).write_text(text + "\n", encoding="utf-8")

    @classmethod
    def read(cls, folder: Path) -> "Manifest":
        """Read the manifest of the store in `folder`.

        Raises
        ------
        CorruptStoreError
            There is no manifest, or it is not one of ours.
        SchemaVersionError
            Another version of storebench wrote it.
        """
        path = folder / MANIFEST_NAME
        try:
            raw = json.loads(read_small_file(path, most_bytes=MOST_BYTES))
        except FileNotFoundError:
            raise CorruptStoreError(
                "not a store: no manifest.json", where=folder, hint="Make one with 'storebench convert'."
            ) from None
        except CorruptDataError as error:
            raise CorruptStoreError(error.what, where=path, hint="Convert again.") from error
        except (ValueError, OSError) as error:
            raise CorruptStoreError(
                f"unreadable manifest ({error})", where=path, hint="Convert again."
            ) from error
        return cls._from_json(raw, path)

    @classmethod
    def _from_json(cls, raw: Any, path: Path) -> "Manifest":
        if not isinstance(raw, dict) or "schema_version" not in raw:
            raise CorruptStoreError("not a storebench manifest", where=path, hint="Convert again.")
        if raw["schema_version"] != SCHEMA_VERSION:
            raise SchemaVersionError(
                f"the store has schema version {raw['schema_version']}, this storebench reads {SCHEMA_VERSION}",
                where=path,
                hint="Convert the dataset again.",
            )
        try:
            return cls(**{**raw, "dataset": _dataset_info(raw["dataset"])})
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptStoreError(
                f"a manifest with wrong fields ({error})", where=path, hint="Convert again."
            ) from error


def store_facts(manifest: Manifest) -> StoreFacts:
    """Return what a record says of the store."""
    provenance = manifest.dataset.provenance
    return StoreFacts(
        count=manifest.count,
        image_shape=manifest.dataset.image_shape,
        payload_bytes=manifest.payload_bytes,
        file_bytes=manifest.file_bytes,
        bytes_on_disk=manifest.bytes_on_disk,
        build_s=manifest.build_s,
        samples_digest=manifest.samples_digest,
        lossless=manifest.lossless,
        origin=provenance.origin.value,
        source=provenance.source,
        derived_frac=provenance.derived_frac,
        provenance_note=provenance.note,
    )


def _dataset_info(raw: dict[str, Any]) -> DatasetInfo:
    provenance = dict(raw["provenance"])
    provenance["origin"] = Origin(provenance["origin"])
    height, width, channels = raw["image_shape"]
    return DatasetInfo(
        **{
            **raw,
            "image_shape": (int(height), int(width), int(channels)),
            "class_names": tuple(raw["class_names"]),
            "provenance": Provenance(**provenance),
        }
    )
