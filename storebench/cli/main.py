"""The root of the command line; every verb is a module of this package and fast to import."""

from typing import Annotated

import typer

from storebench._version import __version__
from storebench.cli.accelerators import accelerators
from storebench.cli.bench import bench, scenarios
from storebench.cli.check import check
from storebench.cli.convert import convert
from storebench.cli.data import data
from storebench.cli.doctor import doctor
from storebench.cli.formats import formats
from storebench.cli.inspect import inspect
from storebench.cli.report import report
from storebench.cli.run import run
from storebench.cli.trace import trace
from storebench.cli.validate import validate
from storebench.cli.verify import verify
from storebench.system import interrupts

app = typer.Typer(
    name="storebench",
    help="Measure how to store image training data, under real training, with proof.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"storebench {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Measure how to store image training data, under real training, with proof."""


app.command("convert")(convert)
app.add_typer(data, name="data")
app.command("run")(run)
app.command("bench")(bench)
app.command("scenarios")(scenarios)
app.command("trace")(trace)
app.command("report")(report)
app.command("check")(check)
app.command("formats")(formats)
app.command("accelerators")(accelerators)
app.command("doctor")(doctor)
app.command("validate")(validate)
app.command("verify")(verify)
app.command("inspect")(inspect)


def main() -> None:
    """Run the command line."""
    interrupts.install()
    try:
        app()
    except SystemExit as end:
        # Between two of our lines, click itself may catch an interrupt, and it exits with 1.
        if interrupts.seen() and end.code:
            interrupts.leave()
        raise


if __name__ == "__main__":
    main()
