"""States that `open()` asks for are read from its source; none of its code is run."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

import headrace.state.descriptors as descriptors
from headrace import (
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateTtlConfig,
    Types,
    ValueStateDescriptor,
)
from headrace.plan.states_in_open import states_in_open

TOTAL = ValueStateDescriptor("total", Types.DOUBLE())
KIND = Types.ROW_NAMED(["id", "at"], [Types.STRING(), Types.LONG()])
runs: list[str] = []


@dataclass
class Reading:
    sensor: str
    value: float


class Base(KeyedProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> None: ...


class Plain(Base):
    """Everything that is understood."""

    CLASSWIDE = ListStateDescriptor("classwide", Types.LONG())

    def __init__(self) -> None:
        self.own = ValueStateDescriptor("own", Types.STRING())
        self.kind = Types.INT()

    def open(self, runtime_context: Any) -> None:
        runs.append("open")
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))
        kept = MapStateDescriptor("kept", Types.STRING(), Reading)
        self.kept = runtime_context.get_map_state(kept)
        self.total = runtime_context.get_state(TOTAL)
        self.mine: Any = runtime_context.get_state(self.own)
        runtime_context.get_list_state(self.CLASSWIDE)
        runtime_context.get_state(ValueStateDescriptor("typed", self.kind))
        runtime_context.get_state(descriptors.ValueStateDescriptor("by-module", value_type_info=KIND))
        runtime_context.get_state(ValueStateDescriptor("pair", Types.TUPLE([Types.LONG(), Types.STRING()])))
        self.sum = runtime_context.get_reducing_state(ReducingStateDescriptor("sum", lambda a, b: a + b, Types.LONG()))


def test_what_is_written_plainly_is_read_and_nothing_is_run() -> None:
    shapes = {found.name: (found.shape.kind, found.shape.type) for found in states_in_open(Plain())}
    assert shapes == {
        "count": ("value", "LONG"),
        "kept": ("map", f"MAP<STRING, {MapStateDescriptor('x', Types.STRING(), Reading).element_type}>"),
        "total": ("value", "DOUBLE"),
        "own": ("value", "STRING"),
        "classwide": ("list", "LONG"),
        "typed": ("value", "INT"),
        "by-module": ("value", str(KIND)),
        "pair": ("value", str(Types.TUPLE([Types.LONG(), Types.STRING()]))),
        "sum": ("reducing", "LONG"),
    }
    assert runs == []


def chosen() -> Any:
    runs.append("chosen")
    return Types.LONG()


class Unclear(Base):
    """Nothing of it is certain."""

    def __init__(self, old: bool = False) -> None:
        self.old = old
        self.replaced = ValueStateDescriptor("replaced", Types.LONG())

    @property
    def kind(self) -> Any:
        runs.append("kind")
        return Types.LONG()

    def open(self, runtime_context: Any) -> None:
        runtime_context.get_state(ValueStateDescriptor("computed", chosen()))
        runtime_context.get_state(ValueStateDescriptor("property", self.kind))
        runtime_context.get_state(ValueStateDescriptor(f"name-{self.old}", Types.LONG()))
        kept, TOTAL = chosen(), chosen()
        runtime_context.get_state(TOTAL)
        runtime_context.get_state(kept)
        self.replaced = chosen()
        runtime_context.get_state(self.replaced)
        runtime_context.get_state(ValueStateDescriptor("wrong", 7))  # type: ignore[arg-type]
        ValueStateDescriptor("never asked for", Types.LONG())
        if self.old:
            runtime_context.get_state(ValueStateDescriptor("branch", Types.LONG()))
        runtime_context.get_state(ValueStateDescriptor("after a branch", Types.LONG()))


class Expiring(Base):
    def open(self, runtime_context: Any) -> None:
        descriptor = ValueStateDescriptor("short", Types.LONG())
        descriptor.enable_time_to_live(StateTtlConfig.new_builder(timedelta(hours=1)).build())
        runtime_context.get_state(descriptor)


class Inherited(Plain): ...


@pytest.mark.parametrize("function", [Unclear(), Expiring(), Base(), len, None], ids=lambda f: type(f).__name__)
def test_what_is_not_certain_is_left_out_and_nothing_is_run(function: Any) -> None:
    assert states_in_open(function) == []
    assert runs == []


def test_an_inherited_open_is_read_too() -> None:
    assert len(states_in_open(Inherited())) == 9


def test_a_function_without_source_is_left_to_the_tasks() -> None:
    made: dict[str, Any] = {"Base": Base, "V": ValueStateDescriptor}
    exec("class Made(Base):\n    def open(self, ctx):\n        ctx.get_state(V('x', int))", made)
    assert states_in_open(made["Made"]()) == []
