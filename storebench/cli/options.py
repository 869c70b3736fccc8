"""Arguments and options that several verbs take, each written once."""

from pathlib import Path
from typing import Annotated, Any

import typer

from storebench.cli.checks import finite, permitted_to_drop

DatasetOption = Annotated[
    str | None, typer.Option("--dataset", "-d", help="mnist, cifar10, imagenet, or a folder of images.")
]
ListOption = Annotated[
    Path | None,
    typer.Option("--list", metavar="FILE", help="Image files with labels, one 'PATH LABEL' per line."),
]
SplitOption = Annotated[str, typer.Option(help="train or test.")]
SizeOption = Annotated[
    int | None, typer.Option(min=1, help="Extend or cut the dataset to this many samples.")
]
LimitOption = Annotated[int | None, typer.Option(min=1, help="Use only the first samples.")]
SkipUnreadableOption = Annotated[
    bool,
    typer.Option("--skip-unreadable", help="Leave out image files that cannot be read or do not decode."),
]
SyntheticOption = Annotated[
    bool | None,
    typer.Option(
        "--synthetic/--real",
        help="Use the synthetic stand-in, or refuse it. [default: only without real files]",
    ),
]

DropCachesOption = Annotated[
    bool,
    typer.Option(
        "--drop-caches",
        callback=permitted_to_drop,
        help="For cold: also drop the whole machine's caches, including inodes, as the last step (root).",
    ),
]
RunFolderOption = Annotated[
    Path | None, typer.Option(help="Folder of the run. [default: a new one in ./runs]")
]
StoresOption = Annotated[Path | None, typer.Option(help="Folder of all stores. [default: ./stores]")]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Print cells, stores and bytes; run nothing.")]
RecordsAsJsonOption = Annotated[
    bool, typer.Option("--json", help="Print the records (or the plan of a dry run) as JSON.")
]


ResultsArgument = Annotated[
    list[Path],
    typer.Argument(help="Folders that 'storebench run' or 'storebench bench' wrote, or record files."),
]


def timeout_option(default: str) -> Any:
    """Return the option for the time limit of a replicate; `default` says what it is if it is not given."""
    return typer.Option(
        min=1,
        callback=finite,
        metavar="SECONDS",
        help=f"Kill a replicate that takes longer, and record it as failed. [default: {default}]",
    )


def accelerator_option(meaning: str) -> Any:
    """Return the option that names accelerators; `meaning` says what a verb does with one."""
    return typer.Option(
        "--accelerator",
        metavar="NAME[:MODEL]",
        help=f"{meaning}; may be repeated. One that is not listed: NAME=RATE, in images/s.",
    )
