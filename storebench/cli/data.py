"""``storebench data``: list the datasets, and fetch those that may be downloaded."""

from pathlib import Path
from typing import Annotated, Any

import typer

from storebench.cli.common import exit_codes, progress, put, put_json, say, writes_into
from storebench.errors import CorruptDataError, DataNotFoundError, StorebenchError, UnknownNameError
from storebench.plain_text import plain
from storebench.settings.words import Split
from storebench.system import interrupts

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
def list_datasets(
    as_json: Annotated[
        bool, typer.Option("--json", help="Print an array of objects instead of a table.")
    ] = False,
) -> None:
    """List the files of each dataset, and whether they are real."""
    with exit_codes():
        from storebench.datasets import DATASETS

        rows = [_row(name, split) for name in DATASETS for split in Split]
        if as_json:
            put_json(rows)
        else:
            put(*_table(rows))


def _row(name: str, split: Split) -> dict[str, Any]:
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


def _table(rows: list[dict[str, Any]]) -> list[str]:
    cells = [("dataset", "split", "images", "shape", "origin", "where and what")]
    for row in rows:
        shape = "x".join(map(str, row["image_shape"] or ())) or "-"
        remark = "; ".join(plain(str(row[key])) for key in ("path", "source", "note") if row[key])
        cells.append(
            (row["dataset"], row["split"], f"{row['count']:,}", shape, row["origin"] or "missing", remark)
        )
    widths = [max(len(line[column]) for line in cells) for column in range(5)]
    return [
        "  ".join([*(text.ljust(width) for text, width in zip(line, widths, strict=False)), line[5]])
        for line in cells
    ]


@data.command("fetch")
def fetch(
    name: Annotated[str, typer.Argument(metavar="mnist|cifar10|imagenet|all", help="What to fetch.")],
    to: Annotated[
        Path | None,
        typer.Option(help="Data folder for the files. [default: ./data, and only for missing files]"),
    ] = None,
    optional: Annotated[
        bool,
        typer.Option("--optional", help="If fetching fails, say so and exit 0: a stand-in will be used."),
    ] = False,
) -> None:
    """Fetch a dataset from its public mirrors.

    Downloads are checked and resumed. ImageNet must be added by hand.
    """
    with exit_codes():
        from storebench.datasets import DATASETS
        from storebench.datasets.catalog import DEFAULT_ROOT
        from storebench.datasets.download import Fetcher

        writes_into(to or DEFAULT_ROOT)
        if name not in (*DATASETS, "all"):
            raise UnknownNameError.of("dataset", name, (*DATASETS, "all"))
        fetcher = Fetcher(progress=lambda title: progress(title, "bytes"))
        failures = []
        for dataset in DATASETS if name == "all" else (name,):
            try:
                _fetch_one(fetcher, dataset, to)
            except KeyboardInterrupt:
                if not interrupts.was_announced():
                    say("storebench: interrupted; the next fetch continues this download")
                raise
            except StorebenchError as error:
                failures.append(error)
                say(f"{dataset}: {error}" + (" The synthetic stand-in will be used." if optional else ""))
        if failures and not optional:
            raise typer.Exit(failures[0].exit_code)


def _fetch_one(fetcher: Any, name: str, to: Path | None) -> None:
    from storebench.datasets.catalog import DEFAULT_ROOT, find_files, needed_files
    from storebench.datasets.download import ALTERNATIVES

    folder = (to or DEFAULT_ROOT) / name
    files = find_files(name, to)
    if files is not None and _is_whole(files):
        say(f"{name}: already in {files.where}")
    elif name in ALTERNATIVES:
        paths = fetcher.fetch(name, folder)
        say(f"{name}: {', '.join(path.name for path in paths)} in {folder}")
    else:
        raise DataNotFoundError(
            f"{name} may not be distributed", where=folder.parent, hint=needed_files(name)
        )


def _is_whole(files: Any) -> bool:
    """Return whether the train split opens; a damaged file is fetched again."""
    try:
        files.open(Split.TRAIN, None, None)
    except (DataNotFoundError, CorruptDataError) as error:
        say(f"{error}")
        return False
    return True
