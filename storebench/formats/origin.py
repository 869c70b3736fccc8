"""The code that a cell runs, of storebench and of its format's package; records of other code are refused."""

import dataclasses
import functools
import importlib.util
from collections.abc import Iterable
from importlib.metadata import EntryPoint
from pathlib import Path

from storebench.errors import UsageError
from storebench.formats.registry import BUILTIN, REFERENCES, plugin_points
from storebench.probes.code import checkout_of, code_digest, package_folder, running_checkout, running_digest
from storebench.record.schema import CodeFacts, Record, Status

NO_COMMIT = "-"


def code_facts(format_name: str) -> CodeFacts:
    """Return the facts of the code that this process runs for a format."""
    return CodeFacts(
        digest=running_digest(), commit=str(running_checkout()), plugin=plugin_facts(format_name)
    )


def proven(record: Record, package: str) -> Record:
    """Return the record, failed if the cell ran other code than this process imported."""
    ours, its = running_digest(), record.code.digest if record.code else "no digest"
    if its == ours and package == str(package_folder()):
        return record
    failure = (
        f"the cell ran other code than its runner: {its[:12]} in {package or 'an unknown folder'}, "
        f"not {ours[:12]} in {package_folder()}; was storebench changed during the run?"
    )
    return dataclasses.replace(record, status=Status.FAILED, failure=failure)


def refuse_other_code(records: Iterable[Record], folder: Path) -> None:
    """Refuse to add to records of other code."""
    other = next(
        (record for record in records if record.code and record.code.digest != running_digest()), None
    )
    if other is not None and other.code is not None:
        its, ours = other.code, code_facts(other.cell.backend.format)
        raise UsageError(
            f"its records are of other code: {its.commit or its.digest[:12]}, not {ours.commit or ours.digest[:12]} "
            f"(digest {its.digest[:12]}, not {ours.digest[:12]})",
            where=folder,
            hint="Go back to that code, or start a new run.",
        )


@functools.cache
def plugin_facts(format_name: str) -> str:
    """Return "NAME COMMIT DIGEST" of the package that registered a format; "" for a built-in one."""
    if format_name in BUILTIN or format_name in REFERENCES:
        return ""
    # If two packages add the same name, the registry uses the last.
    points = [point for point in plugin_points() if point.name == format_name]
    if not points:
        return ""
    point = points[-1]
    sources = plugin_sources(point)
    commit = str(checkout_of(*sources)) if sources else ""
    digest = code_digest(*sources) if sources else NO_COMMIT
    distribution = point.dist.name if point.dist is not None else point.module
    return f"{distribution} {commit or NO_COMMIT} {digest}"


def plugin_sources(point: EntryPoint) -> tuple[Path, ...]:
    """Return the top-level packages (folders) and modules (files) of the package that an entry point belongs to."""
    listed = (point.dist.read_text("top_level.txt") or "").split() if point.dist is not None else []
    names = sorted({point.module.partition(".")[0], *listed})
    return tuple(path for name in names if (path := module_source(name)) is not None)


def module_source(name: str) -> Path | None:
    """Return the folder of a top-level package, or the file of a top-level module; None if it cannot be found."""
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return None
    if spec is None:
        return None
    if spec.submodule_search_locations:
        return Path(next(iter(spec.submodule_search_locations))).resolve()
    return Path(spec.origin).resolve() if spec.origin and Path(spec.origin).is_file() else None
