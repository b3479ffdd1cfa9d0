"""Every backend against a model of plain dicts: random operations, snapshots, restores and rescaling."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from backend_workshop import MAX_PARALLELISM, Workshop
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from headrace.state.descriptors import (
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from headrace.state.key_groups import group_range, key_group, subtask_of_group
from headrace.state.keys import stored_form
from headrace.types.information import Types

KEYS = st.sampled_from(["a", "b", 1, 1.0, True, b"1", "", ("a", 1), 2**70, "ключ"])
SPACES = st.sampled_from([b"", b"", b"w1", b"\x00"])
NUMBERS = st.integers(-(2**63), 2**63 - 1)
ITEMS = st.sampled_from(["x", "y", "z", ""])

VALUE = ValueStateDescriptor("value", Types.LONG())
BAG = ValueStateDescriptor("bag", Types.LIST(Types.LONG()))
LIST = ListStateDescriptor("list", Types.LONG())
MAP = MapStateDescriptor("map", Types.STRING(), Types.LONG())
LARGEST = ReducingStateDescriptor("largest", max, Types.LONG())
ALL = [VALUE, BAG, LIST, MAP, LARGEST]


class BackendMachine(RuleBasedStateMachine):
    """One keyed operator at changing parallelism; `model` is what it should hold."""

    flavour = "heap"

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.shop = Workshop(self.flavour, Path(self.folder.name))
        self.model: dict[tuple[str, Any, bytes], Any] = {}
        self.timers: set[tuple[int, Any, bytes]] = set()
        self.checkpoint = 0
        self.frozen: list[tuple[list[Any], dict[Any, Any], set[Any]]] = []

    @initialize()
    def start(self) -> None:
        self.subtasks = [self.shop.backend()]

    def scoped(self, descriptor: Any, key: Any, space: bytes) -> tuple[Any, tuple[str, Any, bytes]]:
        stored = stored_form(key)
        group = key_group(stored, MAX_PARALLELISM)
        backend = self.subtasks[subtask_of_group(group, len(self.subtasks), MAX_PARALLELISM)]
        backend.key_context.key = stored
        state = backend.state(descriptor)
        state.set_namespace(space)
        return state, (descriptor.name, stored, space)

    @rule(key=KEYS, space=SPACES, number=st.none() | NUMBERS)
    def update_value(self, key: Any, space: bytes, number: int | None) -> None:
        state, place = self.scoped(VALUE, key, space)
        assert state.value() == self.model.get(place)
        state.update(number)
        self.model[place] = number
        if number is None:
            del self.model[place]

    @rule(key=KEYS, space=SPACES, number=NUMBERS)
    def grow_bag(self, key: Any, space: bytes, number: int) -> None:
        state, place = self.scoped(BAG, key, space)
        bag = state.value() or []
        assert bag == self.model.get(place, [])
        bag.append(number)
        assert (state.value() or []) == self.model.get(place, [])
        state.update(bag)
        self.model[place] = list(bag)

    @rule(key=KEYS, space=SPACES, numbers=st.lists(NUMBERS, max_size=4), replace=st.booleans())
    def change_list(self, key: Any, space: bytes, numbers: list[int], replace: bool) -> None:
        state, place = self.scoped(LIST, key, space)
        if replace:
            state.update(numbers)
            self.model[place] = list(numbers)
        else:
            state.add_all(numbers)
            self.model[place] = self.model.get(place, []) + numbers
        if not self.model[place]:
            del self.model[place]

    @rule(key=KEYS, space=SPACES, item=ITEMS, number=NUMBERS, remove=st.booleans())
    def change_map(self, key: Any, space: bytes, item: str, number: int, remove: bool) -> None:
        state, place = self.scoped(MAP, key, space)
        entries = self.model.setdefault(place, {})
        assert state.get(item) == entries.get(item)
        if remove:
            state.remove(item)
            entries.pop(item, None)
        else:
            state.put(item, number)
            entries[item] = number
        if not entries:
            del self.model[place]

    @rule(key=KEYS, space=SPACES)
    def read_map(self, key: Any, space: bytes) -> None:
        state, place = self.scoped(MAP, key, space)
        assert dict(state.items()) == self.model.get(place, {})
        assert state.is_empty() == (place not in self.model)

    @rule(key=KEYS, space=SPACES, number=NUMBERS)
    def reduce(self, key: Any, space: bytes, number: int) -> None:
        state, place = self.scoped(LARGEST, key, space)
        state.add(number)
        self.model[place] = max(number, self.model.get(place, number))
        assert state.get() == self.model[place]

    @rule(descriptor=st.sampled_from(ALL), key=KEYS, space=SPACES)
    def clear(self, descriptor: Any, key: Any, space: bytes) -> None:
        state, place = self.scoped(descriptor, key, space)
        state.clear()
        self.model.pop(place, None)

    @rule(key=KEYS, time=st.integers(-5, 5), delete=st.booleans())
    def change_timer(self, key: Any, time: int, delete: bool) -> None:
        stored = stored_form(key)
        group = key_group(stored, MAX_PARALLELISM)
        timers = self.subtasks[subtask_of_group(group, len(self.subtasks), MAX_PARALLELISM)].timers("event")
        timer = (time, stored, b"")
        if delete:
            assert timers.delete(*timer) == (timer in self.timers)
            self.timers.discard(timer)
        else:
            assert timers.register(*timer) == (timer not in self.timers)
            self.timers.add(timer)

    @rule(canonical=st.booleans())
    def freeze(self, canonical: bool) -> None:
        """A barrier; the files are written some steps later, when the checkpoint is restored."""
        self.checkpoint += 1
        works = [subtask.snapshot(self.checkpoint, canonical=canonical) for subtask in self.subtasks]
        model = {
            place: value.copy() if isinstance(value, list | dict) else value for place, value in self.model.items()
        }
        self.frozen.append((works, model, set(self.timers)))

    @precondition(lambda self: self.frozen)
    @rule(parallelism=st.integers(1, 3), complete=st.booleans())
    def crash_and_restore(self, parallelism: int, complete: bool) -> None:
        works, self.model, self.timers = self.frozen.pop()
        snapshots = [work.write(self.shop.store) for work in works]
        for other, _, _ in self.frozen:
            for work in other:
                work.cancel()
        self.frozen.clear()
        if complete:
            for subtask in self.subtasks:
                subtask.checkpoint_complete(self.checkpoint)
        for subtask in self.subtasks:
            subtask.close()
        self.subtasks = []
        for i in range(parallelism):
            groups = group_range(i, parallelism, MAX_PARALLELISM)
            mine = [s for s in snapshots if s.first_group < groups.stop and s.last_group >= groups.start]
            self.subtasks.append(self.shop.restored(*mine, subtask=i, parallelism=parallelism))

    @invariant()
    def timers_agree(self) -> None:
        if hasattr(self, "subtasks"):
            assert sum(len(subtask.timers("event")) for subtask in self.subtasks) == len(self.timers)

    def teardown(self) -> None:
        for (name, key, space), wanted in self.model.items():
            descriptor = next(d for d in ALL if d.name == name)
            group = key_group(key, MAX_PARALLELISM)
            backend = self.subtasks[subtask_of_group(group, len(self.subtasks), MAX_PARALLELISM)]
            backend.key_context.key = key
            state = backend.state(descriptor)
            state.set_namespace(space)
            found = (
                state.value()
                if descriptor in (VALUE, BAG)
                else dict(state.items())
                if descriptor is MAP
                else state.get()
            )
            assert found == wanted
        for descriptor in ALL:
            for space in (b"", b"w1", b"\x00"):
                held = {key for subtask in self.subtasks for key in subtask.keys(descriptor.name, space)}
                assert held == {key for name, key, s in self.model if name == descriptor.name and s == space}
        for subtask in self.subtasks:
            subtask.close()
        self.folder.cleanup()


@pytest.mark.parametrize("flavour", ["heap", "heap-forking", "rocksdb", "rocksdb-cramped"])
def test_a_backend_does_what_plain_dicts_do(flavour: str) -> None:
    machine = type("Machine", (BackendMachine,), {"flavour": flavour})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=15,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
