"""Operators with two inputs: each input has its method, and state and timers are shared by key."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from two_input_rig import BOTH, Rig

from headrace import (
    CoFlatMapFunction,
    CoMapFunction,
    CoProcessFunction,
    KeyedCoProcessFunction,
    ListStateDescriptor,
    OutputTag,
    Types,
    ValueStateDescriptor,
)
from headrace.errors import KeyedStateError, UserFunctionError
from headrace.operators.two_input import CoFlatMapOperator, CoMapOperator, CoProcessOperator, KeyedCoProcessOperator

ODD = OutputTag("odd")


class Named(CoMapFunction):
    def map1(self, value: Any) -> Any:
        return ("one", value)

    def map2(self, value: Any) -> Any:
        return ("two", value)


def test_each_input_of_a_co_map_has_its_own_method(tmp_path: Path) -> None:
    rig = Rig(lambda: CoMapOperator(Named()), tmp_path, flavour=None)
    rig.block(0, 0, [1, 2], timestamps=[10, 20])
    rig.block(0, 1, ["a"])
    rig.block(0, 0, [3])
    assert rig.out.timed == [(("one", 1), 10), (("one", 2), 20), (("two", "a"), None), (("one", 3), None)]


class Repeated(CoFlatMapFunction):
    def flat_map1(self, value: int) -> Iterator[int]:
        yield from [value] * value

    def flat_map2(self, value: int) -> list[int] | None:
        return [-value] if value else None


def test_each_input_of_a_co_flat_map_gives_any_number(tmp_path: Path) -> None:
    rig = Rig(lambda: CoFlatMapOperator(Repeated()), tmp_path, flavour=None)
    rig.block(0, 0, [2, 0])
    rig.block(0, 1, [0, 7])
    assert rig.out.values == [2, 2, -7]


class Sorted(CoProcessFunction):
    def process_element1(self, value: int, ctx: Any) -> Iterator[Any]:
        yield (ODD, value) if value % 2 else (value, ctx.timestamp())

    def process_element2(self, value: int, ctx: Any) -> Iterator[Any]:
        yield -value, ctx.timer_service().current_watermark()


def test_a_co_process_function_sees_time_and_side_outputs(tmp_path: Path) -> None:
    rig = Rig(lambda: CoProcessOperator(Sorted()), tmp_path, flavour=None)
    rig.watermark(5)
    rig.block(0, 0, [1, 2], timestamps=[10, 20])
    rig.block(0, 1, [3])
    assert rig.out.values == [(2, 20), (-3, 5)]
    assert rig.out.aside == {"odd": [1]}
    assert rig.out.watermarks == [5]


class Meeting(KeyedCoProcessFunction):
    """Gathers what comes from both sides under a key, and tells it ten later."""

    def open(self, runtime_context: Any) -> None:
        self.seen = runtime_context.get_list_state(ListStateDescriptor("seen", Types.STRING()))
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))

    def process_element1(self, value: str, ctx: Any) -> None:
        self._take(f"1{value}", ctx)

    def process_element2(self, value: str, ctx: Any) -> None:
        self._take(f"2{value}", ctx)

    def _take(self, text: str, ctx: Any) -> None:
        self.seen.add(text)
        self.count.update((self.count.value() or 0) + 1)
        ctx.timer_service().register_event_time_timer(ctx.timestamp() + 10)

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        yield timestamp, ctx.get_current_key(), list(self.seen), self.count.value()


@pytest.mark.parametrize("flavour", BOTH)
def test_both_inputs_share_the_state_and_the_timers_of_a_key(tmp_path: Path, flavour: str) -> None:
    rig = Rig(lambda: KeyedCoProcessOperator(Meeting()), tmp_path, flavour=flavour, parallelism=2)
    rig.feed(0, "x", key="a", at=1)
    rig.feed(1, "y", key="a", at=1)
    rig.feed(1, "z", key="b", at=2)
    rig.watermark(10)
    assert rig.out.values == []
    rig.watermark(20)
    assert sorted(rig.out.values) == [(11, "a", ["1x", "2y"], 2), (12, "b", ["2z"], 1)]
    rig.close()


@pytest.mark.parametrize("flavour", BOTH)
@pytest.mark.parametrize("widths", [(1, 1), (2, 3), (3, 1), (2, 2)])
def test_what_both_inputs_left_under_a_key_survives_a_restart_at_any_width(
    tmp_path: Path, flavour: str, widths: tuple[int, int]
) -> None:
    rig = Rig(lambda: KeyedCoProcessOperator(Meeting()), tmp_path, flavour=flavour, parallelism=widths[0])
    for key in range(20):
        rig.feed(0, "x", key=key, at=key)
        rig.feed(1, "y", key=key, at=key)
    rig = rig.restarted(rig.snapshot(), parallelism=widths[1])
    for key in range(20):
        rig.feed(1, "z", key=key, at=key)
    rig.watermark(1_000)
    assert sorted(rig.out.values) == [(key + 10, key, ["1x", "2y", "2z"], 3) for key in range(20)]
    rig.close()


class CoTimers(CoProcessFunction):
    """No keyed function, but on keyed streams it may use keys all the same, as in Flink."""

    def process_element1(self, value: int, ctx: Any) -> None:
        ctx.timer_service().register_event_time_timer(value)

    def process_element2(self, value: int, ctx: Any) -> None:
        ctx.timer_service().delete_event_time_timer(value)

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[int]:
        yield timestamp


def test_a_co_process_function_on_keyed_streams_has_timers_which_either_input_sets_and_deletes(tmp_path: Path) -> None:
    rig = Rig(lambda: KeyedCoProcessOperator(CoTimers()), tmp_path)
    for time in (1, 2, 3):
        rig.feed(0, time, key="k")
    rig.feed(1, 2, key="k")
    rig.feed(1, 3, key="another key")
    rig.watermark(10)
    assert rig.out.values == [1, 3]


def test_timers_without_keys_are_refused_by_name(tmp_path: Path) -> None:
    rig = Rig(lambda: CoProcessOperator(CoTimers()), tmp_path, flavour=None)
    with pytest.raises(UserFunctionError, match="timers belong to a key") as caught:
        rig.feed(0, 1)
    assert isinstance(caught.value.__cause__, KeyedStateError)


class Failing(CoMapFunction):
    def map1(self, value: Any) -> Any:
        return value

    def map2(self, value: Any) -> Any:
        raise ValueError("no")


def test_a_failure_in_the_second_input_names_record_and_line_and_leaves_the_first_input_as_it_was(
    tmp_path: Path,
) -> None:
    rig = Rig(lambda: CoMapOperator(Failing()), tmp_path, flavour=None)
    with pytest.raises(UserFunctionError, match=r"failed on record 'bad'.*ValueError: no"):
        rig.feed(1, "bad")
    rig.feed(0, "good")
    assert rig.out.values == ["good"]
