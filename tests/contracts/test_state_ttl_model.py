"""State with a time-to-live against a model of dicts with time stamps, through cleanup, snapshots and rescaling."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from backend_workshop import MAX_PARALLELISM, Workshop
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.state.descriptors import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from headrace.state.key_groups import key_group
from headrace.state.keys import stored_form
from headrace.state.ttl import StateTtlConfig, UpdateType
from headrace.types.information import Types

TTL = 10
KEYS = st.sampled_from(["a", "b", 3])
SPACES = st.sampled_from([b"", b"", b"w"])
ITEMS = st.sampled_from(["x", "y"])
NUMBERS = st.integers(0, 9)
CHANGES = st.one_of(
    st.tuples(st.just("update"), NUMBERS),
    st.tuples(st.just("clear"), st.sampled_from(["value", "list", "map", "sum", "bag"])),
    st.tuples(st.just("add"), NUMBERS),
    st.tuples(st.just("replace"), st.lists(NUMBERS, max_size=3)),
    st.tuples(st.just("put"), st.tuples(ITEMS, NUMBERS)),
    st.tuples(st.just("remove"), ITEMS),
    st.tuples(st.just("fold"), NUMBERS),
    st.tuples(st.just("gather"), NUMBERS),
    st.tuples(st.just("read"), st.sampled_from(["value", "list", "map", "sum", "bag"])),
    st.tuples(st.just("get"), ITEMS),
)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("at"), KEYS, SPACES, CHANGES),
        st.tuples(st.just("at"), KEYS, SPACES, CHANGES),
        st.tuples(st.just("wait"), st.integers(1, 12)),
        st.tuples(st.just("restore"), st.integers(1, 3)),
    ),
    max_size=30,
)


class Bag:
    """Gathers numbers in a list."""

    def create_accumulator(self) -> list[int]:
        return []

    def add(self, value: int, accumulator: list[int]) -> list[int]:
        return [*accumulator, value]

    def get_result(self, accumulator: list[int]) -> tuple[int, ...]:
        return tuple(accumulator)


class Model:
    """What a user should see: per state, key and namespace a list of [stamp, name of the entry, value]."""

    def __init__(self, reads_refresh: bool) -> None:
        self.entries: dict[tuple[str, Any, bytes], list[list[Any]]] = {}
        self.reads_refresh = reads_refresh

    def alive(self, place: tuple[str, Any, bytes], now: int) -> list[list[Any]]:
        held = [entry for entry in self.entries.get(place, []) if entry[0] + TTL > now]
        self.entries[place] = held
        return held

    def read(self, place: tuple[str, Any, bytes], now: int, item: Any = None) -> list[list[Any]]:
        found = [entry for entry in self.alive(place, now) if item is None or entry[1] == item]
        if self.reads_refresh:
            for entry in found:
                entry[0] = now
        return [list(entry) for entry in found]


def descriptors(config: StateTtlConfig) -> dict[str, Any]:
    made = {
        "value": ValueStateDescriptor("value", Types.LONG()),
        "list": ListStateDescriptor("list", Types.LONG()),
        "map": MapStateDescriptor("map", Types.STRING(), Types.LONG()),
        "sum": ReducingStateDescriptor("sum", lambda a, b: a + b, Types.LONG()),
        "bag": AggregatingStateDescriptor("bag", Bag(), Types.LIST(Types.LONG())),
    }
    for descriptor in made.values():
        descriptor.enable_time_to_live(config)
    return made


def change(states: Any, model: Model, key: Any, space: bytes, now: int, what: tuple[str, Any]) -> None:
    """One access, to the state and to the model; what is read must be the same."""
    name, argument = what

    def place(state: str) -> tuple[str, Any, bytes]:
        return (state, key, space)

    match name:
        case "update":
            states["value"].update(argument)
            model.entries[place("value")] = [[now, None, argument]]
        case "clear":
            states[argument].clear()
            model.entries[place(argument)] = []
        case "add":
            states["list"].add(argument)
            model.entries.setdefault(place("list"), []).append([now, None, argument])
        case "replace":
            states["list"].update(argument)
            model.entries[place("list")] = [[now, None, number] for number in argument]
        case "put":
            item, number = argument
            states["map"].put(item, number)
            others = [entry for entry in model.entries.get(place("map"), []) if entry[1] != item]
            model.entries[place("map")] = [*others, [now, item, number]]
        case "remove":
            states["map"].remove(argument)
            entries = model.entries.get(place("map"), [])
            model.entries[place("map")] = [entry for entry in entries if entry[1] != argument]
        case "fold":
            states["sum"].add(argument)
            before = model.alive(place("sum"), now)
            model.entries[place("sum")] = [[now, None, argument + sum(entry[2] for entry in before)]]
        case "gather":
            states["bag"].add(argument)
            gathered = [number for entry in model.alive(place("bag"), now) for number in entry[2]]
            model.entries[place("bag")] = [[now, None, [*gathered, argument]]]
        case "get":
            found = model.read(place("map"), now, argument)
            assert states["map"].get(argument) == (found[0][2] if found else None)
        case "read":
            found = model.read(place(argument), now)
            assert reading(states[argument], argument) == expected(found, argument)


def reading(state: Any, name: str) -> Any:
    match name:
        case "value":
            return state.value()
        case "list":
            return list(state.get())
        case "map":
            return dict(state.items())
    return state.get()


def expected(found: list[list[Any]], name: str) -> Any:
    match name:
        case "list":
            return [entry[2] for entry in found]
        case "map":
            return {entry[1]: entry[2] for entry in found}
        case "bag":
            return tuple(found[0][2]) if found else None
    return found[0][2] if found else None


CLEANUPS = {
    "none": lambda builder: builder.disable_cleanup_in_background(),
    "eager": lambda builder: builder.cleanup_incrementally(2, True).cleanup_in_rocksdb_compact_filter(1),
}


@pytest.mark.parametrize("flavour", ["heap", pytest.param("rocksdb-cramped", marks=pytest.mark.thorough)])
@pytest.mark.parametrize("cleanup", list(CLEANUPS))
@pytest.mark.parametrize("update", [UpdateType.OnCreateAndWrite, UpdateType.OnReadAndWrite])
def test_states_with_a_time_to_live_are_as_the_model_says(flavour: str, cleanup: str, update: UpdateType) -> None:
    builder = StateTtlConfig.new_builder(TTL).set_update_type(update)
    CLEANUPS[cleanup](builder)
    config = builder.build()

    @settings(max_examples=25 if flavour == "heap" else 6)
    @given(STEPS)
    def run(steps: list[Any]) -> None:
        with tempfile.TemporaryDirectory() as folder:
            shop = Workshop(flavour, Path(folder))
            model = Model(update is UpdateType.OnReadAndWrite)
            subtasks = [shop.backend()]
            for number, step in enumerate(steps):
                match step:
                    case ("wait", by):
                        shop.clock.advance(by)
                    case ("restore", width):
                        snapshots = [shop.snapshot(b, number + 1, canonical=number % 2 == 0) for b in subtasks]
                        subtasks = [
                            shop.restored(*snapshots, subtask=index, parallelism=width) for index in range(width)
                        ]
                    case ("at", key, space, what):
                        stored = stored_form(key)
                        backend = subtasks[key_group(stored, MAX_PARALLELISM) * len(subtasks) // MAX_PARALLELISM]
                        states = {name: backend.state(d) for name, d in descriptors(config).items()}
                        backend.key_context.key = stored
                        for state in states.values():
                            state.set_namespace(space)
                        change(states, model, key, space, shop.clock(), what)
            shop.close()

    run()
