"""What keyed backends make of state that was saved in another shape: changes that a program may make, and no other."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pytest
from backend_workshop import Workshop, at, contents
from test_keyed_backend_snapshots import dump, fill

from headrace.errors import StateConflictError
from headrace.state.descriptors import (
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateDescriptor,
    ValueStateDescriptor,
)
from headrace.types.information import Types
from headrace.types.rows import Row

# The forms that differ in how values are held; cramped and forking ones hold them the same way.
pytestmark = pytest.mark.parametrize("shop", ["heap", "rocksdb"], indirect=True)

OLD_ROW = Types.ROW_NAMED(["id", "count", "ratio"], [Types.STRING(), Types.INT(), Types.FLOAT()])


def carried_over(shop: Workshop, saved: StateDescriptor, wanted: StateDescriptor, write: Any, **where: Any) -> Any:
    """What a program sees that declares `wanted` where `saved` was written by `write(state)`, under one key."""
    backend = shop.backend()
    at(backend, "k")
    write(backend.state(saved))
    restored = shop.restored(shop.snapshot(backend, canonical=where.pop("canonical", True)), **where)
    state = restored.state(wanted)
    seen = contents(restored, state, wanted.name)
    # What was carried over is of the new shape in the next snapshot too.
    again = shop.restored(shop.snapshot(restored, 2))
    assert contents(again, again.state(wanted), wanted.name) == seen
    return seen["k"]


@pytest.mark.parametrize(
    ("before", "after", "value"),
    [
        (Types.BYTE(), Types.SHORT(), -7),
        (Types.INT(), Types.LONG(), 2**31 - 1),
        (Types.LONG(), Types.BIG_INT(), -(2**63)),
        (Types.FLOAT(), Types.DOUBLE(), 0.5),
        (Types.CHAR(), Types.STRING(), "x"),
        (Types.LIST(Types.INT()), Types.LIST(Types.LONG()), [1, None, 3]),
        (Types.MAP(Types.STRING(), Types.INT()), Types.MAP(Types.STRING(), Types.LONG()), {"a": 1}),
        (Types.TUPLE([Types.STRING(), Types.INT()]), Types.TUPLE([Types.STRING(), Types.LONG()]), ("a", 1)),
    ],
    ids=str,
)
def test_a_type_may_widen(shop: Workshop, before: Any, after: Any, value: Any) -> None:
    saved, wanted = ValueStateDescriptor("s", before), ValueStateDescriptor("s", after)
    assert carried_over(shop, saved, wanted, lambda state: state.update(value)) == value


def test_a_row_may_gain_lose_widen_and_reorder_fields(shop: Workshop) -> None:
    wanted = Types.ROW_NAMED(["ratio", "id", "note"], [Types.DOUBLE(), Types.STRING(), Types.STRING()])
    found = carried_over(
        shop,
        ValueStateDescriptor("s", OLD_ROW),
        ValueStateDescriptor("s", wanted),
        lambda state: state.update(Row(id="a", count=3, ratio=0.25)),
    )
    assert (found["ratio"], found["id"], found["note"]) == (0.25, "a", None)


@dataclass
class Reading:
    """What the program keeps now."""

    id: str
    count: int
    unit: str = "celsius"
    tags: list[str] = field(default_factory=lambda: ["new"])


class Pair(NamedTuple):
    """The same as a tuple with names."""

    id: str
    count: int
    unit: str = "kelvin"


def test_a_new_field_gets_the_default_of_the_programs_class(shop: Workshop) -> None:
    names, types = ["id", "count", "unit"], [Types.STRING(), Types.LONG(), Types.STRING()]
    as_class = Types.ROW_NAMED([*names, "tags"], [*types, Types.LIST(Types.STRING())])
    as_class = type(as_class)(as_class.names, as_class.types, Reading)
    as_tuple = type(as_class)(tuple(names), tuple(types), Pair)
    saved = ValueStateDescriptor("s", OLD_ROW)
    row = Row(id="a", count=3, ratio=0.25)
    for wanted, expected in ((as_class, Reading("a", 3)), (as_tuple, Pair("a", 3))):
        assert carried_over(shop, saved, ValueStateDescriptor("s", wanted), lambda s: s.update(row)) == expected


def test_elements_of_lists_and_values_of_maps_follow_the_same_rules(shop: Workshop) -> None:
    found = carried_over(
        shop,
        ListStateDescriptor("s", Types.INT()),
        ListStateDescriptor("s", Types.LONG()),
        lambda state: state.add_all([3, 1, 2]),
    )
    assert list(found) == [3, 1, 2]
    found = carried_over(
        shop,
        MapStateDescriptor("s", Types.STRING(), OLD_ROW),
        MapStateDescriptor("s", Types.STRING(), Types.ROW_NAMED(["count"], [Types.LONG()])),
        lambda state: state.put("x", Row(id="a", count=3, ratio=0.25)),
    )
    assert found["x"]["count"] == 3


def test_a_reducing_state_goes_on_from_where_it_was(shop: Workshop) -> None:
    def add(a: int, b: int) -> int:
        return a + b

    found = carried_over(
        shop,
        ReducingStateDescriptor("s", add, Types.INT()),
        ReducingStateDescriptor("s", add, Types.LONG()),
        lambda state: (state.add(2), state.add(5)),
    )
    assert found == 7


def test_a_checkpoint_in_the_backends_own_format_is_carried_over_too(shop: Workshop) -> None:
    found = carried_over(
        shop,
        ValueStateDescriptor("s", Types.INT()),
        ValueStateDescriptor("s", Types.LONG()),
        lambda state: state.update(5),
        canonical=False,
    )
    assert found == 5


@pytest.mark.parametrize(
    ("before", "after", "part"),
    [
        (Types.LONG(), Types.INT(), "its type would change from LONG to INT"),
        (Types.DOUBLE(), Types.FLOAT(), "from DOUBLE to FLOAT"),
        (Types.LONG(), Types.DOUBLE(), "from LONG to DOUBLE"),
        (Types.STRING(), Types.LONG(), "from STRING to LONG"),
        (Types.LONG(), Types.PICKLED_BYTE_ARRAY(), "pickle"),
        (Types.TUPLE([Types.INT()]), Types.TUPLE([Types.INT(), Types.INT()]), "TUPLE"),
        (OLD_ROW, Types.ROW_NAMED(["id"], [Types.LONG()]), "id would change from STRING to LONG"),
        (OLD_ROW, Types.ROW_NAMED(["other"], [Types.LONG()]), "keeps none of its fields"),
        (Types.MAP(Types.INT(), Types.INT()), Types.MAP(Types.LONG(), Types.INT()), "MAP"),
    ],
    ids=str,
)
def test_every_other_change_is_refused_by_name(shop: Workshop, before: Any, after: Any, part: str) -> None:
    backend = shop.backend()
    backend.state(ValueStateDescriptor("s", before))
    restored = shop.restored(shop.snapshot(backend))
    with pytest.raises(StateConflictError) as refused:
        restored.state(ValueStateDescriptor("s", after))
    assert 'State "s" of operator "per-user" was saved as' in str(refused.value)
    assert part in str(refused.value)


def test_another_kind_of_state_and_other_map_keys_are_refused(shop: Workshop) -> None:
    backend = shop.backend()
    backend.state(MapStateDescriptor("s", Types.INT(), Types.INT()))
    restored = shop.restored(shop.snapshot(backend))
    with pytest.raises(StateConflictError, match="map state cannot become a list state"):
        restored.state(ListStateDescriptor("s", Types.INT()))
    with pytest.raises(StateConflictError, match="keys of a map cannot change"):
        restored.state(MapStateDescriptor("s", Types.LONG(), Types.INT()))


def test_within_one_program_a_second_shape_is_still_a_conflict(shop: Workshop) -> None:
    backend = shop.backend()
    backend.state(ValueStateDescriptor("s", Types.INT()))
    with pytest.raises(StateConflictError, match="already declared"):
        backend.state(ValueStateDescriptor("s", Types.LONG()))


@pytest.mark.parametrize("other", ["heap", "rocksdb"])
@pytest.mark.parametrize("canonical", [True, False], ids=["savepoint", "checkpoint"])
def test_any_snapshot_restores_in_either_backend_and_at_another_width(
    shop: Workshop, other: str, canonical: bool
) -> None:
    backend = shop.backend()
    fill(backend)
    before = dump(backend)
    whole = shop.snapshot(backend, canonical=canonical)
    assert dump(shop.restored(whole, flavour=other)) == before

    halves = [shop.restored(whole, subtask=i, parallelism=2, flavour=other) for i in range(2)]
    back = shop.restored(*[shop.snapshot(half, 2, canonical=canonical) for half in halves])
    assert dump(back) == before
