"""Find scenario files: by path, or by the name of one that comes with storebench."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from storebench.errors import MissingDependencyError, StorebenchError, UnknownNameError
from storebench.formats.registry import PAPER_BACKENDS, parse_backend

SHIPPED = Path(__file__).resolve().parent / "scenarios"
"""A link to the checkout's ``scenarios`` folder; the files themselves in a wheel."""


def shipped_scenarios() -> dict[str, Path]:
    """Return the scenario files that come with storebench, by name; in a checkout, its own files."""
    return {path.stem: path.resolve() for path in sorted(SHIPPED.glob("*.toml"))}


def find_scenario(word: str) -> Path:
    """Return the scenario file that a word of the command line means."""
    if "/" in word or word.endswith(".toml"):
        return Path(word)
    known = shipped_scenarios()
    if word in known:
        return known[word]
    if Path(word).is_file():
        return Path(word)
    raise UnknownNameError.of("scenario", word, known)


def without_missing_libraries(raw: dict[str, Any], tell: Callable[[str], None]) -> dict[str, Any]:
    """Return the table of a scenario without the backends whose library is not installed."""
    matrices = raw.get("matrix")
    if not isinstance(matrices, list):
        return raw
    reasons: dict[str, None] = {}
    kept = [_without_missing(matrix, reasons) for matrix in matrices]
    for reason in reasons:
        tell(f"left out: {reason}")
    return {**raw, "matrix": kept}


def _without_missing(matrix: Any, reasons: dict[str, None]) -> Any:
    backends = matrix.get("backends", list(PAPER_BACKENDS)) if isinstance(matrix, dict) else None
    if not isinstance(backends, list):
        return matrix
    checked = [(name, _missing_library(name)) for name in backends]
    kept = [name for name, reason in checked if not reason]
    if not kept or len(kept) == len(checked):
        return matrix
    reasons.update((reason, None) for _, reason in checked if reason)
    return {**matrix, "backends": kept}


def _missing_library(backend: Any) -> str:
    """Return why a backend's library cannot be imported; "" if it can, or if there is no such backend."""
    if not isinstance(backend, str):
        return ""
    try:
        parse_backend(backend)
    except MissingDependencyError as error:
        return str(error)
    except StorebenchError:
        return ""  # validation says what is wrong with it
    return ""
