"""Which requests are the loop, and which loader a verdict is about, of loops as they are written."""

import itertools
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

import storebench
from storebench.profiling import recorder, torch_loaders
from storebench.profiling.loops import Loops
from storebench.profiling.profile_report import home_of
from storebench.settings.words import Limit


class Photos(Dataset[Any]):
    def __init__(self, count: int, sleep_s: float) -> None:
        self.count, self.sleep_s = count, sleep_s

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(self.sleep_s)
        return torch.zeros(1)


class Slow(Photos):
    """Another class, which names the loader."""


class Odd(DataLoader[Any]):
    """A loader of which nothing may be called."""

    def __eq__(self, other: object) -> bool:
        raise AssertionError

    def __hash__(self) -> int:
        raise AssertionError

    def __len__(self) -> int:
        raise AssertionError


def ahead(batches: Iterator[Any]) -> Iterator[Any]:
    """Read batches ahead in a thread."""
    given: queue.Queue[Any] = queue.Queue(4)

    def fill() -> None:
        for batch in batches:
            given.put(batch)
        given.put(None)

    threading.Thread(target=fill, daemon=True).start()
    return iter(given.get, None)


class DataLoaderX(DataLoader[Any]):
    def __iter__(self) -> Any:
        return ahead(super().__iter__())


@pytest.fixture
def loops(monkeypatch: pytest.MonkeyPatch) -> Loops:
    """Watch the loaders of a test alone, as those of a script."""
    loops = Loops()
    loops.begin_script()
    monkeypatch.setattr(torch_loaders, "loops", loops)
    return loops


def step() -> None:
    time.sleep(0.002)


def zipped(fast: Any, slow: Any) -> None:
    for _ in zip(fast, slow, strict=True):
        step()


def zipped_slow_first(fast: Any, slow: Any) -> None:
    zipped(slow, fast)


def validated_inside(fast: Any, slow: Any) -> None:
    for place, _ in enumerate(itertools.chain(fast, fast)):
        step()
        if place % 10 == 9:
            for _ in itertools.islice(slow, 5):
                step()


def validated_after(fast: Any, slow: Any) -> None:
    for _ in range(2):
        for loader in (fast, slow):
            for _ in loader:
                step()


def nested(fast: Any, slow: Any) -> None:
    for place, _ in enumerate(slow):
        for _ in fast if place % 10 == 0 else ():
            step()


@pytest.mark.parametrize("loop", [zipped, zipped_slow_first, validated_inside, validated_after, nested])
@pytest.mark.parametrize(("kind", "all_ns"), [(DataLoader, recorder.ALL_NS), (Odd, 0)])
def test_the_loader_whose_waits_cost_most_is_named(
    loop: Callable[[Any, Any], None], kind: Any, all_ns: int, loops: Loops, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder, "ALL_NS", all_ns)
    fast, slow = kind(Photos(24, 0.0), batch_size=1), kind(Slow(24, 0.02), batch_size=1)
    loop(fast, slow)
    verdict = loops.verdict()
    assert verdict is not None
    report, named = verdict
    assert report.loader.endswith(", Slow")
    assert report.bound is not Limit.COMPUTE
    assert report.wait_frac > 0.5
    assert next(iter(report.others_s)).endswith(", Photos")
    assert report.script_frac is not None
    assert 0.1 < report.script_frac <= 1.0
    (other,) = [other for other in loops.recorders if other is not named]
    assert other.looped_ns < other.waited_ns + named.waited_ns  # waits for one are no loop of the other


def test_a_loader_made_anew_for_each_epoch_is_one(loops: Loops) -> None:
    for _ in range(3):
        loader = Odd(Photos(8, 0.0), batch_size=2)
        for _ in loader:
            pass
        del loader
    assert [recorder.epochs for recorder in loops.recorders] == [3]


@pytest.mark.parametrize("is_begun_there", [False, True])
@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("is_slow", [False, True])
def test_around_a_thread_that_reads_ahead_the_loop_is_judged(
    is_begun_there: bool, workers: int, is_slow: bool, loops: Loops
) -> None:
    loader = DataLoader(Photos(60, 0.04 if is_slow else 0.0), batch_size=1, num_workers=workers)
    for _ in ahead(loader if is_begun_there else iter(loader)):  # type: ignore[arg-type]
        time.sleep(0.001 if is_slow else 0.04)
    verdict = loops.verdict()
    assert verdict is not None
    assert (verdict[0].bound is Limit.COMPUTE) is not is_slow
    assert (verdict[0].wait_frac > 0.5) is is_slow


def test_a_loop_in_a_thread_is_a_loop(loops: Loops) -> None:
    def train() -> None:
        for _ in DataLoader(Photos(40, 0.0), batch_size=1):
            time.sleep(0.02)

    thread = threading.Thread(target=train)
    thread.start()
    thread.join()
    verdict = loops.verdict()
    assert verdict is not None
    assert verdict[0].bound is Limit.COMPUTE


def test_around_a_thread_that_reads_ahead_the_loop_is_seen() -> None:
    profiled = storebench.profile(DataLoaderX(Photos(40, 0.002), batch_size=1), show=False)
    for _ in profiled:
        time.sleep(0.02)
    report = profiled.report()
    assert report.steps == 40
    assert report.bound is Limit.COMPUTE
    assert report.unseen == ("the inside of the loader (a thread reads its batches ahead)",)


def test_beside_a_wrapped_loader_others_are_no_loop() -> None:
    slow = DataLoader(Photos(30, 0.02), batch_size=1)
    profiled = storebench.profile(DataLoader(Photos(30, 0.0), batch_size=1), show=False)
    for _ in zip(profiled, slow, strict=True):
        step()
    report = profiled.report()
    assert report.elsewhere_s > 0.02 > report.loop_s


def test_after_a_profile_no_loader_is_watched() -> None:
    loader = DataLoader(Photos(4, 0.0), batch_size=1)
    for _ in storebench.profile(DataLoader(Photos(4, 0.0), batch_size=1), show=False):
        assert type(iter(loader)).__mro__[1].__module__ == torch_loaders.__name__
        break
    for _ in storebench.profile(loader, show=False):
        pass
    assert type(iter(loader)) is torch.utils.data.dataloader._SingleProcessDataLoaderIter


def test_an_iterator_for_each_step_is_the_start_of_epochs(loops: Loops) -> None:
    loader = DataLoader(Photos(8, 0.001), batch_size=1, num_workers=1)
    for _ in range(8):
        next(iter(loader))
        step()
    verdict = loops.verdict()
    assert verdict is not None
    assert verdict[0].bound is Limit.STARTUP, str(verdict[0])


def test_the_folder_is_that_of_nearly_all_images() -> None:
    images = {f"/data/images/{kind}/{number}.JPG": 1 for kind in "ab" for number in range(10)}
    assert home_of(Counter(images | {"/data/large.jpg": 1, "/data/lists.csv": 40})) == (
        "/data/images",
        ".jpg",
    )
