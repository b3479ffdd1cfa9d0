"""The timer queue that both backends use."""

from __future__ import annotations

import random

from headrace.state.timers import HeapTimerQueue


def test_timers_of_one_time_fire_in_the_order_of_registration_whatever_their_keys() -> None:
    queue = HeapTimerQueue()
    keys = ["b", 2, b"a", ("x",), "a", 1]
    for key in keys:
        queue.register(5, key)
    assert [queue.pop_due(5) for _ in keys] == [(5, key, b"") for key in keys]


def test_deleting_as_many_timers_as_are_registered_does_not_let_the_heap_grow() -> None:
    queue = HeapTimerQueue()
    queue.register(10**9, "keeps")
    for i in range(50_000):
        queue.register(i + 10, i % 7)
        queue.delete(i + 10, i % 7)
    assert len(queue) == 1
    assert queue.heap_size < 2_000
    assert queue.peek() == 10**9


def test_a_timer_that_is_deleted_and_registered_again_fires_once() -> None:
    queue = HeapTimerQueue()
    for _ in range(3):
        assert queue.register(1, "a")
        assert queue.delete(1, "a")
    queue.register(1, "a")
    assert queue.pop_due(1) == (1, "a", b"")
    assert queue.pop_due(1) is None
    assert queue.peek() is None


def test_a_frozen_view_does_not_see_later_changes() -> None:
    queue = HeapTimerQueue([(3, "c", b""), (1, "a", b"")])
    frozen = queue.freeze()
    queue.register(2, "b")
    queue.pop_due(1)
    assert list(frozen) == [(1, "a", b""), (3, "c", b"")]
    assert list(queue) == [(2, "b", b""), (3, "c", b"")]


def test_random_operations_agree_with_a_sorted_set() -> None:
    seed = random.randrange(2**32)
    print("seed", seed)
    dice = random.Random(seed)
    queue, model = HeapTimerQueue(), set()
    for _ in range(5_000):
        timer = (dice.randrange(200), dice.randrange(20), b"w" * dice.randrange(2))
        match dice.randrange(4):
            case 0 | 1:
                assert queue.register(*timer) == (timer not in model)
                model.add(timer)
            case 2:
                assert queue.delete(*timer) == (timer in model)
                model.discard(timer)
            case 3:
                due = queue.pop_due(timer[0])
                earliest = min((t for t, _, _ in model), default=1000)
                assert (due is None) == (earliest > timer[0])
                if due is not None:
                    assert due[0] == earliest
                    model.remove(due)
        assert queue.peek() == min((t for t, _, _ in model), default=None)
        assert len(queue) == len(model)
