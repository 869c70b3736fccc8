"""What the package, pandas and matplotlib compute once per process, computed beforehand: commands find it in their copy."""

import functools
import json
from pathlib import Path

import typer.main

from storebench.cli.main import app
from storebench.datasets import synthetic
from storebench.formats.origin import code_facts
from storebench.probes.environment import environment
from storebench.record.lines import record_from_dict
from storebench.report.content import content_of
from storebench.report.page import markdown
from tests.support.kept_data import keep_real_data, read_real_data

ROOT = Path(__file__).resolve().parents[2]
RECORDS = ROOT / "results" / "reference" / "codecs" / "records.jsonl"


def warm_up() -> None:
    """Fill what lives as long as a process, and let typer make its tree of commands once."""
    code_facts("lmdb")
    environment(ROOT)
    draw_fields()
    keep_real_data()
    read_real_data()
    lines = RECORDS.read_text(encoding="utf-8").splitlines()[:2]
    nowhere = Path("run") / RECORDS.name  # without step tables, whose readers take memory
    markdown(
        content_of([(record_from_dict(json.loads(line), where=str(RECORDS)), nowhere) for line in lines])
    )
    typer.main.get_command = functools.cache(typer.main.get_command)
    typer.main.get_command(app)


def draw_fields() -> None:
    """Draw the large fields that synthetic photographs are cut from: half a second for each process that needs them."""
    synthetic._grain()
    for number in range(synthetic.FIELD_COUNT):
        for kind in (synthetic.photograph, synthetic.thumbnail):
            synthetic._field(number, kind.keywords["power"])
