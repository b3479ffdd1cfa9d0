"""How many records a source is asked for at once."""

from __future__ import annotations

from headrace.runtime.task.poll_size import AIM_S, FIRST, MOST, MOST_WAIT, PollSize


def settled(cost_s: float, *, by_clock: float = 1.0) -> int:
    """The limit after many polls in which each record takes `cost_s` of the processor, and so many times that by the
    clock."""
    size = PollSize()
    for _ in range(60):
        size.polled(size.limit, size.limit * cost_s, size.limit * cost_s * by_clock)
    return size.limit


def test_polls_grow_or_shrink_until_one_takes_what_it_may():
    assert abs(settled(5e-6) - AIM_S / 5e-6) <= 2
    assert abs(settled(1e-3) - AIM_S / 1e-3) <= 2


def test_a_busy_machine_does_not_make_polls_smaller():
    assert settled(5e-6, by_clock=3.0) == settled(5e-6)


def test_a_poll_that_waits_much_longer_than_it_works_is_made_smaller():
    assert settled(5e-6, by_clock=40.0) < settled(5e-6) / (40.0 / MOST_WAIT) + 2


def test_a_limit_is_never_zero_nor_without_end():
    assert settled(10.0) == 1
    assert settled(1e-12) == MOST


def test_a_poll_too_short_for_the_clock_says_nothing():
    size = PollSize()
    size.polled(100, 0.0, 0.0)
    assert size.limit == FIRST
