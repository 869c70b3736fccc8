"""A store's own description: ``manifest.json``, written last, read first."""

import dataclasses
import functools
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from storebench.datasets.base import DatasetInfo
from storebench.datasets.names import SampleNames
from storebench.errors import CorruptDataError, CorruptStoreError, SchemaVersionError
from storebench.record.schema import StoreFacts
from storebench.system.json_text import brief, complaint, parse_json
from storebench.system.reading import read_small_file

SCHEMA_VERSION = 1
MANIFEST_NAME = "manifest.json"
DIGESTS_NAME = "sample_digests.npy"
NAMES_NAME = "sample_names.txt"

# Most bytes of a manifest; it names every class, about 1 MB for the 22,000 of ImageNet-21k.
MOST_BYTES = 256 * 2**20

# Most bytes of a decoded image.
MOST_IMAGE_BYTES = 1 << 31

_MOST_BYTES = 1 << 62

# The advice for a damaged store.
CONVERT_AGAIN = "Convert the dataset again, with --force."


@dataclass(frozen=True, kw_only=True)
class StoreSpec:
    """The target of a conversion: dataset, format and codec."""

    dataset: DatasetInfo
    format: str
    codec: str


@dataclass(frozen=True, kw_only=True)
class Manifest(StoreSpec):
    schema_version: int = SCHEMA_VERSION
    count: int
    payload_bytes: int
    file_bytes: int
    bytes_on_disk: int
    samples_digest: str
    lossless: bool
    psnr_db: float | None = None
    build_s: float
    created_utc: str
    storebench_version: str

    def write(self, folder: Path) -> None:
        text = json.dumps(dataclasses.asdict(self), indent=2, sort_keys=True)
        (folder / MANIFEST_NAME).write_text(text + "\n", encoding="utf-8")

    @classmethod
    def read(cls, folder: Path) -> "Manifest":
        """Read the manifest of the store in `folder`."""
        path = folder / MANIFEST_NAME
        try:
            raw = parse_json(read_small_file(path, most_bytes=MOST_BYTES), path)
        except (FileNotFoundError, NotADirectoryError):
            raise CorruptStoreError(
                "not a store: no manifest.json", where=folder, hint="Make one with 'storebench convert'."
            ) from None
        except (CorruptDataError, OSError) as error:
            reason = error.what if isinstance(error, CorruptDataError) else error
            raise CorruptStoreError(
                f"unreadable manifest ({reason})", where=path, hint=CONVERT_AGAIN
            ) from error
        return cls._from_json(raw, path)

    @classmethod
    def _from_json(cls, raw: Any, path: Path) -> "Manifest":
        if not isinstance(raw, dict) or "schema_version" not in raw:
            raise CorruptStoreError("not a storebench manifest", where=path, hint=CONVERT_AGAIN)
        if raw["schema_version"] != SCHEMA_VERSION:
            raise SchemaVersionError(
                f"the store has schema version {brief(raw['schema_version'])}, this storebench reads {SCHEMA_VERSION}",
                where=path,
                hint=CONVERT_AGAIN,
            )
        try:
            return _checked(raw)
        except ValueError as error:
            raise CorruptStoreError(
                f"a manifest with wrong fields ({error})", where=path, hint=CONVERT_AGAIN
            ) from None


def read_names(store: Path, manifest: Manifest) -> SampleNames:
    """Return the names of the samples of a store."""
    path = store / NAMES_NAME
    try:
        names = SampleNames(path.read_bytes())
    except FileNotFoundError:
        what = "the store has no names of its samples: an earlier storebench wrote it"
        raise CorruptStoreError(what, where=store, hint=CONVERT_AGAIN) from None
    except OSError as error:
        raise CorruptStoreError(f"unreadable names ({error})", where=path, hint=CONVERT_AGAIN) from error
    if len(names) != manifest.count:
        what = f"{len(names):,} names for {manifest.count:,} samples"
        raise CorruptStoreError(what, where=path, hint=CONVERT_AGAIN)
    return names


def store_facts(manifest: Manifest) -> StoreFacts:
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
        psnr_db=manifest.psnr_db,
        origin=provenance.origin.value,
        source=provenance.source,
        derived_frac=provenance.derived_frac,
        provenance_note=provenance.note,
        skipped_files=provenance.skipped_files,
    )


@functools.cache
def _adapter() -> Any:
    # pydantic costs a quarter of a second to import; --help must not pay it.
    from pydantic import TypeAdapter

    return TypeAdapter(Manifest)


def _checked(raw: dict[str, Any]) -> Manifest:
    """Return the manifest; raise `ValueError` naming the field if one is missing or impossible."""
    import pydantic

    try:
        manifest: Manifest = _adapter().validate_python(raw)
    except pydantic.ValidationError as error:
        raise ValueError(complaint(error)) from None
    dataset = manifest.dataset
    image_bytes = math.prod(dataset.image_shape)
    if min(dataset.image_shape) < 1 or image_bytes > MOST_IMAGE_BYTES:
        raise ValueError(f"dataset.image_shape: {brief(dataset.image_shape)} is not the shape of an image")
    parts = {"": manifest, "dataset.": dataset, "dataset.provenance.": dataset.provenance}
    for prefix, part in parts.items():
        for name, value in vars(part).items():
            most = _MOST_BYTES // image_bytes if name == "count" else _MOST_BYTES
            if isinstance(value, int | float) and not 0 <= value <= most:
                raise ValueError(f"{prefix}{name}: {brief(value)} is impossible")
    return manifest
