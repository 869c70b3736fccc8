"""The limit of real runs: the part without which the loop would gain most."""

from pathlib import Path

import pytest

from storebench.report.analysis import load_results
from storebench.report.bottleneck import bottlenecks
from storebench.report.cells import summarise
from tests.support.harness_tools import Bench

MANY = ("--dataset", "imagenet", "--synthetic", "--limit", "240")
SMALL = ("--dataset", "mnist", "--synthetic", "--limit", "1600")


@pytest.mark.parametrize(
    ("options", "limit"),
    [
        (("jpeg", *MANY, "--workers", "2", "--batch-size", "8", "--compute", "none"), "decode"),
        (("jpeg", *MANY, "--workers", "8", "--batch-size", "4", "--compute", "none"), "decode"),
        (("jpeg", *MANY, "--workers", "2", "--batch-size", "8", "--compute", "emulated:40"), "compute"),
        (
            ("memory:native", *SMALL, "--workers", "2", "--batch-size", "8", "--compute", "none"),
            "handoff",
        ),
        (("jpeg", *MANY, "--batch-size", "8", "--compute", "none"), "decode"),
    ],
)
def test_the_limit_of_a_run_is_the_part_without_which_it_gains_most(
    options: tuple[str, ...], limit: str, bench: Bench, tmp_path: Path
) -> None:
    done = bench.cli(
        "run",
        *options,
        "--cache",
        "warm",
        "--threads",
        "1",
        "--stores",
        bench.stores,
        "--out",
        tmp_path / "run",
    )
    assert done.returncode == 0, done.stderr
    (verdict,) = bottlenecks(summarise(load_results(tmp_path / "run"))).values()
    assert (str(verdict.bound), verdict.gain > 1.25) == (limit, True), done.stdout
    assert limit in done.stdout
