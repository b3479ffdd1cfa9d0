"""Watermarks, idleness and ends of a chain's producers, each of which counts alone."""

from __future__ import annotations

from typing import Any

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
