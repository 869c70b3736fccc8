"""The cell: everything that decides what is measured, and nothing else. A record holds it as flat fields."""

import dataclasses
import functools
import hashlib
import json
import typing
from dataclasses import dataclass, field
from typing import Any

from storebench.datasets.base import DatasetSpec
from storebench.settings.backend import Backend
from storebench.settings.loop import SETTINGS, LoopSettings

DATA_FIELDS = {
    "dataset": "name",
    "split": "split",
    "size": "size",
    "limit": "limit",
    "data_seed": "seed",
    "synthetic": "synthetic",
    "image_size": "image_size",
    "skip_unreadable": "skip_unreadable",
}
"""Field of a record -> attribute of `Cell.data`."""

BACKEND_FIELDS = {
    "backend": "name",
    "format": "format",
    "codec": "codec",
    "reader": "reader",
    "reader_options": "options",
    "codec_options": "codec_options",
}
"""Field of a record -> attribute of `Cell.backend`."""

CELL_FIELDS = (*DATA_FIELDS, *BACKEND_FIELDS, *(row.name for row in SETTINGS))
"""The fields that a record has of its cell, in order."""

_MEANINGS = {
    "dataset": '"mnist", "cifar10", "imagenet", or a path such as "folder:PATH".',
    "split": "Part of the dataset.",
    "size, limit": "As in `storebench.datasets.base.DatasetSpec`.",
    "data_seed": "Seed of derived and synthetic samples.",
    "synthetic": "True where the stand-in was asked for; null takes real files where there are any.",
    "image_size": "Side of the square images that every codec serves; null for the default of the dataset and the network.",
    "skip_unreadable": "Whether unreadable image files are left out; otherwise they are refused.",
    "backend": "The backend's full name; `format`, `codec`, `reader`, `reader_options` are its parts.",
    "codec_options": "How payloads are decoded where that is not the default, as pairs: `decoder` and `scale`.",
} | {row.name: row.meaning for row in SETTINGS}

_ADDED: dict[str, Any] = {
    **{row.name: row.default for row in SETTINGS if row.added},
    "image_size": None,
    "skip_unreadable": False,
    "codec_options": (),
}
"""Field that older records lack -> the value that means the same."""


@dataclass(frozen=True, kw_only=True)
class Cell(LoopSettings):
    """One point of a benchmark: the settings of the loop, and what it loads."""

    data: DatasetSpec
    backend: Backend

    @classmethod
    def of_fields(cls, **fields: Any) -> "Cell":
        """Return the cell that a record's fields describe; fields with a default may be left out."""
        data = {own: fields.pop(name) for name, own in DATA_FIELDS.items() if name in fields}
        backend = {own: fields.pop(name) for name, own in BACKEND_FIELDS.items() if name in fields}
        return cls(data=DatasetSpec(**data), backend=Backend(**backend), **fields)

    def fields(self) -> dict[str, Any]:
        """Return the cell as a record has it: flat fields of plain values, in the order of `CELL_FIELDS`."""
        data = {name: getattr(self.data, own) for name, own in DATA_FIELDS.items()}
        backend = {name: getattr(self.backend, own) for name, own in BACKEND_FIELDS.items()}
        settings = {row.name: getattr(self, row.name) for row in SETTINGS}
        values = (data | backend | settings).items()
        return {name: str(value) if isinstance(value, str) else value for name, value in values}

    @functools.cached_property
    def cell_id(self) -> str:
        """Twelve hexadecimal digits that identify this cell."""
        # Settings that were added later count only where they are set, so that older cells keep their ids.
        known = self.fields().items()
        counted = {name: value for name, value in known if name not in _ADDED or value != _ADDED[name]}
        text = json.dumps(counted, sort_keys=True)
        return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()

    @functools.cached_property
    def compared_with(self) -> str:
        """Key that is equal for comparable cells: all fields except the backend's and the epochs."""
        left_out = {*BACKEND_FIELDS, "epochs"}
        return json.dumps({name: value for name, value in self.fields().items() if name not in left_out})

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        """Return the schema of a record's fields, from which a cell is made."""
        from pydantic_core import core_schema

        return core_schema.no_info_after_validator_function(
            lambda fields: cls.of_fields(**vars(fields)), handler.generate_schema(CellFields)
        )


def _fields_of(kind: type, names: dict[str, str]) -> list[tuple[str, Any, Any]]:
    """Return name, type and default for each of the fields `names` of a record that are attributes of `kind`."""
    hints = typing.get_type_hints(kind)
    defaults = {attribute.name: attribute.default for attribute in dataclasses.fields(kind)}
    return [(name, hints[own], field(default=defaults[own])) for name, own in names.items()]


def _cell_fields() -> type:
    """Make the class of a cell's flat fields; in the schema of a record it is called Cell."""
    settings = {row.name: row.name for row in SETTINGS}
    fields = [
        *_fields_of(DatasetSpec, DATA_FIELDS),
        *_fields_of(Backend, BACKEND_FIELDS),
        *_fields_of(LoopSettings, settings),
    ]
    made = dataclasses.make_dataclass("Cell", fields, frozen=True, kw_only=True)
    made.__module__ = __name__
    lead = "One point of a benchmark. Everything that decides what is measured, and nothing else."
    told = (f"{name}\n    {meaning}" for name, meaning in _MEANINGS.items())
    made.__doc__ = "\n".join([lead, "\nAttributes\n----------", *told])
    return made


CellFields = _cell_fields()
"""The flat fields of a cell in a record, as a dataclass: for readers, tables and documentation of records."""
