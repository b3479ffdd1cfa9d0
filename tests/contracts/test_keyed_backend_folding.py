"""What every keyed backend promises of folding states: the states that windows keep their contents in."""

from __future__ import annotations

from typing import Any

import pytest
from backend_workshop import Mean, Workshop, at

from headrace.errors import JobDefinitionError, KeyedStateError, StateConflictError, TypeMismatchError
from headrace.state.descriptors import AggregatingStateDescriptor
from headrace.state.folding import FoldingAggregatingDescriptor, FoldingReducingDescriptor
from headrace.types.information import Types


class Bag:
    """Gathers values in a list that it changes in place."""

    def create_accumulator(self) -> list[int]:
        return []

    def add(self, value: int, accumulator: list[int]) -> list[int]:
        accumulator.append(value)
        return accumulator

    def get_result(self, accumulator: list[int]) -> list[int]:
        return accumulator

    def merge(self, acc1: list[int], acc2: list[int]) -> list[int]:
        return acc1 + acc2


class Pair(Bag):
    """Sum and count in a tuple."""

    def create_accumulator(self) -> Any:
        return 0, 0

    def add(self, value: int, accumulator: Any) -> Any:
        return accumulator[0] + value, accumulator[1] + 1

    def merge(self, acc1: Any, acc2: Any) -> Any:
        return acc1[0] + acc2[0], acc1[1] + acc2[1]


TOTAL = FoldingReducingDescriptor("total", lambda a, b: a + b, Types.LONG())
BAG = FoldingAggregatingDescriptor("bag", Bag(), Types.LIST(Types.LONG()))
PAIR = FoldingAggregatingDescriptor("pair", Pair(), Types.TUPLE([Types.LONG(), Types.LONG()]))
PICKLED = FoldingAggregatingDescriptor("pickled", Bag(), Types.PICKLED_BYTE_ARRAY())
ALL = [TOTAL, BAG, PAIR, PICKLED]


def wanted(descriptor: Any, values: list[int]) -> Any:
    return {"total": sum(values), "pair": (sum(values), len(values))}.get(descriptor.name, values)


@pytest.mark.parametrize("descriptor", ALL, ids=lambda d: d.name)
def test_a_fold_says_whether_it_was_the_first(shop: Workshop, descriptor: Any) -> None:
    backend = shop.backend()
    state = backend.state(descriptor)
    state.set_namespace(b"w")
    at(backend, "a")
    assert state.get() is None
    assert [state.fold(n) for n in (1, 2, 3)] == [True, False, False]
    at(backend, "b")
    assert state.fold(9) is True
    at(backend, "a")
    assert state.get() == wanted(descriptor, [1, 2, 3])
    state.clear()
    assert state.get() is None
    assert state.fold(4) is True
    assert state.take() == wanted(descriptor, [4])
    assert state.take() is None


@pytest.mark.parametrize("descriptor", ALL, ids=lambda d: d.name)
def test_folded_values_survive_eviction_snapshots_and_many_namespaces(shop: Workshop, descriptor: Any) -> None:
    backend = shop.backend()
    state = backend.state(descriptor)
    for round_ in range(3):
        for i in range(40):
            at(backend, f"k{i % 8}")
            state.set_namespace(b"w%d" % (i % 5))
            state.fold(round_)
    work = backend.snapshot(1)
    for i in range(40):
        at(backend, f"k{i % 8}")
        state.set_namespace(b"w%d" % (i % 5))
        state.fold(100)
    again = shop.restored(work.write(shop.store))
    restored = again.state(descriptor)
    for i in range(40):
        at(again, f"k{i % 8}")
        restored.set_namespace(b"w%d" % (i % 5))
        assert restored.get() == wanted(descriptor, [0, 1, 2])
        at(backend, f"k{i % 8}")
        state.set_namespace(b"w%d" % (i % 5))
        assert state.get() == wanted(descriptor, [0, 1, 2, 100])


@pytest.mark.parametrize("descriptor", ALL, ids=lambda d: d.name)
def test_namespaces_are_merged_into_one(shop: Workshop, descriptor: Any) -> None:
    backend = shop.backend()
    state = backend.state(descriptor)
    for key in ("a", "b"):
        at(backend, key)
        for number, space in enumerate((b"w1", b"w2", b"w3")):
            state.set_namespace(space)
            state.fold(number + 1)
    at(backend, "a")
    state.merge_namespaces(b"w2", [b"w1", b"nowhere", b"w3"])
    assert state.get() == wanted(descriptor, [2, 1, 3])
    state.merge_namespaces(b"new", [b"w2"])
    assert state.get() == wanted(descriptor, [2, 1, 3])
    for space in (b"w1", b"w2", b"w3"):
        state.set_namespace(space)
        assert state.get() is None
        at(backend, "b")
        assert state.get() is not None
        at(backend, "a")
    again = shop.restored(shop.snapshot(backend))
    assert sorted(again.keys(descriptor.name, b"new")) == ["a"]
    assert sorted(again.keys(descriptor.name, b"w1")) == ["b"]


