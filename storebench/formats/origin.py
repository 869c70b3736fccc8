"""The code that a cell runs, of storebench and of its format's package; records of other code are refused."""

import dataclasses
import functools
import importlib.util
from collections.abc import Iterable
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
    package = plugin_package(format_name)
    if not package:
        return ""
    spec = importlib.util.find_spec(package)
    commit, digest = "", NO_COMMIT
    if spec is not None and spec.origin is not None:
        file = Path(spec.origin).resolve()
        source = file.parent if spec.submodule_search_locations else file
        commit, digest = str(checkout_of(source)), code_digest(source)
    points = [point.dist.name for point in plugin_points() if point.name == format_name and point.dist]
    return f"{points[-1] if points else package} {commit or NO_COMMIT} {digest}"


def plugin_package(format_name: str) -> str:
    """Return the top-level package or module that a format comes from; "" for a built-in one."""
    if format_name in BUILTIN or format_name in REFERENCES:
        return ""
    # If two packages add the same name, the registry uses the last.
    modules = [point.module for point in plugin_points() if point.name == format_name]
    modules += [format_name] if not modules and "." in format_name else []
    return modules[-1].partition(".")[0] if modules else ""
