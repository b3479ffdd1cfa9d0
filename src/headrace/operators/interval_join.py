"""Interval join: pairs of records of one key whose times lie within bounds of each other.

Every pair is found when its later record *arrives*, whichever input that is: each record is kept, and looks at what
is kept of the other side. A record is late if its time lies before the watermark; late ones join nothing.

Kept records lie in slices of time as long as the interval is wide, each slice of a key a list in a namespace of its
own, so that a record looks at two slices at most. One timer for each slice removes it as soon as no record that is not
late could meet anything in it; whether a slice is there at all, its timer tells without a look into the state.

    namespace of a list     slice i64
    namespace of a timer    "l" or "r" | slice i64
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter, itemgetter
from typing import Any, Final

from headrace.errors import JobDefinitionError
from headrace.operators.connected_functions import ProcessJoinContext
from headrace.operators.functions import OutputTag
from headrace.operators.keyed_join import TIME, KeyedJoinOperator
from headrace.operators.process import emit_all
from headrace.state.descriptors import ListStateDescriptor, StateDescriptor
from headrace.types.information import RowType, TupleType, TypeInformation, Types
from headrace.types.rows import values_of

_MOST_SLICES: Final = 4096
"""Slices whose names are remembered."""


class PairContext(ProcessJoinContext):
    """One object per operator, moved along from pair to pair."""

    __slots__ = ("left", "right")

    def __init__(self) -> None:
        self.left = 0
        self.right = 0

    def get_left_timestamp(self) -> int:
        return self.left

    def get_right_timestamp(self) -> int:
        return self.right

    def get_timestamp(self) -> int:
        return self.left if self.left > self.right else self.right


@dataclass(frozen=True, slots=True)
class _Kept:
    """How a record and its time are kept as one element of a list."""

    type: TypeInformation
    pack: Callable[[int, Any], Any]
    time: Callable[[Any], int]
    value: Callable[[Any], Any]

    @classmethod
    def of(cls, type_info: TypeInformation) -> _Kept:
        if isinstance(type_info, RowType):
            # One flat row (or tuple, below) is checked in a fraction of the time that one inside of a tuple takes, and
            # the fields of a row may come and go between two versions of the program.
            at = "_at"
            while at in type_info.names:
                at = f"_{at}"
            flat = Types.ROW_NAMED([at, *type_info.names], [Types.LONG(), *type_info.types])
            assert isinstance(flat, RowType)
            make, make_flat, apart = type_info.make(), flat.make(), type_info.take_apart()
            return cls(
                flat,
                lambda t, value: make_flat((t, *apart(value))),
                attrgetter(at),
                lambda kept: make(values_of(kept)[1:]),
            )
        if isinstance(type_info, TupleType) and type_info.types:
            joined = Types.TUPLE([Types.LONG(), *type_info.types])
            return cls(joined, lambda t, value: (t, *value), itemgetter(0), lambda kept: kept[1:])
        if type_info == Types.ANY() or type_info == Types.PICKLED_BYTE_ARRAY():
            return cls(type_info, lambda t, value: (t, value), itemgetter(0), itemgetter(1))
        pair = Types.TUPLE([Types.LONG(), type_info])
        return cls(pair, lambda t, value: (t, value), itemgetter(0), itemgetter(1))


class _Side:
    """One input: what is kept of it, and where its records find their partners."""

    __slots__ = ("descriptor", "kept", "late", "lookback", "prefix", "reach", "start", "state")

    def __init__(
        self, name: str, type_info: TypeInformation, lookback: int, reach: int, late: OutputTag | None
    ) -> None:
        self.prefix = name[:1].encode()
        self.kept = _Kept.of(type_info)
        self.descriptor = ListStateDescriptor(f"_{name}", self.kept.type)
        self.lookback = lookback
        """A record at t finds partners from t + lookback on …"""
        self.reach = reach
        """… up to t + reach."""
        self.late = late
        self.state: Any = None
        self.start: Any = None
        """`add` of the state to a list that is known to be empty."""


class IntervalJoinOperator(KeyedJoinOperator):
    """Calls the function for each (left, right) with left + lower ≤ right ≤ left + upper, in milliseconds."""

    METHOD = "process_element"

    def __init__(
        self,
        function: Any,
        lower: int,
        upper: int,
        left_type: TypeInformation,
        right_type: TypeInformation,
        left_late: OutputTag | None = None,
        right_late: OutputTag | None = None,
    ) -> None:
        super().__init__(function)
        if lower > upper:
            raise JobDefinitionError(f"An interval join from {lower} to {upper} ms holds no time.")
        self._left = _Side("left", left_type, lower, upper, left_late)
        self._right = _Side("right", right_type, -upper, -lower, right_late)
        self._length = upper - lower + 1
        self._slices: dict[int, tuple[bytes, dict[_Side, tuple[int, bytes]]]] = {}
        self._pair = PairContext()

    def own_states(self) -> Sequence[StateDescriptor]:
        return self._left.descriptor, self._right.descriptor

    def open(self) -> None:
        for side in (self._left, self._right):
            side.state = self._backend.state(side.descriptor)
            side.start = getattr(side.state, "start", side.state.add)
        super().open()

    def process(self, value: Any, timestamp: int | None) -> None:
        assert timestamp is not None
        pair, call = self._pair, self._call
        for pair.right, right in self._meet(self._left, self._right, value, timestamp):
            pair.left = timestamp
            results = call(value, right, pair)
            if results is not None:
                emit_all(self, results, pair.get_timestamp())

    def process_second(self, value: Any, timestamp: int) -> None:
        pair, call = self._pair, self._call
        for pair.left, left in self._meet(self._right, self._left, value, timestamp):
            pair.right = timestamp
            results = call(left, value, pair)
            if results is not None:
                emit_all(self, results, pair.get_timestamp())

    def _meet(self, side: _Side, other: _Side, value: Any, timestamp: int) -> Sequence[tuple[int, Any]]:
        """Keep the record for partners to come, and find those that are there."""
        watermark = self.current_watermark
        if timestamp < watermark:
            if side.late is not None:
                self.outputs.side(side.late.tag_id, value, timestamp)
            return ()
        timers, length, key = self._timers, self._length, self._keys.key
        earliest, latest = timestamp + side.lookback, timestamp + side.reach
        # Partners before the watermark would be late, so a record whose partners all lie there need not be kept.
        if latest >= watermark:
            namespace, ends = self._slice(timestamp // length)
            side.state.set_namespace(namespace)
            end, timer = ends[side]
            # A slice without a timer is empty.
            add = side.start if timers.register(end, key, timer) else side.state.add
            add(side.kept.pack(timestamp, value))
        found: list[tuple[int, Any]] = []
        for number in range(earliest // length, latest // length + 1):
            namespace, ends = self._slice(number)
            end, timer = ends[other]
            if timers.has(end, key, timer):
                other.state.set_namespace(namespace)
                time_of, value_of = other.kept.time, other.kept.value
                found += [
                    (time, value_of(kept))
                    for kept in other.state.get()
                    if earliest <= (time := time_of(kept)) <= latest
                ]
        return found

    def _slice(self, number: int) -> tuple[bytes, dict[_Side, tuple[int, bytes]]]:
        """The namespace of a slice, and for each side the timer that ends it: the first watermark at which nothing
        can meet a record of that slice any more."""
        known = self._slices.get(number)
        if known is None:
            if len(self._slices) >= _MOST_SLICES:
                self._slices.clear()
            namespace, after = TIME.pack(number), (number + 1) * self._length
            ends = {side: (after + side.reach, side.prefix + namespace) for side in (self._left, self._right)}
            known = self._slices[number] = namespace, ends
        return known

    def fire(self, time_ms: int, namespace: bytes) -> None:
        side = self._left if namespace[:1] == self._left.prefix else self._right
        side.state.set_namespace(namespace[1:])
        side.state.clear()
