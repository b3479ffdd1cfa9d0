"""Watermarks, idleness and ends of a chain's producers, each of which counts alone."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from headrace.operators.watermarks import MAX_WATERMARK
from headrace.runtime.task.cells import Address
from headrace.runtime.task.chain import ChainInput


class ListeningHead:
    """Writes down what the head of a chain is told."""

    def __init__(self) -> None:
        self.told: list[Any] = []

    def watermark(self, time_ms: int) -> None:
        self.told.append(time_ms)

    def idle(self, is_idle: bool) -> None:
        self.told.append("idle" if is_idle else "awake")

    def end_input(self) -> None:
        self.told.append("end")


A, B, C = Address(0, 0, 0), Address(0, 1, 0), Address(5, 0, 0)


def chain_input(*producers: Address) -> tuple[ChainInput, list[Any]]:
    head = ListeningHead()
    return ChainInput(head, [(p.edge, p.producer) for p in producers]), head.told  # type: ignore[arg-type]


def test_the_watermark_is_the_smallest_of_all_producers_and_never_goes_back() -> None:
    chain, told = chain_input(A, B, C)
    chain.watermark(A, 10)
    chain.watermark(B, 5)
    assert told == []
    chain.watermark(C, 7)
    chain.watermark(B, 4)
    chain.watermark(B, 9)
    assert told == [5, 7]


def test_idle_producers_do_not_hold_the_others_back() -> None:
    chain, told = chain_input(A, B)
    chain.watermark(A, 10)
    chain.idle(B, True)
    assert told == [10]
    chain.idle(B, False)
    chain.watermark(A, 20)
    assert told == [10]
    chain.watermark(B, 15)
    assert told == [10, 15]


def test_idleness_is_passed_on_when_all_are_idle_and_taken_back_when_one_wakes() -> None:
    chain, told = chain_input(A, B)
    chain.idle(A, True)
    assert told == []
    chain.idle(B, True)
    chain.idle(A, False)
    assert told == ["idle", "awake"]


def test_a_watermark_wakes_its_producer_and_it_may_fall_asleep_again() -> None:
    chain, told = chain_input(A)
    chain.idle(A, True)
    chain.watermark(A, 3)
    chain.idle(A, True)
    assert told == ["idle", "awake", 3, "idle"]


def test_the_input_ends_with_its_last_producer_and_only_once() -> None:
    """An END that was in flight is put back after a restore, and the producer says it again."""
    chain, told = chain_input(A, B)
    chain.watermark(A, 4)
    chain.end(B)
    assert told == [4]
    chain.end(B)
    assert not chain.ended
    chain.end(A)
    chain.end(A)
    assert told == [4, "end"]
    assert chain.ended


# What follows are the behaviours that the tests of Flink's StatusWatermarkValve ask for.


def test_when_the_last_producer_goes_idle_time_reaches_the_furthest_of_them_before_idleness_is_passed_on() -> None:
    chain, told = chain_input(A, B, C)
    chain.watermark(A, 10)
    chain.watermark(B, 5)
    chain.watermark(C, 7)
    assert told == [5]
    chain.idle(A, True)
    chain.idle(C, True)
    assert told == [5], "the slowest is awake"
    chain.idle(B, True)
    assert told == [5, 10, "idle"]


def test_a_producer_that_goes_idle_no_longer_holds_back_and_nothing_is_flushed_while_others_are_awake() -> None:
    chain, told = chain_input(A, B, C)
    chain.watermark(A, 10)
    chain.watermark(B, 5)
    chain.watermark(C, 7)
    chain.idle(B, True)
    assert told == [5, 7]
    chain.idle(C, True)
    assert told == [5, 7, 10]
    chain.idle(A, True)
    assert told == [5, 7, 10, "idle"]


def test_after_the_flush_time_moves_on_only_beyond_it() -> None:
    chain, told = chain_input(A, B)
    chain.watermark(A, 10)
    chain.watermark(B, 5)
    chain.idle(A, True)
    chain.idle(B, True)
    chain.idle(B, False)
    chain.watermark(B, 8)
    assert told == [5, 10, "idle", "awake"]
    chain.watermark(B, 11)
    assert told == [5, 10, "idle", "awake", 11]


def test_producers_that_never_had_a_watermark_pass_on_idleness_alone() -> None:
    chain, told = chain_input(A, B)
    chain.idle(A, True)
    chain.idle(A, True)
    chain.idle(B, True)
    chain.idle(B, True)
    assert told == ["idle"]


def test_the_end_of_one_producer_is_not_the_time_of_the_idle_ones() -> None:
    """Flink lets time end there, and the records of those that wake up later are late."""
    chain, told = chain_input(A, B)
    chain.watermark(B, 5)
    chain.watermark(A, MAX_WATERMARK)
    assert told == [5]
    chain.idle(B, True)
    assert told == [5, "idle"]
    chain.watermark(B, 9)
    assert told == [5, "idle", "awake", 9]


def test_idleness_is_passed_on_when_the_only_one_awake_ends() -> None:
    chain, told = chain_input(A, B)
    chain.watermark(A, 4)
    chain.watermark(B, 3)
    chain.idle(B, True)
    assert told == [3, 4]
    chain.end(A)
    assert told == [3, 4, "idle"], "else this subtask would hold back time after it"


def test_two_inputs_are_flushed_apart_so_that_one_does_not_make_the_other_late() -> None:
    head = ListeningHead()
    chain = ChainInput(head, [(0, 0), (0, 1), (5, 0)], {0: 0, 5: 1})  # type: ignore[arg-type]
    chain.watermark(A, 20)
    chain.watermark(B, 10)
    chain.watermark(C, 5)
    assert head.told == [5]
    chain.idle(A, True)
    chain.idle(B, True)
    assert head.told == [5], "the second input is awake"
    chain.idle(C, True)
    assert head.told == [5, "idle"], "the time of the first input is not that of the second"
    chain.idle(A, False)
    assert head.told == [5, "idle", "awake", 20], "it had reached that before it went idle"


class Valve:
    """What Flink promises of one input: the least of those awake; the greatest of all when the last falls asleep."""

    def __init__(self, count: int) -> None:
        self.reached = [-(2**63)] * count
        self.awake = set(range(count))
        self.time = -(2**63)
        self.said: list[Any] = []

    def say(self, time_ms: int) -> None:
        if time_ms > self.time:
            self.time = time_ms
            self.said.append(time_ms)

    def watermark(self, who: int, time_ms: int) -> None:
        self.reached[who] = max(self.reached[who], time_ms)
        self.say(min(self.reached[p] for p in self.awake))

    def idle(self, who: int) -> None:
        self.awake.discard(who)
        self.say(min((self.reached[p] for p in self.awake), default=max(self.reached)))
        if not self.awake:
            self.said.append("idle")


STEPS = st.lists(st.tuples(st.integers(0, 2), st.one_of(st.none(), st.integers(0, 30))), max_size=20)


@given(STEPS)
def test_producers_that_do_not_wake_up_again_move_time_as_in_flink(steps: list[tuple[int, int | None]]) -> None:
    chain, told = chain_input(A, B, C)
    valve = Valve(3)
    for who, time_ms in steps:
        if who not in valve.awake:
            continue
        if time_ms is None:
            chain.idle((A, B, C)[who], True)
            valve.idle(who)
        else:
            chain.watermark((A, B, C)[who], time_ms)
            valve.watermark(who, time_ms)
    assert told == valve.said
