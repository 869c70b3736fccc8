"""What a run promised, in its run.json, and its records lack."""

from collections.abc import Iterable, Iterator
from pathlib import Path

from storebench.errors import CorruptDataError
from storebench.record.lines import PAIRING_NAME, RECORDS_NAME, RUN_NAME
from storebench.record.schema import Record
from storebench.run.about import fewer_replicates, read_about, resume_command, rounds_within_budget
from storebench.run.schedule import replicate_key
from storebench.units import number_of


def incomplete(records: Iterable[tuple[Record, Path]]) -> Iterator[str]:
    """Yield a sentence on each run that lacks replicates which its ``run.json`` promises."""
    by_folder: dict[Path, set[tuple[str, int]]] = {}
    for record, file in records:
        if file.name == RECORDS_NAME:
            by_folder.setdefault(file.parent, set()).add(replicate_key(record))
    for folder, done in by_folder.items():
        try:
            about = read_about(folder / RUN_NAME)
            asked = about.get("scenario", {}).get("replicates")
            fewer = fewer_replicates(about)
        except (OSError, CorruptDataError, TypeError, AttributeError, KeyError):
            continue  # validation reports a file that cannot be read
        if fewer is None or not isinstance(asked, int) or (folder / PAIRING_NAME).is_file():
            continue
        cells = [str(cell["cell_id"]) for cell in about["cells"]]
        rounds = range(rounds_within_budget(about, asked))
        wanted = {(cell, number) for cell in cells for number in rounds if number < fewer.get(cell, asked)}
        if missing := wanted - done:
            yield (
                f"INCOMPLETE: {len(wanted) - len(missing)} of {number_of(len(wanted), 'replicate')} of run"
                f" {about['run_id']} are recorded. Finish it with '{resume_command(folder)}'."
            )


def left_out(records: Iterable[tuple[Record, Path]]) -> dict[str, list[str]]:
    """Return the backends of optional matrices that the machine did not permit, by reason."""
    reasons: dict[str, dict[str, None]] = {}
    for folder in dict.fromkeys(file.parent for _, file in records if file.name == RECORDS_NAME):
        try:
            for entry in read_about(folder / RUN_NAME).get("left_out", ()):
                reasons.setdefault(str(entry["reason"]), {})[str(entry["backend"])] = None
        except (OSError, CorruptDataError, TypeError, AttributeError, KeyError):
            continue
    return {reason: list(names) for reason, names in reasons.items()}
