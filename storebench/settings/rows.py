"""One row per setting of the loop: everything that the package knows about it, beside its field."""

import dataclasses
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import NoneType, UnionType
from typing import Any

_ROW = "setting"


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One setting of the loop: its key, its option, its field and its label.

    Attributes
    ----------
    meaning
        Description of the field, for the schema of records.
    asked
        Description of the key in a scenario, with its default where that follows from other settings; "" for `meaning`.
    key
        Key in a scenario and name of the option; "" for the name of the field.
    text
        Whether a scenario has a text ("400 MiB") instead of the number in the record.
    axis
        Position among the axes of a matrix, the slowest first; None if a matrix has one value.
    least, most
        Bounds of a number in a scenario, both allowed.
    derived
        Whether the default in a scenario follows from other settings.
    option
        Help of the option of ``storebench run``; "" if there is no option.
    metavar
        Name of the value in that help; None for the name of its type.
    label
        Label of a value in reports ("{} workers").
    labels
        Labels of single values ("1 worker"), before `label`.
    always
        Whether reports name the setting even if all cells share it.
    added
        Whether older records lack the setting: then it counts in the id of a cell only if it is set.
    name
        Name of the field; set by `rows_of`.
    kind
        Type of the field without None; set by `rows_of`.
    default
        Default of the field, or `...` if it has none; set by `rows_of`.
    """

    meaning: str
    asked: str = ""
    key: str = ""
    text: bool = False
    axis: int | None = None
    least: int | None = None
    most: int | None = None
    derived: bool = False
    option: str = ""
    metavar: str | None = None
    label: str = "{}"
    labels: Mapping[Any, str] = field(default_factory=dict)
    always: bool = False
    added: bool = False
    name: str = ""
    kind: type = str
    default: Any = ...

    @property
    def asked_default(self) -> Any:
        """The default in a scenario; None if it follows from other settings, `...` if the key is required."""
        return None if self.derived else self.default

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The metadata of a dataclass field that carries the row."""
        return {_ROW: self}


def rows_of(settings: type) -> tuple[Setting, ...]:
    """Return the rows of a dataclass whose fields carry one each, in the order of the fields."""
    hints = typing.get_type_hints(settings)
    return tuple(
        dataclasses.replace(
            declared.metadata[_ROW],
            name=declared.name,
            key=declared.metadata[_ROW].key or declared.name,
            kind=_without_none(hints[declared.name]),
            default=... if declared.default is dataclasses.MISSING else declared.default,
        )
        for declared in dataclasses.fields(settings)
    )


def _without_none(hint: Any) -> type:
    kinds = typing.get_args(hint) if isinstance(hint, UnionType) else (hint,)
    [kind] = [kind for kind in kinds if kind is not NoneType]
    plain: type = kind
    return plain
