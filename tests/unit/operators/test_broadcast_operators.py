"""A stream that meets a broadcast: rules change at run time, all copies alike, and only on their own side."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from two_input_rig import BOTH, Rig

from headrace import (
    BroadcastProcessFunction,
    KeyedBroadcastProcessFunction,
    MapStateDescriptor,
    Types,
    ValueStateDescriptor,
)
from headrace.errors import JobDefinitionError, KeyedStateError, ReadOnlyStateError, UserFunctionError
from headrace.operators.broadcast import BroadcastOperator, KeyedBroadcastOperator

LIMITS = MapStateDescriptor("limits", Types.STRING(), Types.LONG())
OTHER = MapStateDescriptor("other", Types.STRING(), Types.LONG())
TOTAL = ValueStateDescriptor("total", Types.LONG())


class Limits(BroadcastProcessFunction):
    """Passes amounts above every limit there is; None as a limit takes it away."""

    def process_element(self, value: int, ctx: Any) -> Iterator[Any]:
        broken = [name for name, limit in ctx.get_broadcast_state(LIMITS).items() if value > limit]
        if broken:
            yield value, sorted(broken)

    def process_broadcast_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        name, limit = value
        limits = ctx.get_broadcast_state(LIMITS)
        if limit is None:
            del limits[name]
        else:
            limits[name] = limit
        yield "now", sorted(limits)


def test_a_rule_takes_effect_from_the_record_behind_it_on_in_every_subtask(tmp_path: Path) -> None:
    rig = Rig(lambda: BroadcastOperator(Limits(), (LIMITS,)), tmp_path, flavour=None, parallelism=2)
    rig.feed(0, 100)
    rig.broadcast(("high", 50))
    rig.feed(0, 100)
    rig.feed(0, 100)
    rig.broadcast(("low", 10))
    rig.broadcast(("high", None))
    rig.feed(0, 20)
    assert [v for v in rig.out.values if v[0] != "now"] == [(100, ["high"]), (100, ["high"]), (20, ["low"])]
    assert [v for v in rig.out.values if v[0] == "now"][-2:] == [("now", ["low"])] * 2


@pytest.mark.parametrize("widths", [(2, 2), (2, 3), (3, 1)])
def test_rules_survive_a_restart_at_any_width(tmp_path: Path, widths: tuple[int, int]) -> None:
    rig = Rig(lambda: BroadcastOperator(Limits(), (LIMITS,)), tmp_path, flavour=None, parallelism=widths[0])
    rig.broadcast(("high", 50))
    rig.broadcast(("low", 10))
    rig = rig.restarted(rig.snapshot(), parallelism=widths[1])
    rig.out.values.clear()
    for _ in range(widths[1]):
        rig.feed(0, 20)
    assert rig.out.values == [(20, ["low"])] * widths[1]


class Meddler(BroadcastProcessFunction):
    """Tries to change rules where they may only be read."""

    def __init__(self, how: Any) -> None:
        self.how = how

    def process_element(self, value: Any, ctx: Any) -> None:
        self.how(ctx.get_broadcast_state(LIMITS))

    def process_broadcast_element(self, value: Any, ctx: Any) -> None:
        ctx.get_broadcast_state(LIMITS).put_all(dict([value]))


def _delete(state: Any) -> None:
    del state["a"]


def _set(state: Any) -> None:
    state["a"] = 2


@pytest.mark.parametrize(
    "how",
    [
        lambda state: state.put("a", 2),
        lambda state: state.put_all({"a": 2}),
        lambda state: state.remove("a"),
        lambda state: state.clear(),
        _set,
        _delete,
    ],
    ids=["put", "put_all", "remove", "clear", "setitem", "delitem"],
)
def test_broadcast_state_cannot_be_changed_on_the_other_side(tmp_path: Path, how: Any) -> None:
    rig = Rig(lambda: BroadcastOperator(Meddler(how), (LIMITS,)), tmp_path, flavour=None)
    rig.broadcast(("a", 1))
    with pytest.raises(UserFunctionError, match=r'"limits" may only be read here') as caught:
        rig.feed(0, "x")
    assert isinstance(caught.value.__cause__, ReadOnlyStateError)
    assert rig.operators[0].operator_states.get_broadcast_state(LIMITS)["a"] == 1


class Stranger(BroadcastProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> None:
        ctx.get_broadcast_state(OTHER)

    def process_broadcast_element(self, value: Any, ctx: Any) -> None: ...


def test_a_state_that_broadcast_did_not_name_is_refused(tmp_path: Path) -> None:
    rig = Rig(lambda: BroadcastOperator(Stranger(), (LIMITS,)), tmp_path, flavour=None)
    with pytest.raises(UserFunctionError, match="it named limits") as caught:
        rig.feed(0, 1)
    assert isinstance(caught.value.__cause__, JobDefinitionError)


class Accounts(KeyedBroadcastProcessFunction):
    """Adds amounts per key; a broadcast fee is taken from every account, and a broadcast word is told by timer."""

    def open(self, runtime_context: Any) -> None:
        self.total = runtime_context.get_state(TOTAL)

    def process_element(self, value: int, ctx: Any) -> Iterator[Any]:
        self.total.update((self.total.value() or 0) + value)
        ctx.timer_service().register_event_time_timer(ctx.timestamp() + 10)
        yield ctx.get_current_key(), self.total.value(), ctx.current_watermark()

    def process_broadcast_element(self, value: Any, ctx: Any) -> None:
        name, number = value
        ctx.get_broadcast_state(LIMITS).put(name, number)
        if name == "fee":
            ctx.apply_to_keyed_state(TOTAL, lambda key, total: total.update(total.value() - number))
        if name == "close":
            ctx.apply_to_keyed_state(TOTAL, lambda key, total: total.clear() if key == number else None)

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        yield (
            "timer",
            timestamp,
            ctx.get_current_key(),
            self.total.value(),
            dict(ctx.get_broadcast_state(LIMITS).items()),
        )


@pytest.mark.parametrize("flavour", BOTH)
def test_a_broadcast_reaches_the_keyed_state_of_every_key(tmp_path: Path, flavour: str) -> None:
    rig = Rig(lambda: KeyedBroadcastOperator(Accounts(), (LIMITS,)), tmp_path, flavour=flavour, parallelism=3)
    for key in range(10):
        rig.feed(0, 100 + key, key=key, at=key)
    rig.broadcast(("fee", 1))
    rig.broadcast(("close", 4))
    rig = rig.restarted(rig.snapshot(), parallelism=2)
    rig.out.values.clear()
    rig.watermark(100)
    rules = {"fee": 1, "close": 4}
    wanted = [("timer", key + 10, key, None if key == 4 else 99 + key, rules) for key in range(10)]
    assert sorted(rig.out.values, key=lambda line: line[2]) == wanted
    rig.close()


class Keyless(KeyedBroadcastProcessFunction):
    """Uses keyed state where there is no key."""

    def open(self, runtime_context: Any) -> None:
        self.total = runtime_context.get_state(TOTAL)

    def process_element(self, value: int, ctx: Any) -> None:
        self.total.update(value)

    def process_broadcast_element(self, value: Any, ctx: Any) -> None:
        self.total.value()


@pytest.mark.parametrize("flavour", BOTH)
def test_keyed_state_on_the_broadcast_side_is_refused_even_right_behind_a_record_with_a_key(
    tmp_path: Path, flavour: str
) -> None:
    rig = Rig(lambda: KeyedBroadcastOperator(Keyless(), (LIMITS,)), tmp_path, flavour=flavour)
    rig.feed(0, 1, key="a")
    with pytest.raises(UserFunctionError, match="was used without a key") as caught:
        rig.broadcast(("a", 1))
    assert isinstance(caught.value.__cause__, KeyedStateError)
    rig.close()


class NoKeys(BroadcastProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> None: ...

    def process_broadcast_element(self, value: Any, ctx: Any) -> None:
        ctx.apply_to_keyed_state(TOTAL, lambda key, state: None)


def test_keyed_state_cannot_be_visited_where_the_stream_has_no_key(tmp_path: Path) -> None:
    rig = Rig(lambda: BroadcastOperator(NoKeys(), (LIMITS,)), tmp_path, flavour=None)
    with pytest.raises(UserFunctionError, match="its stream has no key"):
        rig.broadcast(("a", 1))
