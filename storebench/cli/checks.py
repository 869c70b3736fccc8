"""Checks before long work begins, for several verbs."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from storebench.errors import UsageError

if TYPE_CHECKING:
    from storebench.results import Cell


def require_devices(cells: Iterable["Cell"], *, nodes: int = 1) -> None:
    """Refuse cells of a device that is not there, and ranks that would have to share a GPU.

    Parameters
    ----------
    nodes
        How many nodes the ranks are on.

    Raises
    ------
    UsageError
        A cell asks for CUDA devices that torch cannot use.
    """
    on_gpus = [cell for cell in cells if cell.device != "cpu"]
    if on_gpus:  # torch takes longer to import than most commands take
        from storebench.training.devices import require_devices as require

        require({cell.device for cell in on_gpus}, ranks=max(cell.ranks // nodes for cell in on_gpus))


@contextmanager
def about(place: str) -> Iterator[None]:
    """Name an argument or option in an error that does not say where it is."""
    try:
        yield
    except UsageError as error:
        if error.where is not None:
            raise
        raise type(error)(error.what, where=place, hint=error.hint) from None
