"""The operator behind a pattern stream: brings events in order, runs the automaton, keeps everything in keyed state.

    state               type                 holds, for each key
    _pattern-queue      MAP<LONG, bytes>     event time: events by timestamp, until the watermark has passed them
    _pattern-matches    bytes                partial matches, see `partial_matches`
    _pattern-events     MAP<LONG, bytes>     events that partial matches have taken, see `shared_buffer`
    _pattern-links      MAP<LONG, bytes>     the chains through them

An event is encoded once, when it enters the queue or the buffer; a queue entry is a msgpack array of encoded events.
Every timestamp in the queue has a timer, so that a watermark finds what is due without looking at what is not. One more
timer for each key (in a namespace of its own) stands at the moment when its first partial match times out.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cmp_to_key
from typing import Any, Final

import msgspec

from headrace.cep.automaton import Automaton
from headrace.cep.compiler import compile_pattern
from headrace.cep.functions import Match, PatternContext, PatternProcessFunction, Selecting, TimedOutPartialMatchHandler
from headrace.cep.nfa import Nfa
from headrace.cep.partial_matches import PartialMatches, decode_matches, encode_matches
from headrace.cep.pattern import Pattern
from headrace.cep.shared_buffer import SharedBuffer
from headrace.errors import JobDefinitionError, RecordError, StateConflictError
from headrace.operators.base import Operator, failure_in
from headrace.operators.context import StreamRuntimeContext
from headrace.operators.factory import OperatorFactory
from headrace.operators.functions import OutputTag
from headrace.operators.metrics import Counter, MetricGroup
from headrace.operators.stateless import FunctionOperator
from headrace.state.backend import KeyContext, TimerQueue
from headrace.state.codecs import codec_for
from headrace.state.descriptors import MapStateDescriptor, ValueStateDescriptor
from headrace.state.states import MapState, ValueState
from headrace.types.information import TypeInformation, Types

QUEUED = b""
"""Namespace of timers for events in the queue."""
WINDOW = b"within"
"""Namespace of timers for partial matches that time out."""

_pack_events: Final[Callable[[list[bytes]], bytes]] = msgspec.msgpack.Encoder().encode
_unpack_events: Final[Callable[[bytes], list[bytes]]] = msgspec.msgpack.Decoder(list[bytes]).decode


@dataclass(frozen=True)
class PatternFactory(OperatorFactory):
    """A pattern on a keyed stream."""

    pattern: Pattern
    function: PatternProcessFunction
    event_type: TypeInformation
    event_time: bool = True
    late_tag: OutputTag | None = None
    comparator: Callable[[Any, Any], int] | None = None
    keyed: bool = True

    def create(self) -> Operator:
        return PatternOperator(self)

    @property
    def user_function(self) -> Any:
        return self.function.function if isinstance(self.function, Selecting) else self.function


class PatternOperator(FunctionOperator):
    """One subtask of a pattern."""

    METHOD = "process_match"

    _keys: KeyContext
    _timers: TimerQueue
    _queue: MapState[int, bytes]
    _stored: ValueState[bytes]
    _late: Counter
    _nfa: Nfa

    def __init__(self, factory: PatternFactory) -> None:
        super().__init__(factory.function)
        self._factory = factory
        self._event_time = factory.event_time
        self._automaton: Automaton = compile_pattern(factory.pattern.sequence())
        self._order = None if factory.comparator is None else cmp_to_key(factory.comparator)
        self._timed_out = (
            factory.function.process_timed_out_match
            if isinstance(factory.function, TimedOutPartialMatchHandler)
            else None
        )
        functions = (function for condition in self._automaton.conditions for function in condition.functions)
        # One object may stand in several conditions; it is opened once.
        self._conditions = list({id(function): function for function in functions}.values())
        # What is stored means nothing to another pattern, nor to events of another type.
        self._fingerprint = zlib.crc32(str(factory.event_type).encode(), self._automaton.fingerprint)
        codec = codec_for(factory.event_type)
        self._encode, self._decode = codec.encode, codec.decode
        self._clock = 0

    def open(self) -> None:
        backend = self.context.backend
        assert backend is not None
        self._keys = backend.key_context
        self._timers = backend.timers("event" if self._event_time else "processing")
        packed = Types.PRIMITIVE_ARRAY(Types.BYTE())
        self._queue = backend.state(MapStateDescriptor("_pattern-queue", Types.LONG(), packed))
        self._stored = backend.state(ValueStateDescriptor("_pattern-matches", packed))
        buffer = SharedBuffer(
            backend.state(MapStateDescriptor("_pattern-events", Types.LONG(), packed)),
            backend.state(MapStateDescriptor("_pattern-links", Types.LONG(), packed)),
            self._factory.event_type,
            len(self._automaton.names),
        )
        skip = self._factory.pattern.get_after_match_skip_strategy()
        self._nfa = Nfa(self._automaton, buffer, skip, self.context.now_ms)
        self._late = MetricGroup(self.context.metrics).counter("numLateRecordsDropped")
        self._context = _MatchContext(self)
        super().open()
        for function in self._conditions:
            try:
                function.open(StreamRuntimeContext(self))
            except Exception as error:
                raise failure_in(self, "(none: in open() of a condition)", error) from error

    def process(self, value: Any, timestamp: int | None) -> None:
        if not self._event_time:
            self._process_now(value, timestamp)
            return
        if timestamp is None:
            raise failure_in(self, value, _without_timestamp())
        if timestamp <= self.current_watermark:
            self._too_late(value, timestamp)
            return
        try:
            self._enqueue(timestamp, value)
        except Exception as error:
            raise failure_in(self, value, error) from error

    def watermark(self, time_ms: int) -> None:
        self.current_watermark = time_ms
        if self._event_time:
            self._fire(time_ms)
        self.outputs.watermark(time_ms)

    def next_processing_time(self) -> int | None:
        return None if self._event_time else self._timers.peek()

    def processing_time(self, now_ms: int) -> None:
        if not self._event_time:
            self._fire(now_ms)

    def close(self) -> None:
        try:
            for function in self._conditions:
                function.close()
        finally:
            super().close()

    # Events in order

    def _process_now(self, value: Any, timestamp: int | None) -> None:
        # The clock of a machine may be set back; the time of matches may not.
        now = self._clock = max(self._clock, self.context.now_ms())
        if self._order is None:
            self._run(((value, None),), now, timestamp)
        else:
            self._enqueue(now + 1, value)

    def _enqueue(self, time_ms: int, value: Any) -> None:
        encoded = [self._encode(value)]
        # The timer is there if and only if the queue has events of that time.
        if not self._timers.register(time_ms, self._keys.key, QUEUED):
            encoded = _unpack_events(self._queue[time_ms]) + encoded
        self._queue.put(time_ms, _pack_events(encoded))

    def _too_late(self, value: Any, timestamp: int) -> None:
        tag = self._factory.late_tag
        if tag is None:
            self._late.inc()
        else:
            self.outputs.side(tag.tag_id, value, timestamp)

    def _fire(self, until_ms: int) -> None:
        while (timer := self._timers.pop_due(until_ms)) is not None:
            time_ms, self._keys.key, namespace = timer
            if namespace == WINDOW:
                self._window_over(time_ms)
                continue
            decode = self._decode
            events = [(decode(encoded), encoded) for encoded in _unpack_events(self._queue[time_ms])]
            self._queue.remove(time_ms)
            if self._order is not None:
                order = self._order
                events.sort(key=lambda event: order(event[0]))
            self._run(events, time_ms, time_ms if self._event_time else None)

    # Matching

    def _run(self, events: Iterable[tuple[Any, bytes | None]], time_ms: int, timestamp: int | None) -> None:
        """Events of the current key and of one moment, each with its encoding if there is one."""
        nfa = self._nfa
        matches, is_stored = self._load()
        changed = self._advance(matches, time_ms, timestamp)
        for event, encoded in events:
            try:
                found = nfa.process(matches, event, time_ms, encoded)
                if found is not None:
                    changed = True
                    for match in found:
                        self._tell(match, time_ms, timestamp)
            except Exception as error:
                raise failure_in(self, event, error) from error
        if changed:
            self._save(matches, is_stored)

    def _window_over(self, time_ms: int) -> None:
        matches, is_stored = self._load()
        if is_stored:
            if matches.timer_ms == time_ms:
                matches.timer_ms = None
            self._advance(matches, time_ms, time_ms if self._event_time else None)
            self._save(matches, is_stored)

    def _advance(self, matches: PartialMatches, time_ms: int, timestamp: int | None) -> bool:
        """Let the time pass. Gives whether anything has changed by that."""
        if not self._automaton.has_windows or not self._nfa.is_over(matches, time_ms):
            return False
        try:
            found, timed_out = self._nfa.advance(matches, time_ms)
            for match, over_ms in timed_out if self._timed_out is not None else ():
                self._tell_timed_out(match, over_ms)
            for match in found:
                self._tell(match, time_ms, timestamp)
        except Exception as error:
            raise failure_in(self, f"(none: at {time_ms}, key {self._keys.key!r})", error) from error
        return True

    def _tell(self, match: Match, time_ms: int, timestamp: int | None) -> None:
        context = self._context
        context.time_ms, context.out_timestamp = time_ms, timestamp
        results = self._call(match, context)
        if results is not None:
            for result in results:
                if type(result) is tuple and len(result) == 2 and type(result[0]) is OutputTag:
                    self.outputs.side(result[0].tag_id, result[1], timestamp)
                else:
                    self.emit(result, timestamp)

    def _tell_timed_out(self, match: Match, over_ms: int) -> None:
        assert self._timed_out is not None
        context = self._context
        context.time_ms = over_ms
        context.out_timestamp = over_ms if self._event_time else None
        for result in self._timed_out(match, context) or ():
            if type(result) is not tuple or len(result) != 2 or type(result[0]) is not OutputTag:
                raise JobDefinitionError(
                    f"process_timed_out_match() gave {result!r}, but what timed out can go to side outputs only. "
                    "Give `yield tag, value`, or call ctx.output(tag, value)."
                )
            self.outputs.side(result[0].tag_id, result[1], context.out_timestamp)

    # State

    def _load(self) -> tuple[PartialMatches, bool]:
        packed = self._stored.value()
        if packed is None:
            return PartialMatches(self._fingerprint), False
        matches = decode_matches(packed)
        if matches.fingerprint != self._fingerprint:
            raise StateConflictError(
                f'Operator "{self.context.name}" (uid "{self.context.uid}") has partial matches of another pattern in '
                "its state: names, order, contiguity, quantifiers or the type of events have changed. Restore into the "
                "pattern as it was, or give the operator another uid."
            )
        return matches, True

    def _save(self, matches: PartialMatches, is_stored: bool) -> None:
        timer = matches.timer_ms
        deadline = self._nfa.next_deadline(matches) if self._automaton.has_windows else None
        # A timer that comes too early is set anew when it fires, one that would come too late now.
        if timer is not None and (deadline is None or deadline < timer):
            self._timers.delete(timer, self._keys.key, WINDOW)
            timer = None
        if timer is None and deadline is not None:
            self._timers.register(deadline, self._keys.key, WINDOW)
            timer = deadline
        matches.timer_ms = timer
        if not matches.is_empty:
            self._stored.update(encode_matches(matches))
        elif is_stored:
            self._stored.clear()


class _MatchContext(PatternContext):
    """One object per operator, moved along from match to match."""

    def __init__(self, operator: PatternOperator) -> None:
        self._operator = operator
        self.time_ms = 0
        self.out_timestamp: int | None = None

    def timestamp(self) -> int:
        return self.time_ms

    def current_processing_time(self) -> int:
        return self._operator.context.now_ms()

    def output(self, tag: OutputTag, value: Any) -> None:
        self._operator.outputs.side(tag.tag_id, value, self.out_timestamp)


def _without_timestamp() -> RecordError:
    return RecordError(
        "a pattern in event time got a record without a timestamp. Call assign_timestamps_and_watermarks() before it, "
        "or in_processing_time() on the pattern stream"
    )
