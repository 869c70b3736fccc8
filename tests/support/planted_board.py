"""A board of a run on several nodes without a process: values of other nodes are planted, and this node's are kept."""

from collections.abc import Mapping
from typing import Any


class PlantedBoard:
    """A board on which the values of other nodes are planted; it keeps what this node tells."""

    def __init__(self, **planted: dict[str, Any]) -> None:
        self.planted = {key.replace("_", "/"): value for key, value in planted.items()}
        self.told: dict[str, Mapping[str, Any]] = {}
        self.asked: list[str] = []

    def set(self, key: str, value: Mapping[str, Any]) -> None:
        """Keep a value that this node tells."""
        self.told[key] = value

    def get(self, key: str, timeout_s: float | None = None) -> dict[str, Any] | None:
        """Return a planted value, at once."""
        self.asked.append(key)
        return self.planted.get(key)
