"""A keyed operator in batch mode: it sees its records key by key, after the last of them has come.

    1  while input comes, records are collected and sorted (`sorted_records`); broadcast records go on at once, so that
       rules are complete before the first record meets them
    2  at the end of all input, for each key: its records in order of time; then event time ends for this key, which
       fires its timers, those of processing time after them; then its state is forgotten
    3  event time ends for what follows, and so does the output

Step 2 is taken in slices of a few milliseconds, so that a full output is waited for and messages are heard. Timers that
a process function or a trigger registers while its key comes to its end do not fire: time is over. Joins and patterns
register theirs for their own bookkeeping, and these do.

There is nothing to be saved half-way: a job in batch mode has one checkpoint, when all input was processed.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from headrace.checkpoint.handles import CheckpointId, SubtaskSnapshot
from headrace.errors import JobDefinitionError
from headrace.operators.base import (
    Attention,
    BackgroundWork,
    Block,
    Emit,
    Operator,
    OperatorContext,
    Outputs,
    Restored,
    SubtaskWork,
)
from headrace.operators.factory import OperatorFactory
from headrace.operators.process import KeyedProcessOperator
from headrace.operators.sorted_records import Chunk, Record, SortedRecords
from headrace.operators.watermarks import MAX_WATERMARK, MIN_WATERMARK
from headrace.operators.windows.operator import WindowOperator
from headrace.state.backend import BackendContext, FileStore, KeyedStateBackend
from headrace.state.key_groups import group_range

SLICE_S = 0.005
_NO_KEY = object()


class ForgettingBackend(Protocol):
    """A backend for one key at a time."""

    def close_timers(self, closed: bool) -> None: ...

    def forget(self) -> None: ...


class _KeyOutputs(Outputs):
    """Records go on; that time ends for one key is no news for what follows."""

    def __init__(self, outputs: Outputs) -> None:
        self._outputs = outputs
        self.emit: Emit = outputs.emit

    def emit_columns(self, batch: pa.RecordBatch, timestamps: pa.Array | None) -> None:
        self._outputs.emit_columns(batch, timestamps)

    def side(self, tag_id: str, value: Any, timestamp: int | None) -> None:
        self._outputs.side(tag_id, value, timestamp)

    def watermark(self, time_ms: int) -> None:
        """Not yet."""

    def idle(self, is_idle: bool) -> None:
        """Not of interest."""

    def end(self) -> None:
        """Not yet."""


class SortedInputOperator(Operator):
    """Collects the input of another operator and feeds it key by key, or, without keys, after the broadcast."""

    def __init__(
        self,
        inner: Operator,
        keyed: bool,
        at_once: frozenset[int],
        memory_bytes: int,
        make_backend: Callable[[BackendContext], KeyedStateBackend],
    ) -> None:
        super().__init__()
        self._inner = inner
        self._keyed = keyed
        self._at_once = at_once
        self._make_backend = make_backend
        self._records = SortedRecords(memory_bytes, in_order=not keyed)
        self._own: Any = None
        """The `ForgettingBackend` of the inner operator, if it has keys."""
        self._replay: Iterator[Chunk] | None = None
        self._takers: dict[int, Callable[[Block, Attention], None]] = {}
        self._attention = Attention()
        self._key: Any = _NO_KEY
        # What a user registers at the end of time would be registered for ever.
        self._closes_timers = isinstance(inner, KeyedProcessOperator | WindowOperator)

    def setup(self, context: OperatorContext, outputs: Outputs) -> None:
        super().setup(context, outputs)
        if self._keyed:
            self._own = self._make_backend(
                BackendContext(
                    uid=context.uid,
                    subtask=context.subtask,
                    key_groups=group_range(context.subtask, context.parallelism, context.max_parallelism),
                    max_parallelism=context.max_parallelism,
                    local_dir=Path(tempfile.gettempdir()),
                    object_reuse=context.object_reuse,
                    now_ms=context.now_ms,
                )
            )
        self._inner.setup(replace(context, backend=self._own), _KeyOutputs(outputs))

    def restore(self, restored: Restored, store: FileStore) -> None:
        if not restored.ended and (restored.keyed or restored.operator_state):
            raise JobDefinitionError(
                f'Operator "{self.context.name}" (uid "{self.context.uid}") runs in batch mode, which begins with the '
                "first record and cannot go on from a checkpoint of a streaming job. Run the job in streaming mode, or "
                "without a checkpoint to restore from: under another name, or with another checkpoint directory."
            )
        self.restored = True
        self.ended = restored.ended

    def open(self) -> None:
        self._inner.open()

    def close(self) -> None:
        self._records.close()
        try:
            self._inner.close()
        finally:
            super().close()

    # Step 1

    def input(self, number: int) -> Callable[[Block, Attention], None]:
        self._takers[number] = self._inner.input(number)
        if number in self._at_once:
            return self._takers[number]

        def collect(block: Block, attention: Attention) -> None:
            add = self._records.add
            values, keys, times = block.values, block.keys, block.timestamps
            for position in range(block.position, len(values)):
                record = Record(None if times is None else times[position], number, values[position])
                add(None if keys is None else keys[position], record)
            block.position = len(values)

        return collect

    def process(self, value: Any, timestamp: int | None) -> None:
        key = None if self.context.backend is None else self.context.backend.key_context.key
        if 0 not in self._takers:
            self._takers[0] = self._inner.input(0)
        self._records.add(key, Record(timestamp, 0, value))

    def watermark(self, time_ms: int) -> None:
        """There is no time before the end."""

    def idle(self, is_idle: bool) -> None:
        """Nothing waits for the watermark of this operator but its end."""

    # Steps 2 and 3

    def end_input(self) -> None:
        if self.ended:
            self._end()
            return
        self._replay = iter(self._records)
        self.context.wake()

    def has_room(self) -> bool:
        # The output ends later than the input: the task is drained when `output_ended` is true.
        return True

    def next_processing_time(self) -> int | None:
        return None if self._replay is None else MIN_WATERMARK

    def processing_time(self, now_ms: int) -> None:
        """A slice of step 2."""
        if self._replay is None:
            return
        until = time.monotonic() + SLICE_S
        for key, records in self._replay:
            if key != self._key:
                self._finish_key()
                self._key = key
            self._feed(key, records)
            if time.monotonic() > until:
                return
        self._finish_key()
        self._replay = None
        self._inner.finish()
        self._end()

    def _feed(self, key: Any, records: list[Record]) -> None:
        keyed = self._keyed
        for (number, has_time), found in groupby(records, key=lambda record: (record.input, record.time is not None)):
            group = list(found)
            values: list[Any] = [record.value for record in group]
            times: Any = [record.time for record in group] if has_time else None
            block = Block(values, [key] * len(group) if keyed else None, times)
            self._takers[number](block, self._attention)

    def _finish_key(self) -> None:
        if self._key is _NO_KEY:
            return
        self._key = _NO_KEY
        inner = self._inner
        if not self._keyed:
            return
        if self._closes_timers:
            self._own.close_timers(True)
        inner.watermark(MAX_WATERMARK)
        inner.processing_time(MAX_WATERMARK)
        self._own.close_timers(False)
        self._own.forget()
        inner.current_watermark = MIN_WATERMARK

    def _end(self) -> None:
        self._records.close()
        self.current_watermark = MAX_WATERMARK
        self.outputs.watermark(MAX_WATERMARK)
        self.ended = True
        self.end_output()

    # The one checkpoint

    def snapshot(self, checkpoint_id: CheckpointId, *, canonical: bool) -> SubtaskWork:
        context = self.context
        if not self.ended:
            raise JobDefinitionError(
                f'Operator "{context.name}" (uid "{context.uid}") runs in batch mode, which takes no checkpoints or '
                "savepoints before the end of its input. Use RuntimeExecutionMode.STREAMING for a job that needs them."
            )
        return SubtaskWork(
            SubtaskSnapshot(
                uid=context.uid,
                subtask=context.subtask,
                parallelism=context.parallelism,
                max_parallelism=context.max_parallelism,
                watermark=self.current_watermark,
                ended=True,
            ),
            None,
        )

    def complete(self, checkpoint_id: int) -> BackgroundWork | None:
        return self._inner.complete(checkpoint_id)


@dataclass(frozen=True)
class SortedInputFactory(OperatorFactory):
    """Another operator in batch mode."""

    inner: OperatorFactory
    at_once: frozenset[int]
    """Inputs whose records are processed as they come: those of a broadcast."""
    memory_bytes: int
    make_backend: Callable[[BackendContext], KeyedStateBackend]
    """What gives the operator a `ForgettingBackend`, if it has keys."""
    keyed: bool = True

    def needs_key(self, input: int) -> bool:
        return self.inner.needs_key(input)

    def create(self) -> Operator:
        return SortedInputOperator(self.inner.create(), self.keyed, self.at_once, self.memory_bytes, self.make_backend)

    @property
    def user_function(self) -> Any:
        return self.inner.user_function
