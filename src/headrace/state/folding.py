"""States that fold in place: what a window keeps of its elements, one value per key and window.

They are reducing and aggregating states (the same kinds, types and bytes in a checkpoint), made for an operator that
owns them: nobody else holds a reference to a stored value between two accesses, so a mutable value stays the object
that it is instead of being copied at every fold. It is copied when it is given out, and checked against its type
when it is first put in; where the type is immutable every value is checked, as in any other state.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from headrace.state.descriptors import AggregatingStateDescriptor, ReducingStateDescriptor


@dataclass(frozen=True, slots=True)
class FoldingReducingDescriptor(ReducingStateDescriptor):
    """Values folded by a reduce function."""

    shared_values: bool = False
    """The values that are folded in are used elsewhere too (by another window), so the state takes copies."""


@dataclass(frozen=True, slots=True)
class FoldingAggregatingDescriptor(AggregatingStateDescriptor):
    """Values folded into an accumulator by an `AggregateFunction`, which must have a `merge` if windows merge."""


class FoldingState(Protocol):
    """What a backend gives for these descriptors, beside the methods of the kind. Contract of both backends."""

    def set_namespace(self, namespace: bytes) -> None:
        """Scope all later accesses to that namespace (a window)."""

    def fold(self, value: Any) -> bool:
        """Fold a value in; True if there was nothing before. The hot path of every window."""

    def get(self) -> Any:
        """The result so far, which shares nothing with the state; None if there is none."""

    def take(self) -> Any:
        """`get` and `clear` in one, without the copy."""

    def clear(self) -> None: ...

    def merge_namespaces(self, target: bytes, sources: Sequence[bytes]) -> None:
        """Fold what the current key has in `sources` into `target`, in that order, and clear it there."""
