"""Resources of work between steps: summed over its pauses, and subtracted from the counters of the epoch."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest

from storebench.probes import spending
from storebench.probes.batch_io import BatchIo
from storebench.probes.spending import Spending
from storebench.results import Counters

WHOLE = Counters(
    device_read_bytes=10_000,
    block_device_read_bytes=50_000,
    major_faults=100,
    minor_faults=1_000,
    read_calls=500,
    voluntary_switches=60,
    involuntary_switches=40,
    cpu_user_s=9.0,
    cpu_system_s=3.0,
    peak_rss_bytes=77,
    read_amplification=2.0,
    reasons={"peak_rss_bytes": "planted"},
)
NOTHING = BatchIo(device_read_bytes=0, read_calls=0, major_faults=0, minor_faults=0, own_reads=0)


class PlantedKernel:
    """What the kernel and the meter count, reading by reading."""

    def __init__(self, readings: Sequence[BatchIo | None], usages: Sequence[float]) -> None:
        self._readings = iter(readings)
        self._usages = iter(usages)

    def read(self) -> BatchIo | None:
        return next(self._readings)

    def usage(self) -> dict[str, float]:
        """Return the same number for every counter of the process, scaled so that they can be told apart."""
        value = next(self._usages)
        return {
            "cpu_user_s": value,
            "cpu_system_s": value / 10,
            "voluntary_switches": 2 * value,
            "involuntary_switches": 3 * value,
        }


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch) -> Any:
    def plant(readings: Sequence[BatchIo | None], usages: Sequence[float]) -> Spending:
        kernel = PlantedKernel(readings, usages)
        monkeypatch.setattr(spending, "METER", kernel)
        monkeypatch.setattr(spending, "_usage", kernel.usage)
        return Spending()

    return plant


def io(device: int, calls: int, *, own: int = 0) -> BatchIo:
    return BatchIo(device_read_bytes=device, read_calls=calls, major_faults=1, minor_faults=2, own_reads=own)


def test_an_epoch_without_pauses_keeps_its_counters(planted: Any) -> None:
    assert planted([], []).taken_out(WHOLE, 1_000) is WHOLE


def test_two_pauses_are_subtracted(planted: Any) -> None:
    spent = planted([io(999, 999), io(1_000, 5), io(999, 999), io(3_000, 7)], [1.0, 1.5, 5.0, 6.0])
    for _ in range(2):
        with spent.counted():
            pass
    left = spent.taken_out(WHOLE, 3_000)
    assert (left.device_read_bytes, left.read_calls) == (6_000, 488)
    assert (left.major_faults, left.minor_faults) == (98, 996)
    assert (left.cpu_user_s, left.cpu_system_s) == pytest.approx((7.5, 2.85))
    assert (left.voluntary_switches, left.involuntary_switches) == (57, 35.5)
    assert spent.device_read_bytes == 4_000


def test_the_amplification_is_that_of_the_rest(planted: Any) -> None:
    spent = planted([NOTHING, io(4_000, 0)], [0.0, 0.0])
    with spent.counted():
        pass
    assert spent.taken_out(WHOLE, 3_000).read_amplification == 2.0
    assert spent.taken_out(WHOLE, 0).read_amplification is None
    unknown = dataclasses.replace(WHOLE, device_read_bytes=None)
    assert spent.taken_out(unknown, 3_000).read_amplification is None


def test_bytes_of_all_processes_cannot_be_divided(planted: Any) -> None:
    spent = planted([NOTHING, NOTHING], [0.0, 0.0])
    with spent.counted():
        pass
    left = spent.taken_out(WHOLE, 1)
    assert left.block_device_read_bytes is None
    assert set(left.reasons) == {"peak_rss_bytes", "block_device_read_bytes"}
    assert left.peak_rss_bytes == 77


def test_a_counter_that_the_kernel_does_not_show_stays_unknown(planted: Any) -> None:
    spent = planted([NOTHING, NOTHING], [0.0, 1.0])
    with spent.counted():
        pass
    assert spent.taken_out(dataclasses.replace(WHOLE, cpu_user_s=None), 1).cpu_user_s is None


def test_one_pause_that_could_not_be_counted_makes_all_unknown(planted: Any) -> None:
    spent = planted([NOTHING, None, NOTHING, io(1, 1)], [0.0, 1.0, 2.0, 3.0])
    for _ in range(2):
        with spent.counted():
            pass
    left = spent.taken_out(WHOLE, 1)
    assert (left.read_calls, left.cpu_user_s, left.read_amplification) == (None, None, None)
    assert spent.device_read_bytes is None


def test_reads_of_the_meter_itself_are_summed(planted: Any) -> None:
    spent = planted([io(0, 0, own=3), io(0, 0, own=4), None, io(0, 0, own=5)], [0.0, 0.0, 0.0, 0.0])
    for _ in range(2):
        with spent.counted():
            pass
    assert spent.own_reads == 12
