"""Verbs that list: accelerators, formats, datasets (and fetch these), and what this machine can measure."""

import dataclasses
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from storebench.cli.arguments import JsonOption
from storebench.cli.output import exit_codes, progress, put, put_json, say, writes_into
from storebench.errors import CorruptDataError, DataNotFoundError, StorebenchError, UnknownNameError
from storebench.plain_text import plain
from storebench.settings.words import Split


def accelerators(as_json: JsonOption = False) -> None:
    """List the accelerators that --accelerator knows.

    Each has its published training rate and the source. A name alone means the first row of its device. Any
    other accelerator is given by its rate: --accelerator NAME=RATE, in images/s.
    """
    with exit_codes():
        from storebench.accelerators import ACCELERATORS

        if as_json:
            put_json(
                [dataclasses.asdict(accelerator) | {"key": accelerator.key} for accelerator in ACCELERATORS]
            )
            return
        rows = [
            (
                accelerator.key,
                accelerator.device,
                accelerator.network,
                accelerator.precision,
                f"{accelerator.images_per_s:,g}",
                str(accelerator.source),
            )
            for accelerator in ACCELERATORS
        ]
        heads = ("accelerator", "device", "network", "precision", "images/s", "source")
        put(*aligned([heads, *rows]))


OPTION_HEADS = ("option", "type", "default", "values", "meaning")


def formats(as_json: JsonOption = False) -> None:
    """List the formats with their codecs, readers and options.

    A star marks the default codec and the default reader.
    """
    with exit_codes():
        from storebench.formats.registry import format_names

        facts = [_describe(name) for name in format_names()]
        if as_json:
            put_json(facts)
        else:
            heads = ("format", "codecs", "readers", "in memory", "library")
            put(*aligned([heads, *map(_row, facts)]), "", *_details(facts))


def _describe(name: str) -> dict[str, Any]:
    """Return the facts about one format, whether or not it can be used."""
    from storebench.codecs import CODECS
    from storebench.errors import UsageError
    from storebench.formats.registry import BUILTIN, entry_points, get_format

    entry = BUILTIN.get(name) or entry_points()[name]
    row: dict[str, Any] = {
        "name": name,
        "builtin": name in BUILTIN,
        "target": entry.target,
        "install": entry.install,
        "available": True,
        "missing": None,
        "hint": None,
    }
    try:
        format_ = get_format(name)
    except UsageError as error:
        return row | {"available": False, "missing": error.what, "hint": error.hint}
    info = format_.info
    return row | {
        "summary": info.summary,
        "codecs": list(CODECS),
        "default_codec": info.default_codec,
        "default_reader": info.default_reader,
        "readers": {
            name: {
                "summary": reader.summary,
                "options": {
                    row.name: {
                        "type": row.kind,
                        "default": row.text(row.default),
                        "values": row.allowed.replace("'", ""),
                        "meaning": row.meaning,
                    }
                    for row in reader.reader.options_type.rows().values()
                },
                "traits": dataclasses.asdict(format_.traits(name)),
                "note": reader.note,
            }
            for name, reader in format_.readers().items()
        },
    }


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return rows of text as a table with a line below its head."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    rule = "  ".join("-" * width for width in widths)
    return [line.rstrip() for line in (lines[0], rule, *lines[1:])]


def _row(facts: dict[str, Any]) -> tuple[str, ...]:
    if not facts["available"]:
        return (facts["name"], "", "", "", facts["install"] or facts["missing"])
    traits = facts["readers"][facts["default_reader"]]["traits"]
    return (
        facts["name"],
        _starred(facts["codecs"], facts["default_codec"]),
        _starred(facts["readers"], facts["default_reader"]),
        "yes" if traits["holds_pixels"] else "no",
        "installed" if facts["builtin"] else f"installed ({facts['target'].partition(':')[0]})",
    )


def _starred(names: list[str], default: str) -> str:
    return " ".join(f"{name}*" if name == default else name for name in names)


def _details(format_facts: list[dict[str, Any]]) -> list[str]:
    lines: list[str] = []
    for facts in format_facts:
        if not facts["available"]:
            lines.append(". ".join(filter(None, [f"{facts['name']}: {facts['missing']}", facts["hint"]])))
            continue
        lines.append(f"{facts['name']}: {facts['summary']}")
        for name, reader in facts["readers"].items():
            holds = "; holds all pixels in memory" if reader["traits"]["holds_pixels"] else ""
            lines.append(f"  {facts['name']}:{name}  {reader['summary']}{holds}")
            lines += [f"    {reader['note']}"] if reader["note"] else []
            if options := reader["options"]:
                rows = [
                    (name, *(option[head] or "" for head in OPTION_HEADS[1:]))
                    for name, option in options.items()
                ]
                lines += [f"    {line}" for line in aligned([OPTION_HEADS, *rows])]
    return lines


data = typer.Typer(
    help="List the available datasets, or fetch them.", invoke_without_command=True, rich_markup_mode=None
)


