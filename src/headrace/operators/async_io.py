"""Async I/O: many calls of a coroutine in flight at a time, exactly-once.

    records ─▶ MAILBOX: queue of records in flight ── start ──▶ event loop: async_invoke, timeout
                 ▲  emits in order of the queue   ◀── wake ───  results

Coroutines run on an event loop of the subtask's own; everything else, the clock of timeouts and retries too, is kept by
the mailbox. A record is in flight from its arrival until its results have left. Records in flight are operator state
in every snapshot, and are invoked again after a restore, whichever subtask they come to.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from heapq import heappop, heappush
from typing import Any, NamedTuple

from headrace.checkpoint.handles import OperatorStateShare, StateShape
from headrace.errors import TypeMismatchError
from headrace.operators.async_functions import AsyncFunction, AsyncRetryStrategy
from headrace.operators.async_queue import InFlight, InFlightQueue, OrderedQueue, UnorderedQueue
from headrace.operators.base import Operator, Restored, failure_in
from headrace.operators.event_loop import EventLoopThread
from headrace.operators.factory import OperatorFactory
from headrace.operators.stateless import FunctionOperator
from headrace.state.backend import FileStore

IN_FLIGHT = StateShape("_in_flight", "operator-list", "ANY")
_TIMED_OUT = -1


class _Arrival(NamedTuple):
    """What a call gave, on its way to the mailbox."""

    record: InFlight
    attempt: int
    results: Any
    error: BaseException | None
    again: bool
    """The retry strategy wants another call."""


class AsyncOperator(FunctionOperator):
    """Runs an `AsyncFunction` with at most `capacity` records in flight, ordered or not."""

    METHOD = "async_invoke"

    def __init__(
        self, function: AsyncFunction, *, ordered: bool, timeout_ms: int, capacity: int, retry: AsyncRetryStrategy
    ) -> None:
        super().__init__(function)
        self._timeout_ms = timeout_ms
        self._capacity = capacity
        self._retry = retry
        self._queue: InFlightQueue = OrderedQueue() if ordered else UnorderedQueue()
        self._active = 0
        """Records that were started and have not left."""
        self._waiting: deque[InFlight] = deque()
        """Records beyond the capacity: what came out of one record after the queue was full, or of a restore."""
        self._deadlines: deque[InFlight] = deque()
        """Started records in order of their time, which is the same span for all."""
        self._retries: list[tuple[int, int, InFlight]] = []
        """A heap of (when, ticket, record)."""
        self._ticket = 0
        self._restored: list[InFlight] = []
        self._ending = False
        """The input has ended, but records are still in flight."""
        self._loop: EventLoopThread | None = None
        self._to_start: deque[tuple[InFlight, int]] = deque()
        self._arrived: deque[_Arrival] = deque()

    # -- on the mailbox

    def restore(self, restored: Restored, store: FileStore) -> None:
        own = [share for share in restored.operator_state if share.shape == IN_FLIGHT]
        others = [share for share in restored.operator_state if share.shape != IN_FLIGHT]
        super().restore(replace(restored, operator_state=others), store)
        where = f'the in-flight state of "{self.context.name}" (uid {self.context.uid})'
        decode = self.context.input_records.decode
        self._restored = [InFlight(*decode(element, where)) for share in own for element in share.elements]

    def open(self) -> None:
        context = self.context
        self._loop = EventLoopThread(f"async-{context.name}-{context.subtask}")
        self._loop.call(super().open)
        restored, self._restored = self._restored, []
        for record in restored:
            self._take(record)

    def process(self, value: Any, timestamp: int | None) -> None:
        self._take(InFlight(value, timestamp))
        if self._queue.count >= self._capacity:
            self.context.wake()

    def has_room(self) -> bool:
        return self._queue.count < self._capacity

    def _take(self, record: InFlight) -> None:
        self._queue.add(record)
        if self._active < self._capacity:
            self._start(record)
        else:
            self._waiting.append(record)

    def _start(self, record: InFlight) -> None:
        self._active += 1
        record.due_ms = self.context.now_ms() + self._timeout_ms
        self._deadlines.append(record)
        self._invoke(record)

    def _invoke(self, record: InFlight) -> None:
        assert self._loop is not None
        record.attempt += 1
        self._to_start.append((record, record.attempt))
        if len(self._to_start) == 1:
            # One wake-up of the loop for all that is started before it looks.
            self._loop.loop.call_soon_threadsafe(self._begin_calls)

    def watermark(self, time_ms: int) -> None:
        self._in_order(partial(super().watermark, time_ms))

    def idle(self, is_idle: bool) -> None:
        self._in_order(partial(super().idle, is_idle))

    def _in_order(self, mark: Any) -> None:
        if self._queue.empty:
            mark()
        else:
            self._queue.mark(mark)

    def end_input(self) -> None:
        if self._queue.empty:
            super().end_input()
        else:
            self._ending = True

    def next_processing_time(self) -> int | None:
        if self._arrived:
            return 0
        deadlines = self._deadlines
        while deadlines and (deadlines[0].results is not None or deadlines[0].attempt == _TIMED_OUT):
            deadlines.popleft()
        due = [record.due_ms for record in (deadlines[0],) if record.due_ms is not None] if deadlines else []
        if self._retries:
            due.append(self._retries[0][0])
        return min(due, default=None)

    def processing_time(self, now_ms: int) -> None:
        """Take what has arrived, then let go what took too long, then try again what is due."""
        while self._arrived:
            self._arrive(self._arrived.popleft(), now_ms)
        deadlines = self._deadlines
        while deadlines and (deadlines[0].due_ms or 0) <= now_ms:
            self._expire(deadlines.popleft())
        while self._retries and self._retries[0][0] <= now_ms:
            _, _, record = heappop(self._retries)
            if record.results is None and record.attempt != _TIMED_OUT:
                self._invoke(record)
        self._emit_done()

    def _arrive(self, arrival: _Arrival, now_ms: int) -> None:
        record = arrival.record
        if arrival.attempt != record.attempt or record.results is not None:
            return  # its time was over before it came
        if arrival.again:
            self._ticket += 1
            heappush(self._retries, (now_ms + self._retry.delay_ms(record.attempt), self._ticket, record))
            return
        if arrival.error is not None:
            raise failure_in(self, record.value, arrival.error) from arrival.error
        results = arrival.results
        if not isinstance(results, list | tuple):
            method = "timeout" if arrival.attempt == _TIMED_OUT else "async_invoke"
            wrong = TypeMismatchError(f"{method}() gave {results!r}. Return a list of results, which may be empty.")
            raise failure_in(self, record.value, wrong) from wrong
        record.results = list(results)
        self._queue.done(record)

    def _expire(self, record: InFlight) -> None:
        if record.results is None and record.attempt != _TIMED_OUT:
            assert self._loop is not None
            record.attempt = _TIMED_OUT
            self._loop.loop.call_soon_threadsafe(self._time_out, record)

    def _emit_done(self) -> None:
        emit = self.emit
        for item in self._queue.leaving():
            if isinstance(item, InFlight):
                self._active -= 1
                for result in item.results or ():
                    emit(result, item.timestamp)
            else:
                item()
        while self._waiting and self._active < self._capacity:
            self._start(self._waiting.popleft())
        if self._ending and self._queue.empty:
            self._ending = False
            super().end_input()

    def operator_state(self) -> Sequence[OperatorStateShare]:
        # The input, not the results: those may differ next time, and have not been seen by anyone.
        encode = self.context.input_records.encode
        elements = tuple(encode([record.value], [record.timestamp]) for record in self._queue.records())
        return (*super().operator_state(), OperatorStateShare(IN_FLIGHT, elements))

    def close(self) -> None:
        loop, self._loop = self._loop, None
        try:
            if loop is not None:
                loop.cancel_all()
                loop.call(self._function.close)
        finally:
            if loop is not None:
                loop.close()
            Operator.close(self)

    # -- on the event loop

    def _begin_calls(self) -> None:
        while self._to_start:
            # Taken out only when it is dealt with: whatever the mailbox adds behind it is seen by this loop.
            record, attempt = self._to_start[0]
            record.task = asyncio.get_running_loop().create_task(self._call_function(record, attempt))
            self._to_start.popleft()

    async def _call_function(self, record: InFlight, attempt: int) -> None:
        results, error, again = None, None, False
        try:
            results = await self._call(record.value)
        except asyncio.CancelledError:
            return
        except BaseException as raised:
            error = raised
        try:
            again = self._retry.wants_again(attempt, results, error)
        except Exception as raised:
            error = raised
        self._report(_Arrival(record, attempt, results, error, again))

    def _time_out(self, record: InFlight) -> None:
        if record.task is not None:
            record.task.cancel()
        try:
            answer, error = self._function.timeout(record.value), None
        except Exception as raised:
            answer, error = None, raised
        self._report(_Arrival(record, _TIMED_OUT, answer, error, False))

    def _report(self, arrival: _Arrival) -> None:
        self._arrived.append(arrival)
        self.context.wake()


@dataclass(frozen=True)
class AsyncFactory(OperatorFactory):
    """`AsyncDataStream.unordered_wait` and `ordered_wait`, with or without retries."""

    function: AsyncFunction
    ordered: bool
    timeout_ms: int
    capacity: int
    retry: AsyncRetryStrategy

    def create(self) -> Operator:
        return AsyncOperator(
            self.function,
            ordered=self.ordered,
            timeout_ms=self.timeout_ms,
            capacity=self.capacity,
            retry=self.retry,
        )

    @property
    def user_function(self) -> Any:
        return self.function
