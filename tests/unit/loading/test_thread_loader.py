"""What only threads promise: one memory, one opening at a time, one torch thread, and their own tracebacks."""

import ast
import signal
import threading

import pytest
import torch

from storebench.loading.batch import ReaderReport
from storebench.loading.loader import get_loader
from storebench.testing.stores import COUNT
from tests.support.loading_tools import MakeJob, MakePlan, StoreOf, assert_served, drained

pytestmark = [pytest.mark.timeout(120), pytest.mark.usefixtures("nothing_left")]


@pytest.mark.usefixtures("odd")
class TestThreads:
    def test_pixels_in_memory_are_held_once(
        self, make_job: MakeJob, make_plan: MakePlan, store_of: StoreOf
    ) -> None:
        """Readers that hold the whole dataset are shared by the threads, and closed once."""
        with get_loader("threads")(make_job("odd+raw:shared"), workers=3) as loader:
            assert len(loader.open()) == 1
            batches = drained(loader, make_plan())
            assert_served(batches, make_plan(), store_of("memory+raw"))
            assert {batch.worker for batch in batches} == {0, 1, 2}
            (closed,) = loader.close()
            assert closed.notes["closed"] == "0"  # the notes are taken just before
            assert sorted(ast.literal_eval(closed.notes["asked"])) == list(range(COUNT))

    def test_readers_are_opened_and_closed_one_at_a_time(self, make_job: MakeJob) -> None:
        """Formats need not expect more of one process: LMDB opens a file only once in it."""
        with get_loader("threads")(make_job("odd+raw:exclusive"), workers=3) as loader:
            assert len(loader.open()) == 3
            assert len(loader.close()) == 3

    def test_producers_use_one_torch_thread_and_the_loop_as_before(
        self, make_job: MakeJob, make_plan: MakePlan
    ) -> None:
        """Two teams of threads wait for each other; for a gather that cost a factor of seven."""
        before = torch.get_num_threads()
        torch.set_num_threads(2)
        try:
            with get_loader("threads")(make_job("odd+raw:computing"), workers=2) as loader:
                loader.open()
                drained(loader, make_plan())
                started_later: list[int] = []
                later = threading.Thread(target=lambda: started_later.append(torch.get_num_threads()))
                later.start()
                later.join()
                assert [one.notes["threads"] for one in loader.close()] == ["{1}", "{1}"]
            assert (torch.get_num_threads(), started_later) == (2, [2])
        finally:
            torch.set_num_threads(before)

    def test_an_interrupt_while_an_epoch_is_left_spoils_no_later_answer(
        self, make_job: MakeJob, make_plan: MakePlan
    ) -> None:
        """What the interrupted side was waiting for arrives after all, and is no answer to closing."""
        loader = get_loader("threads")(make_job("odd+raw:slow"), workers=1)
        loader.open()
        next(loader.epoch(make_plan(batch_size=4)))
        before = signal.signal(signal.SIGALRM, signal.default_int_handler)
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.005)  # a batch takes 20 ms
            with pytest.raises(KeyboardInterrupt):
                next(loader.epoch(make_plan(1)))
        finally:
            signal.signal(signal.SIGALRM, before)
        assert [type(one) for one in loader.close()] == [ReaderReport]

    def test_an_error_keeps_the_threads_own_traceback(self, make_job: MakeJob, make_plan: MakePlan) -> None:
        with get_loader("threads")(make_job("odd+raw:failing"), workers=2) as loader:
            loader.open()
            with pytest.raises(ValueError, match="nobody") as caught:
                drained(loader, make_plan())
        assert any(entry.name == "_fetch_into" for entry in caught.traceback)
