"""A worker takes items without anybody waiting, works on them in order, and ends whole or is turned off."""

from __future__ import annotations

import threading

import pytest
from waiting import patient

from headway.runs.log_worker import Worker

ENOUGH_S = patient(30)


def test_items_are_worked_on_in_order_and_the_end_comes_last() -> None:
    done: list[object] = []
    worker = Worker[int]("counts", done.append, at_end=lambda: done.append("end"))
    assert not worker.has_begun
    for number in range(100):
        worker.put(number)
    worker.close()
    assert worker.has_ended(ENOUGH_S)
    assert done == [*range(100), "end"]


def test_one_that_never_began_has_ended() -> None:
    worker = Worker[int]("nothing", print)
    worker.close()
    assert worker.has_ended(0.0)


def test_one_that_is_turned_off_hands_back_what_waited_and_takes_nothing_more() -> None:
    begun, go_on = threading.Event(), threading.Event()

    def work(number: int) -> None:
        begun.set()
        go_on.wait(ENOUGH_S)

    worker = Worker[int]("slow", work)
    for number in range(3):
        worker.put(number)
    assert begun.wait(ENOUGH_S)
    assert worker.turn_off() == [1, 2]
    assert worker.turn_off() is None, "once"
    worker.put(3)
    assert len(worker) == 0
    go_on.set()
    assert worker.has_ended(ENOUGH_S)


def test_a_pause_lasts_no_longer_than_the_worker() -> None:
    paused = threading.Event()

    def work(number: int) -> None:
        paused.set()
        worker.pause(ENOUGH_S)

    worker = Worker[int]("pauses", work)
    worker.put(0)
    assert paused.wait(ENOUGH_S)
    worker.close()
    assert worker.has_ended(ENOUGH_S / 2)


def test_without_a_further_thread_whoever_puts_something_hears_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(RuntimeError, match="can't start"):
        Worker[int]("refused", print).put(1)