@data.callback()
def alone(context: typer.Context) -> None:
    """List the available datasets, or fetch them."""
    if context.invoked_subcommand is None:
        list_datasets()
        say("'storebench data fetch NAME' fetches one; -d PATH of 'storebench run' takes a folder of images")


@data.command("list")
def list_datasets(as_json: JsonOption = False) -> None:
    """List the files of each dataset, and whether they are real."""
    with exit_codes():
        from storebench.datasets import DATASETS

        rows = [_dataset(name, split) for name in DATASETS for split in Split]
        if as_json:
            put_json(rows)
            return
        cells = [("dataset", "split", "images", "shape", "origin", "where and what")]
        for row in rows:
            shape = "x".join(map(str, row["image_shape"] or ())) or "-"
            remark = "; ".join(plain(str(row[key])) for key in ("path", "source", "note") if row[key])
            origin = row["origin"] or "missing"
            cells.append((row["dataset"], row["split"], f"{row['count']:,}", shape, origin, remark))
        put(*aligned(cells))


def _dataset(name: str, split: Split) -> dict[str, Any]:
    from storebench.datasets import DatasetSpec, open_dataset
    from storebench.datasets.catalog import find_files

    files = find_files(name)
    row: dict[str, Any] = {
        "dataset": name,
        "split": split,
        "path": None if files is None else str(files.where),
    }
    try:
        info = open_dataset(DatasetSpec(name=name, split=split)).info
    except (DataNotFoundError, CorruptDataError) as error:
        return {**row, "origin": None, "count": 0, "image_shape": None, "source": None, "note": str(error)}
    return {
        **row,
        "origin": info.provenance.origin.value,
        "count": info.count,
        "image_shape": list(info.image_shape),
        "source": info.provenance.source,
        "note": info.provenance.note,
    }


@data.command("fetch")
def fetch(
    name: Annotated[str, typer.Argument(metavar="mnist|cifar10|imagenet|all", help="What to fetch.")],
    to: Annotated[
        Path | None,
        typer.Option(help="Data folder for the files. [default: ./data, and only for missing files]"),
    ] = None,
) -> None:
    """Fetch a dataset from its public mirrors.

    Downloads are checked. ImageNet must be added by hand.
    """
    with exit_codes():
        from storebench.datasets import DATASETS
        from storebench.datasets.catalog import DEFAULT_ROOT

        writes_into(to or DEFAULT_ROOT)
        if name not in (*DATASETS, "all"):
            raise UnknownNameError.of("dataset", name, (*DATASETS, "all"))
        failures = []
        for dataset in DATASETS if name == "all" else (name,):
            try:
                _fetch_one(dataset, to)
            except StorebenchError as error:
                failures.append(error)
                say(f"{dataset}: {error}")
        if failures:
            raise typer.Exit(failures[0].exit_code)


def _fetch_one(name: str, to: Path | None) -> None:
    from storebench.datasets.catalog import DEFAULT_ROOT, find_files, needed_files
    from storebench.datasets.download import FILES
    from storebench.datasets.download import fetch as fetch_files

    folder = (to or DEFAULT_ROOT) / name
    files: Any = find_files(name, to)
    try:
        if files is not None:
            files.open(Split.TRAIN, None, None)
    except (DataNotFoundError, CorruptDataError) as error:
        say(f"{error}")
        files = None  # a damaged file is fetched again
    if files is not None:
        say(f"{name}: already in {files.where}")
    elif name in FILES:
        paths = fetch_files(name, folder, lambda title: progress(title, "bytes"))
        say(f"{name}: {', '.join(path.name for path in paths)} in {folder}")
    else:
        raise DataNotFoundError(
            f"{name} may not be distributed", where=folder.parent, hint=needed_files(name)
        )


def doctor(
    path: Annotated[
        Path, typer.Argument(help="Folder of the stores, present or future.", show_default="here")
    ] = Path(),
    *,
    as_json: JsonOption = False,
) -> None:
    """Report what this machine can and cannot measure.

    Each finding says what to do about it. The command writes, reads and evicts a scratch file of 8 MiB in PATH. It
    changes no setting.
    """
    with exit_codes():
        from storebench.probes.doctor import checkup

        checks = checkup(path.resolve())
        if as_json:
            from storebench.probes.code import storebench_version
            from storebench.probes.environment import environment

            put_json(
                {
                    "storebench": storebench_version(),
                    "environment": environment(path).match,
                    "checks": [dataclasses.asdict(check) for check in checks],
                }
            )
            return
        width = max(len(check.name) for check in checks)
        for check in checks:
            put(f"{check.state:<5} {check.name:<{width}}  {check.found}")
            advice = textwrap.wrap(check.advice, width=80)
            indent = " " * (width + 8)
            put(*(f"{indent}{'   ' if number else '-> '}{line}" for number, line in enumerate(advice)))
