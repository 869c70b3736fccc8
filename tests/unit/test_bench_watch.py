"""What a run says of each replicate while it goes on."""

import dataclasses

import pytest

from storebench.cli.progress import StderrWatcher, outcome
from storebench.results import CacheFacts, CacheVerdict, Cell, Portion, Record
from storebench.settings.words import CacheState

CELL = Cell.of_fields(
    dataset="mnist",
    backend="lmdb",
    format="lmdb",
    codec="raw",
    reader="get",
    batch_size=4,
    model="none",
    cache="cold",
)
RECORD = Record(
    storebench_version="0", run_id="r", cell=CELL, replicate=0, epoch=0, started_utc="", samples_per_s=1900.0,
    steps=4, cache=CacheFacts(
        requested=CacheState.COLD, method="", resident_frac_before=0.0, resident_frac_after=1.0, verdict=CacheVerdict.VERIFIED
    ),
)  # fmt: skip
STEADY = Portion(
    first_step=0, steps=1, samples=4, seconds=1.0, samples_per_s=660.0, payload_bytes=1,
    data_wait_s=1.0, h2d_s=0.0, compute_s=0.0, fetch_s=1.0, decode_s=0.0, prep_s=0.0, handover_s=0.0,
)  # fmt: skip


@pytest.mark.parametrize(
    ("portion", "said"),
    [
        (None, "epoch 0: cold start 1,900 samples/s, "),
        (STEADY, "epoch 0: steady 660 samples/s (whole epoch 1,900 samples/s), "),
    ],
)
def test_a_rate_is_that_of_a_cold_start_or_of_the_steady_steps(portion: Portion | None, said: str) -> None:
    assert outcome(dataclasses.replace(RECORD, portion=portion)).startswith(said)


def test_the_end_of_the_time_budget_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    StderrWatcher().ended(8)
    assert "no further round after 8: another one would not fit into the time" in capsys.readouterr().err
