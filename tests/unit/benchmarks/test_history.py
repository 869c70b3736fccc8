"""The history of the suite: sessions become a line, and a step is found where one was planted, and nowhere else."""

import json
import random
from pathlib import Path

import pytest

from benchmarks.history import append, plots, steps


def test_sessions_become_a_line(tmp_path: Path) -> None:
    pytest.importorskip("ruptures")
    for number, median in enumerate([0.1, 0.3, 0.2]):
        content = {
            "datetime": "2026-01-01T03:17:00",
            "commit_info": {"id": "c" * 40},
            "machine_info": {"cpu": {"brand_raw": "Planted CPU"}},
            "benchmarks": [{"name": "test_read[lmdb]", "stats": {"median": median}}],
        }
        (tmp_path / f"session-{number}.json").write_text(json.dumps(content))
    for _ in range(2):
        append(tmp_path, tmp_path / "history.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "history.jsonl").read_text().splitlines()]
    assert [line["median_s"] for line in lines] == [{"test_read[lmdb]": 0.2}] * 2
    (ax,) = plots(tmp_path / "history.jsonl")
    assert ax.lines[0].get_ydata().tolist() == [200.0, 200.0]


@pytest.mark.parametrize(
    ("planted", "found"),
    [
        ([1.0] * 40, []),
        ([1.0] * 20 + [1.2] * 20, [20]),
        ([1.0] * 10 + [1.3] * 15 + [0.9] * 15, [10, 25]),
        ([1.0, 1.0, 1.3, *[1.0] * 9] * 5, []),
        ([1, 2], []),
    ],
    ids=["none", "one", "two", "slow nights", "too few nights"],
)
def test_a_step_is_found_where_it_is(planted: list[float], found: list[int]) -> None:
    pytest.importorskip("ruptures")
    noise = random.Random(0)
    assert steps([level * noise.gauss(1, 0.02) for level in planted]) == found