def test_what_is_given_out_shares_nothing_with_the_state(shop: Workshop) -> None:
    backend = shop.backend()
    state = backend.state(BAG)
    at(backend, "a")
    state.fold(1)
    state.get().append(99)
    assert state.get() == [1]


def test_a_function_with_one_accumulator_for_all_keys_does_not_mix_them(shop: Workshop) -> None:
    class OneForAll(Bag):
        zero: list[int] = []  # noqa: RUF012 - the mistake that is looked at

        def create_accumulator(self) -> list[int]:
            return self.zero

    backend = shop.backend()
    state = backend.state(FoldingAggregatingDescriptor("bag", OneForAll(), Types.LIST(Types.LONG())))
    for key in ("a", "b"):
        at(backend, key)
        state.fold(1)
    assert state.get() == [1]


def test_values_that_others_use_too_are_copied(shop: Workshop) -> None:
    def gather(a: list[int], b: list[int]) -> list[int]:
        b.extend(a)
        return b

    backend = shop.backend()
    state = backend.state(FoldingReducingDescriptor("bag", gather, Types.LIST(Types.LONG()), shared_values=True))
    at(backend, "a")
    values = [[1], [2], [3]]
    for space in (b"w1", b"w2"):
        state.set_namespace(space)
        for value in values:
            state.fold(value)
        assert sorted(state.get()) == [1, 2, 3]
    assert values == [[1], [2], [3]]


def test_a_misfit_is_refused_when_it_is_put_in(shop: Workshop) -> None:
    backend = shop.backend()
    at(backend, "a")
    total = backend.state(TOTAL)
    with pytest.raises(TypeMismatchError, match='State "total"'):
        total.fold("text")
    total.fold(2**62)
    with pytest.raises(TypeMismatchError, match='State "total"'):
        total.fold(2**62)
    assert total.get() == 2**62
    with pytest.raises(TypeMismatchError, match='State "bag"'):
        backend.state(BAG).fold("text")


def test_a_function_that_returns_nothing_is_told_so(shop: Workshop) -> None:
    class Forgetful(Bag):
        def add(self, value: int, accumulator: list[int]) -> list[int]:
            accumulator.append(value)
            return None  # type: ignore[return-value]  # the mistake that is looked at

    backend = shop.backend()
    at(backend, "a")
    with pytest.raises(TypeMismatchError, match=r"Forgetful.add\(\) returned None"):
        backend.state(FoldingAggregatingDescriptor("bag", Forgetful(), Types.LIST(Types.LONG()))).fold(1)
    total = backend.state(FoldingReducingDescriptor("total", lambda a, b: None, Types.LONG()))
    total.fold(1)
    with pytest.raises(TypeMismatchError, match="the reduce function returned None"):
        total.fold(2)
    assert total.get() == 1


def test_it_is_the_same_state_as_one_that_does_not_fold_in_place(shop: Workshop) -> None:
    plain = AggregatingStateDescriptor("mean", Mean(), Types.LIST(Types.DOUBLE()))
    backend = shop.backend()
    at(backend, "a")
    backend.state(FoldingAggregatingDescriptor("mean", Mean(), Types.LIST(Types.DOUBLE()))).fold(4.0)
    again = shop.restored(shop.snapshot(backend))
    at(again, "a")
    state = again.state(plain)
    state.add(6.0)
    assert state.get() == 5.0
    with pytest.raises(StateConflictError):
        again.state(FoldingAggregatingDescriptor("mean", Mean(), Types.LIST(Types.LONG())))


def test_a_function_without_merge_is_refused_where_it_is_needed(shop: Workshop) -> None:
    backend = shop.backend()
    at(backend, "a")
    state = backend.state(FoldingAggregatingDescriptor("mean", Mean(), Types.LIST(Types.DOUBLE())))
    for space in (b"w1", b"w2"):
        state.set_namespace(space)
        state.fold(1.0)
    with pytest.raises(JobDefinitionError, match=r"Mean has no merge\(\)"):
        state.merge_namespaces(b"w1", [b"w2"])


def test_folding_needs_a_key(shop: Workshop) -> None:
    with pytest.raises(KeyedStateError, match="without a key"):
        shop.backend().state(TOTAL).fold(1)
