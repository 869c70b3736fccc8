"""One thread: it makes batches ahead of a loop that computes, and leaves them to a loop that does not."""

import time

import numpy as np
import pytest

from storebench.loading import threads
from storebench.loading.batch import LOOP_WORKER
from storebench.loading.loader import get_loader
from storebench.loading.worker_queues import SLOTS
from tests.support.loading_tools import MakeJob, MakePlan, StoreOf, assert_served, copied, drained

pytestmark = [pytest.mark.timeout(120), pytest.mark.usefixtures("nothing_left")]

ALWAYS_SHORT, NEVER_SHORT = 10**12, -1
A_LONG_TIME_NS = 10**12


@pytest.fixture
def every_step_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "SHORT_STEP_NS", ALWAYS_SHORT)


@pytest.mark.parametrize("told", [True, False])
def test_a_pause_of_the_loop_is_no_part_of_its_step(
    told: bool, make_job: MakeJob, make_plan: MakePlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop goes on making batches itself where it paused only to keep samples for the proof."""
    monkeypatch.setattr(threads, "SHORT_STEP_NS", 50_000_000)
    ahead = threads.SHORT_STEPS + 1 + SLOTS
    with get_loader("threads")(make_job(), workers=1) as loader:
        loader.open()
        own = []
        for batch in loader.epoch(make_plan(batch_size=2, max_steps=ahead + 4)):
            own.append(batch.worker == LOOP_WORKER)
            time.sleep(0.06)
            if told:
                loader.paused(A_LONG_TIME_NS)  # whatever else a busy machine did to this step
    assert own[ahead:] == [told] * 4


@pytest.mark.usefixtures("every_step_is_short")
class TestShortSteps:
    def test_the_loop_makes_the_batches_after_a_few(
        self, make_job: MakeJob, make_plan: MakePlan, store_of: StoreOf
    ) -> None:
        with get_loader("threads")(make_job(), workers=1) as loader:
            loader.open()
            for number in range(2):
                plan = make_plan(number, batch_size=2)
                batches = drained(loader, plan)
                assert_served(batches, plan, store_of("lmdb"))
                own = [batch.worker == LOOP_WORKER for batch in batches]
                ahead = threads.SHORT_STEPS + 1 + SLOTS
                assert not any(own[: threads.SHORT_STEPS]), "the thread begins"
                assert all(own[ahead:]), "what it had made is served, and then the loop goes on"
            (closed,) = loader.close()
        assert int(closed.notes["made_by_loop"].split()[0]) >= 2 * (len(plan.batches) - ahead)

    def test_they_are_made_in_one_buffer(self, make_job: MakeJob, make_plan: MakePlan) -> None:
        with get_loader("threads")(make_job(), workers=1) as loader:
            loader.open()
            batches = loader.epoch(make_plan(batch_size=2))
            places = {batch.pixels.data_ptr() for batch in batches if batch.worker == LOOP_WORKER}
        assert len(places) == 1

    def test_several_threads_go_on_by_themselves(self, make_job: MakeJob, make_plan: MakePlan) -> None:
        """They may be wanted for their cores."""
        with get_loader("threads")(make_job(), workers=2) as loader:
            loader.open()
            assert {batch.worker for batch in drained(loader, make_plan(batch_size=2))} == {0, 1}

    @pytest.mark.usefixtures("odd")
    def test_an_error_comes_in_its_turn(self, make_job: MakeJob, make_plan: MakePlan) -> None:
        plan = make_plan(batch_size=2)
        bad = next(step for step, indices in enumerate(plan.batches) if 40 in indices)
        assert bad > threads.SHORT_STEPS + 1 + SLOTS, "the loop must be making batches by then"
        with get_loader("threads")(make_job("odd+raw:failing"), workers=1) as loader:
            loader.open()
            batches = loader.epoch(plan)
            for _ in range(bad):
                next(batches)
            with pytest.raises(ValueError, match="nobody expected"):
                next(batches)
            assert len(drained(loader, make_plan(max_steps=2))) == 2

    def test_an_error_that_the_thread_has_met_already_comes_in_its_turn(
        self, make_job: MakeJob, make_plan: MakePlan
    ) -> None:
        """It lies among what was made ahead when the loop takes over."""
        plan = make_plan(batch_size=2)
        ahead = threads.SHORT_STEPS + 2
        plan.batches[ahead] = np.array([10**6, 0])
        with get_loader("threads")(make_job(), workers=1) as loader:
            loader.open()
            batches = loader.epoch(plan)
            for _ in range(ahead):
                next(batches)
            with pytest.raises(IndexError):
                next(batches)

    @pytest.mark.parametrize("taken", [1, 5, 8, 12])
    def test_an_epoch_may_be_left_at_any_time(
        self, taken: int, make_job: MakeJob, make_plan: MakePlan, store_of: StoreOf
    ) -> None:
        with get_loader("threads")(make_job(), workers=1) as loader:
            loader.open()
            left = loader.epoch(make_plan(0, batch_size=2))
            for _ in range(taken):
                next(left)
            assert_served(drained(loader, make_plan(1)), make_plan(1), store_of("lmdb"))
            left = loader.epoch(make_plan(2, batch_size=2))
            for _ in range(taken):
                next(left)


def test_a_loop_that_computes_has_them_made_ahead(
    make_job: MakeJob, make_plan: MakePlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threads, "SHORT_STEP_NS", NEVER_SHORT)
    with get_loader("threads")(make_job(), workers=1) as loader:
        loader.open()
        assert {batch.worker for batch in drained(loader, make_plan(batch_size=2))} == {0}
        (closed,) = loader.close()
    assert closed.notes["made_by_loop"] == "0 batches"


def test_what_was_made_ahead_is_served_before_the_thread_goes_on(
    make_job: MakeJob, make_plan: MakePlan, store_of: StoreOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop takes over, and at once a step is long again."""
    plan = make_plan(batch_size=2)
    batches = []
    monkeypatch.setattr(threads, "SHORT_STEP_NS", ALWAYS_SHORT)
    with get_loader("threads")(make_job(), workers=1) as loader:
        loader.open()
        for step, batch in enumerate(loader.epoch(plan)):
            batches.append(copied(batch))
            if step < threads.SHORT_STEPS:
                time.sleep(0.05)  # so the thread is as far ahead as it can be
            else:
                monkeypatch.setattr(threads, "SHORT_STEP_NS", NEVER_SHORT)
    assert_served(batches, plan, store_of("lmdb"))
    assert {batch.worker for batch in batches} == {0}
