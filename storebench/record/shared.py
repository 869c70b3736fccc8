"""A run in one small file: its records with fewer details, and no name of a person, a host or a folder."""

import enum
import json
import lzma
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from storebench.datasets.catalog import DATASETS
from storebench.errors import CorruptDataError
from storebench.record.lines import record_to_dict
from storebench.record.schema import NO_ANSWER_AFTER, CacheVerdict, Record, ran_out_of_time
from storebench.system.json_text import parse_json
from storebench.system.reading import read_small_file

SUFFIX = ".json.xz"
MOST_SHARED_BYTES, _MOST_TEXT_BYTES, _MOST_MEMORY_BYTES = 100_000, 32 << 20, 128 << 20

# Texts that are words of this program, or digests; of other fields, only numbers and enumerations are shared.
_TEXTS = {"storebench_version", "started_utc", "code.digest", "code.commit", "conditions.disturbed"} | {
    *("digests.order", "digests.loss", "cache.applies_to", "cache.metadata"),
    *("store.samples_digest", "store.origin"),
}
_LEFT_OUT = {
    "steps_file",
    "environment",
    "reader_notes",
    "counters.reasons",
    "ceilings.reasons",
    "job.trainers",
}
_EMPTIED = {"cache.curve", "job.per_rank"}


def is_shared(file: Path) -> bool:
    return file.suffix == ".xz"


def shared_record(record: Record, run_id: str, names: dict[str, str]) -> dict[str, Any]:
    """Return a record without details; `names` are those that others see, by the names in the record."""
    cell = {name: names.get(str(value), value) for name, value in record.cell.fields().items()}
    shared: dict[str, Any] = _kept(record_to_dict(record)) | {"cell": cell, "run_id": run_id}
    if record.environment:
        facts = {name: fact for name, fact in record.environment.match.items() if name != "mount_options"}
        # The version of a kernel ends in a name that its builder gave it.
        facts["kernel"] = re.sub(r"[^\d.].*", "", str(facts.get("kernel")))
        shared["environment"] = {"key": record.environment.key, "match": facts, "notes": {}}
    if record.failure is not None:
        shared["failure"] = NO_ANSWER_AFTER if ran_out_of_time(record.failure) else "failed"
    if record.store and record.cell.data.name in DATASETS:
        shared["store"]["provenance_note"] = record.store.provenance_note
    if record.cache and record.cache.verdict is CacheVerdict.FAILED:  # the cause may name a folder
        shared["cache"]["reason"] = record.cache.reason.partition(";")[0]
    if record.place:
        kind = "a server" if record.cell.place.url else record.place.server.partition(" on ")[0]
        shared["place"]["server"] = kind if str(record.cell.place) in names else record.place.server
    notes = {name: text for name, text in record.reader_notes.items() if re.fullmatch(r"[\d.]+", text)}
    return shared | {"reader_notes": notes}


def _kept(value: Any, path: str = "") -> Any:
    """Return a part of a record without the details that are left out."""
    if isinstance(value, dict):
        paths = {name: f"{path}.{name}".removeprefix(".") for name in value}
        return {name: _kept(value[name], of) for name, of in paths.items() if of not in _LEFT_OUT}
    if isinstance(value, list | tuple):
        return [] if path in _EMPTIED else [_kept(part, path) for part in value]
    if isinstance(value, float):
        return float(f"{value:.5g}")
    return "" if isinstance(value, str) and not isinstance(value, enum.Enum) and path not in _TEXTS else value


def names_for_others(records: Sequence[Record]) -> dict[str, str]:
    """Return a digest for the name of each dataset of the user's, and a number for each folder and server."""
    names: dict[str, str] = {}
    for record in records:
        if (name := record.cell.data.name) not in DATASETS:
            names.setdefault(name, f"images-{record.store.samples_digest[:8] if record.store else 'unknown'}")
    places = {record.cell.place for record in records if record.cell.place.url or record.cell.place.folder}
    for number, place in enumerate(sorted(places)):  # a report sorts by name
        server = f"{'copy:' * place.copies}s3:http://server-{number}/bucket"
        names[str(place)] = server if place.url else f"{'copy:' * (place != place.folder)}/place-{number}"
    return names


def packed(content: dict[str, Any]) -> bytes:
    """Return the bytes of a shared file."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME)


def read_shared(file: Path) -> dict[str, Any]:
    """Return the content of a shared file, whose records and cells are not checked yet."""
    unpacking = lzma.LZMADecompressor(memlimit=_MOST_MEMORY_BYTES)
    try:
        text = unpacking.decompress(read_small_file(file, most_bytes=MOST_SHARED_BYTES), _MOST_TEXT_BYTES)
    except lzma.LZMAError as error:
        raise CorruptDataError(f"not a shared run ({error})", where=file) from None
    if unpacking.needs_input and not unpacking.eof:
        raise CorruptDataError("the file is cut short: fetch it again", where=file)
    content = parse_json(text, file)
    lists = [content.get(name) for name in ("records", "cells")] if isinstance(content, dict) else [None]
    if not unpacking.eof or not all(
        isinstance(of, list) and all(isinstance(x, dict) for x in of) for of in lists
    ):
        raise CorruptDataError("not a shared run", where=file)
    return dict(content)


def shared_records(file: Path) -> Iterator[tuple[str, dict[str, Any] | CorruptDataError]]:
    """Yield the position of each record of a shared file with its JSON object, or the reason why there is none."""
    try:
        yield from ((f"{file}:{n}", record) for n, record in enumerate(read_shared(file)["records"]))
    except CorruptDataError as error:
        yield str(file), error
