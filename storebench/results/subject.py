"""The store, the code and the machine of a measurement."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class StoreFacts:
    """Description of the store, from its manifest.

    Attributes
    ----------
    skipped_files
        Number of unreadable image files that were left out of its samples, as asked.
    """

    count: int
    image_shape: tuple[int, int, int]
    payload_bytes: int
    file_bytes: int
    bytes_on_disk: int
    build_s: float
    samples_digest: str
    lossless: bool
    origin: str
    source: str
    derived_frac: float
    provenance_note: str = ""
    skipped_files: int = 0


@dataclass(frozen=True, kw_only=True)
class CodeFacts:
    """The code that a cell ran.

    Attributes
    ----------
    digest
        Digest of the installed package's Python files.
    commit
        Git commit of the checkout of the package, with "+changes" if the tree differs; "" outside a checkout.
    plugin
        Name, commit and digest of the package that registered the backend, "NAME COMMIT DIGEST" with "-" for a
        missing commit; "" for a built-in backend.
    """

    digest: str
    commit: str = ""
    plugin: str = ""


@dataclass(frozen=True, kw_only=True)
class Environment:
    """The machine and the libraries of a measurement.

    Attributes
    ----------
    key
        Digest of `match`: durations with equal keys can be compared.
    match
        Facts that must be equal for two results to be compared.
    notes
        Facts that need not be equal.
    """

    key: str
    match: dict[str, Any]
    notes: dict[str, Any]
