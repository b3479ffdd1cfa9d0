"""How folding states fold; the same for both backends."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from headrace.backends.elements import StateRules, reduce_function_of
from headrace.errors import JobDefinitionError, TypeMismatchError
from headrace.state.descriptors import StateDescriptor
from headrace.state.folding import FoldingAggregatingDescriptor, FoldingReducingDescriptor


@dataclass(frozen=True, slots=True)
class Folding:
    """The steps between a value and what is stored of it."""

    begin: Callable[[Any], Any]
    """What to store for the first value."""
    go_on: Callable[[Any, Any], Any]
    """`(stored, value) -> stored`"""
    merge: Callable[[Any, Any], Any]
    """`(stored, stored) -> stored`"""
    result: Callable[[Any], Any]
    """The result of what is stored no longer."""
    copy_of: Callable[[Any], Any]
    """An independent copy of what is stored."""


def is_folding(descriptor: StateDescriptor) -> bool:
    return isinstance(descriptor, FoldingReducingDescriptor | FoldingAggregatingDescriptor)


def folding_of(descriptor: StateDescriptor, rules: StateRules) -> Folding:
    """The folding of a folding descriptor whose rules were made for values that are kept as objects."""
    elements = rules.elements
    admit, to_bytes, from_bytes = elements.admit, elements.to_bytes, elements.from_bytes
    immutable = descriptor.element_type.immutable

    def copy_of(stored: Any) -> Any:
        return from_bytes(to_bytes(stored))

    def something(made: Any, how: str) -> Any:
        if made is None:
            raise TypeMismatchError(f"{rules.where}: {how} None, which stands for nothing. Return a value in any case.")
        return made

    if isinstance(descriptor, FoldingReducingDescriptor):
        reduce = reduce_function_of(descriptor.reduce_function)
        # Values that several windows share must not be handed to a function that may change them.
        own = copy_of if descriptor.shared_values and not immutable else _same

        def go_on(before: Any, value: Any) -> Any:
            after = reduce(before, own(value))
            return something(after, "the reduce function returned") if after is None else after

        def checked(before: Any, value: Any) -> Any:
            return admit(go_on(before, value))

        def begin(value: Any) -> Any:
            admitted = admit(something(value, "a value to be reduced is"))
            return admitted if immutable else copy_of(admitted)

        return Folding(begin, checked if immutable else go_on, checked, _same, _same if immutable else copy_of)
    assert isinstance(descriptor, FoldingAggregatingDescriptor)
    function = descriptor.agg_function
    add, create = function.add, function.create_accumulator
    # A function that gives out one and the same object each time would fold all windows into it.
    is_fresh = immutable or create() is not create()
    fresh = create if is_fresh else lambda: copy_of(admit(create()))

    def begin_with(value: Any) -> Any:
        # Checked as a whole once it has a value in it; from then on a mutable one is the function's own business.
        return admit(something(add(value, fresh()), f"{type(function).__name__}.add() returned"))

    def merge(first: Any, second: Any) -> Any:
        merged = getattr(function, "merge", None)
        if merged is None:
            raise JobDefinitionError(
                f"{rules.where}: windows merge, but {type(function).__name__} has no merge(). Write one."
            )
        return admit(something(merged(first, second), f"{type(function).__name__}.merge() returned"))

    if immutable:
        return Folding(begin_with, lambda before, value: admit(add(value, before)), merge, function.get_result, _same)
    return Folding(begin_with, lambda before, value: add(value, before), merge, function.get_result, copy_of)


def _same(stored: Any) -> Any:
    return stored
