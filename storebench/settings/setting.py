"""One row per setting of the loop: everything that the package knows about it, beside its field."""

import dataclasses
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import NoneType
from typing import Any

_ROW = "setting"


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One setting of the loop: its key, its option, its field and its label."""

    meaning: str
    key: str = ""
    text: bool = False
    axis: int | None = None
    least: int | None = None
    most: int | None = None
    derived: bool = False
    option: bool = True  # Whether the command line has an option for it, too.
    metavar: str | None = None
    label: str = "{}"
    labels: Mapping[Any, str] = field(default_factory=dict)
    told: bool = True  # Whether labels name it even where it does not vary.
    name: str = ""
    kind: type = str
    default: Any = ...

    @property
    def asked_default(self) -> Any:
        """The default in a scenario; None if it follows from other settings, `...` if the key is required."""
        return None if self.derived else self.default


def setting(*, default: Any = dataclasses.MISSING, **row: Any) -> Any:
    """Return the field of a dataclass that carries a `Setting` of these values."""
    return field(default=default, metadata={_ROW: Setting(**row)})


def rows_of(settings: type) -> tuple[Setting, ...]:
    """Return the rows of a dataclass whose fields carry one each, in the order of the fields."""
    hints = typing.get_type_hints(settings)
    kinds = {name: (set(typing.get_args(hint)) - {NoneType} or {hint}).pop() for name, hint in hints.items()}
    return tuple(
        dataclasses.replace(
            declared.metadata[_ROW],
            name=declared.name,
            key=declared.metadata[_ROW].key or declared.name,
            kind=kinds[declared.name],
            default=... if declared.default is dataclasses.MISSING else declared.default,
        )
        for declared in dataclasses.fields(settings)
    )
