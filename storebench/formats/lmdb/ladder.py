"""LMDBIO's ladder: options that switch off one of its optimisations each, and the backends that result."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from storebench.formats.options import flag
from storebench.formats.reads.policy import ReadPolicy
from storebench.settings.words import Share


@dataclass(frozen=True, kw_only=True)
class LmdbDirectOptions(ReadPolicy):
    """Options of ``lmdb:direct``: those of explicit reads, and how samples are located."""

    index: bool = flag(
        default=True,
        meaning="take offsets from the page index; off walks the tree for each sample",
    )
    keep_leaf: bool = flag(
        default=False,
        meaning="with index=off: start each walk in the leaf where the last one ended, not at the root",
    )


@dataclass(frozen=True, kw_only=True)
class Rung:
    """One way to read the file."""

    key: str
    label: str  # the rung's name in plots
    below: str | None  # the rung that it is compared with; None for the lowest
    reader: str = "direct"
    options: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    trouble: str = ""  # the problem solved by the optimisation, in words; "" if the rung is no optimisation
    share: Share = Share.NONE  # how the ranks of a job share reading
    called: str = ""  # the optimisation's name in sentences; "" for its key in capital letters

    @property
    def name(self) -> str:
        """The optimisation's name in sentences."""
        return self.called or self.key.upper()

    @property
    def backend(self) -> str:
        """The backend's name, in its canonical spelling."""
        reader = "" if self.reader == "get" else f":{self.reader}"
        options = ",".join(f"{name}={value}" for name, value in sorted(self.options.items()))
        return f"lmdb{reader}" + (f"?{options}" if options else "")


_MAPPED = {"explicit": "off", "index": "off", "merged": "off"}

RUNGS = (
    Rung(key="plain", label="LMDB", reader="get", below=None),
    Rung(key="page", label="LMDB, readahead=off", reader="get", options={"readahead": "off"}, below="plain"),
    Rung(key="map", label="its map, walked by us", options=_MAPPED, below="plain"),
    Rung(
        key="dm",
        label="map + DM",
        options={**_MAPPED, "keep_leaf": "on"},
        below="map",
        trouble="a cursor must walk past other readers' records",
    ),
    Rung(
        key="prov",
        label="map + PROV",
        options={"explicit": "off", "merged": "off"},
        below="map",
        trouble="finding the offsets is serial",
    ),
    Rung(
        key="dio",
        label="PROV + DIO",
        options={"merged": "off"},
        below="prov",
        trouble="data comes in by page faults",
    ),
    Rung(key="coal", label="PROV + DIO + COAL", below="dio", trouble="requests are small and late"),
    Rung(
        key="stag",
        label="… + STAG",
        options={"readers_at_a_time": "1"},
        below="coal",
        trouble="all readers hit the storage at one moment",
    ),
    Rung(
        key="lmm",
        label="… + LMM, loading included",
        reader="shared",
        below="coal",
        trouble="every reader of a machine reads for itself",
    ),
    Rung(
        key="batches",
        called="LMM of batches",
        label="LMDB + LMM of batches",
        reader="get",
        share=Share.NODE,
        below="plain",
        trouble="every rank of a node reads for itself with LMDB's map",
    ),
    Rung(
        key="together",
        called="LMM of batches over COAL",
        label="… + LMM of batches",
        share=Share.NODE,
        below="coal",
        trouble="every rank of a node reads for itself with planned reads",
    ),
)
"""From the lowest rung to the highest."""
