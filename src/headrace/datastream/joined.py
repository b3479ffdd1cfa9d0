"""Window joins: `a.join(b).where(key).equal_to(key).window(assigner).apply(function)`, and the same for `co_group`.

Both streams become one of marked records, keyed by the selector of each side; a window of it holds what meets.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

from headrace.datastream.windowed import WindowedStream
from headrace.durations import DurationLike
from headrace.errors import JobDefinitionError
from headrace.operators.functions import OutputTag, callable_of
from headrace.operators.windows.assigners import WindowAssigner
from headrace.operators.windows.evictors import Evictor
from headrace.operators.windows.joining import CoGroupWindows, JoinWindows, TagFirst, TaggedKey, TagSecond
from headrace.operators.windows.triggers import Trigger
from headrace.plan.keys import KeyLike, key_spec
from headrace.types.information import TypeInformation, TypeLike, Types

if TYPE_CHECKING:
    from headrace.datastream.streams import DataStream

With = TypeVar("With", bound="_WithWindow")


class _Pair(Generic[With]):
    """Two streams that will meet in windows."""

    CALL = ""
    WITH_WINDOW: type[With]

    def __init__(self, first: DataStream, second: DataStream) -> None:
        if not hasattr(second, "get_execution_environment"):
            raise JobDefinitionError(f"{self.CALL}() got {second!r}, which is no stream.")
        if first.get_execution_environment() is not second.get_execution_environment():
            raise JobDefinitionError(
                f"{self.CALL}() got a stream of another environment. Build both in one environment."
            )
        self._first = first
        self._second = second

    def where(self, key_selector: KeyLike, key_type: TypeLike | None = None) -> _Where[With]:
        """The key of the first stream's records."""
        return _Where(self, self._first, self._second, key_selector, key_type)


class _Where(Generic[With]):
    """The first key is known."""

    def __init__(
        self, pair: _Pair[With], first: DataStream, second: DataStream, key: KeyLike, key_type: TypeLike | None
    ) -> None:
        self._pair = pair
        self._first, self._second = first, second
        self._key = key_spec(key, first.get_type(), key_type, "where()")

    def equal_to(self, key_selector: KeyLike) -> _EqualTo[With]:
        """The key of the second stream's records; records with equal keys meet."""
        second = key_spec(key_selector, self._second.get_type(), self._key.key_type, "equal_to()")
        return _EqualTo(
            self._pair, self._first, self._second, TaggedKey(self._key.selector, second.selector), self._key.key_type
        )


class _EqualTo(Generic[With]):
    """Both keys are known."""

    def __init__(
        self,
        pair: _Pair[With],
        first: DataStream,
        second: DataStream,
        key: TaggedKey,
        key_type: TypeInformation | None,
    ) -> None:
        self._pair = pair
        self._first, self._second = first, second
        self._key, self._key_type = key, key_type

    def window(self, assigner: WindowAssigner) -> With:
        """The windows in which the records meet."""
        tagged = Types.TUPLE([Types.BYTE(), _type_of(self._first), _type_of(self._second)])
        firsts = self._first.map(TagFirst(), tagged).name(f"{self._pair.CALL} first")
        seconds = self._second.map(TagSecond(), tagged).name(f"{self._pair.CALL} second")
        keyed = firsts.union(seconds).key_by(self._key, self._key_type)
        return self._pair.WITH_WINDOW(WindowedStream(keyed, assigner))


class _WithWindow:
    """Keys and windows are known."""

    def __init__(self, windowed: WindowedStream) -> None:
        self._windowed = windowed

    def trigger(self: With, trigger: Trigger) -> With:
        """When windows fire, instead of the assigner's own way."""
        self._windowed.trigger(trigger)
        return self

    def evictor(self: With, evictor: Evictor) -> With:
        """Take elements out before or after the function; it sees marked records `(side, first, second)`."""
        self._windowed.evictor(evictor)
        return self

    def allowed_lateness(self: With, time_ms: DurationLike) -> With:
        """How long after its end a window still takes elements, and fires again for each."""
        self._windowed.allowed_lateness(time_ms)
        return self

    def side_output_late_data(self: With, output_tag: OutputTag) -> With:
        """Send late elements there, marked with their side: `(0, value, None)` or `(1, None, value)`."""
        self._windowed.side_output_late_data(output_tag)
        return self


class WindowJoin(_WithWindow):
    """A join in windows, before its function."""

    def apply(self, function: Any, output_type: TypeLike | None = None) -> DataStream:
        """Call a `JoinFunction`, `FlatJoinFunction` or a callable for every pair of records that meet."""
        callable_of(function, "join")
        return self._windowed.apply(JoinWindows(function), output_type).name("window join")


class WindowCoGroup(_WithWindow):
    """A coGroup in windows, before its function."""

    def apply(self, function: Any, output_type: TypeLike | None = None) -> DataStream:
        """Call a `CoGroupFunction` or a callable with the records of both sides, of every key and window."""
        callable_of(function, "co_group")
        return self._windowed.apply(CoGroupWindows(function), output_type).name("window co_group")


class JoinedStreams(_Pair[WindowJoin]):
    """Two streams whose records meet in pairs: an inner join per window."""

    CALL = "join"
    WITH_WINDOW = WindowJoin


class CoGroupedStreams(_Pair[WindowCoGroup]):
    """Two streams whose records meet in groups; groups with one side empty too, so outer joins can be written."""

    CALL = "co_group"
    WITH_WINDOW = WindowCoGroup


def _type_of(stream: DataStream) -> TypeInformation:
    known = stream.get_type()
    return Types.ANY() if known is None else known
