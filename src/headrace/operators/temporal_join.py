"""Temporal join: each record of a stream with the row of a changing table that was valid at the record's time.

The table is a stream of rows by key; a row is valid from its time until the time of the next row of its key. A record
waits until the watermark has reached its time, because only then all rows up to that time are known; then it meets the
newest of them. Of the rows up to the watermark only the newest of each key is kept, and all that come after it.

    namespace of waiting records    time i64
    namespace of a timer            "r" | time i64   records of that time are due
                                    "v"              older rows can go
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from headrace.operators.base import failure_in
from headrace.operators.functions import OutputTag
from headrace.operators.keyed_join import TIME, KeyedJoinOperator
from headrace.operators.process import emit_all
from headrace.state.descriptors import ListStateDescriptor, MapStateDescriptor, StateDescriptor
from headrace.state.states import MapState
from headrace.types.information import TypeInformation, Types

_RECORDS: Final = b"r"
_VERSION: Final = b"v"


class TemporalJoinOperator(KeyedJoinOperator):
    """Calls `function(record, row)`; without a row with None if `outer`, else not at all. One result each."""

    METHOD = "join"

    _waiting: Any
    _rows: MapState[int, tuple[bool, Any]]

    def __init__(
        self,
        function: Any,
        record_type: TypeInformation,
        row_type: TypeInformation,
        *,
        outer: bool = False,
        is_deletion: Callable[[Any], bool] | None = None,
        late: OutputTag | None = None,
    ) -> None:
        super().__init__(function)
        self._outer = outer
        self._is_deletion = is_deletion
        self._late = late
        self._record_type = record_type
        self._row_type = row_type

    def own_states(self) -> Sequence[StateDescriptor]:
        # A deletion is kept as such: the row before it must not seem valid again.
        rows = Types.TUPLE([Types.BOOLEAN(), self._row_type])
        return ListStateDescriptor("_waiting", self._record_type), MapStateDescriptor("_rows", Types.LONG(), rows)

    def open(self) -> None:
        waiting, rows = self.own_states()
        self._waiting = self._backend.state(waiting)
        self._rows = self._backend.state(rows)
        super().open()

    def process(self, value: Any, timestamp: int | None) -> None:
        assert timestamp is not None
        if timestamp > self.current_watermark:
            namespace = TIME.pack(timestamp)
            self._waiting.set_namespace(namespace)
            self._waiting.add(value)
            self._timers.register(timestamp, self._keys.key, _RECORDS + namespace)
            return
        times = self._rows.keys()
        valid = max((time for time in times if time <= timestamp), default=None)
        if valid is None and any(time <= self.current_watermark for time in times):
            # The row of that time may have been there and is gone.
            if self._late is not None:
                self.outputs.side(self._late.tag_id, value, timestamp)
            return
        self._join([value], valid, timestamp)

    def process_second(self, value: Any, timestamp: int) -> None:
        watermark = self.current_watermark
        if timestamp <= watermark:
            # A late row counts from now on, unless a newer one does.
            current = [time for time in self._rows.keys() if time <= watermark]  # noqa: SIM118 - no dict
            if any(time > timestamp for time in current):
                return
            for time in current:
                self._rows.remove(time)
        else:
            self._timers.register(timestamp, self._keys.key, _VERSION)
        deleted = self._is_deletion is not None and bool(self._is_deletion(value))
        self._rows.put(timestamp, (deleted, None if deleted else value))

    def fire(self, time_ms: int, namespace: bytes) -> None:
        times = self._rows.keys()
        if namespace == _VERSION:
            for time in times:
                if time < time_ms:
                    self._rows.remove(time)
            return
        self._waiting.set_namespace(namespace[1:])
        records = self._waiting.get()
        self._waiting.clear()
        self._join(records, max((time for time in times if time <= time_ms), default=None), time_ms)

    def _join(self, records: list[Any], valid: int | None, timestamp: int) -> None:
        deleted, row = (True, None) if valid is None else self._rows[valid]
        if deleted and not self._outer:
            return
        for record in records:
            try:
                result = self._call(record, row)
            except Exception as error:
                raise failure_in(self, record, error) from error
            emit_all(self, (result,), timestamp)
