"""The operator contract: what a task calls on every operator of its chains.

All methods run on the task's mailbox thread, between two records, never inside one; only
`SubtaskWork.finish` and the commit callback of sinks run in the background. An operator passes what it
makes to `outputs`; it never knows whether the next operator stands in the same task.
"""

from __future__ import annotations

import os
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec
import pyarrow as pa

from headrace.checkpoint.handles import (
    KeyedSnapshot,
    OperatorStateShare,
    PreparedItem,
    SubtaskSnapshot,
)
from headrace.errors import HeadraceError, RecordError, UserFunctionError
from headrace.operators.watermarks import MAX_WATERMARK, MIN_WATERMARK
from headrace.state.backend import FileStore, KeyedStateBackend, SnapshotWork
from headrace.state.descriptors import StateDescriptor
from headrace.state.object_batches import BatchCodec
from headrace.state.operator_state import OperatorStates

_OWN_CODE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
"""Frames below this directory are ours; a user's line is the last one that is not."""

NO_RECORD = "(none: "
"""How the text begins that stands for the record where user code failed outside of any, as in `open()`."""

Emit = Callable[[Any, int | None], None]
BackgroundWork = Callable[[], Callable[[], None] | None]
"""Runs in the background; what it returns runs on the mailbox thread afterwards."""


class Attention:
    """Raised by other threads, and by a full output, to bring the mailbox back between two records."""

    __slots__ = ("raised",)

    def __init__(self) -> None:
        self.raised = False


class Block:
    """Records of one cell or poll, with the position of the next one to process."""

    __slots__ = ("keys", "position", "timestamps", "values")

    def __init__(self, values: list[Any], keys: list[Any] | None = None, timestamps: list[int] | None = None) -> None:
        self.values = values
        self.keys = keys
        self.timestamps = timestamps
        self.position = 0


class ColumnBlock(Block):
    """Records of one cell as the Arrow columns they travelled in; only for operators that take columns.

    It is processed as a whole or not at all: no snapshot ever finds a part of it left over. So there are no rows to
    go through one by one, and `values` is empty.
    """

    __slots__ = ("batch", "times")

    def __init__(self, batch: pa.RecordBatch, times: pa.Array | None) -> None:
        super().__init__([])
        self.batch = batch
        self.times = times
        """Timestamps of the rows, if the records have any."""


class Outputs(Protocol):
    """Where an operator's results go: chained operators and edge writers alike."""

    emit: Emit
    """Main output: `(value, timestamp)`."""

    def emit_columns(self, batch: pa.RecordBatch, timestamps: pa.Array | None) -> None:
        """Main output, as Arrow columns of the operator's row type."""

    def emit_all(self, values: Sequence[Any], timestamps: Sequence[int] | None) -> None:
        """Main output, many records at once: the same as `emit` for each, and cheaper where that is possible."""
        emit = self.emit
        if timestamps is None:
            for value in values:
                emit(value, None)
        else:
            for value, timestamp in zip(values, timestamps, strict=True):
                emit(value, timestamp)

    def side(self, tag_id: str, value: Any, timestamp: int | None) -> None:
        """A side output; dropped where nobody asked for it."""

    def watermark(self, time_ms: int) -> None: ...

    def idle(self, is_idle: bool) -> None: ...

    def end(self) -> None:
        """Nothing more will come out of this operator."""


@dataclass(slots=True)
class Restored:
    """What a subtask gets back from a checkpoint."""

    keyed: Sequence[KeyedSnapshot] = ()
    operator_state: Sequence[OperatorStateShare] = ()
    extra: bytes = b""
    ended: bool = False


@dataclass(slots=True)
class OperatorContext:
    """What an operator may know of the subtask it runs in, and how it reaches the task around it."""

    job_id: str
    uid: str
    name: str
    declared_at: str
    subtask: int
    parallelism: int
    max_parallelism: int
    attempt: int
    job_parameters: dict[str, str]
    backend: KeyedStateBackend | None
    """Present for keyed operators only."""
    now_ms: Callable[[], int]
    notify: Callable[[Any], None]
    """Send a control message to the driver; never blocks for long."""
    wake: Callable[[], None]
    """Thread-safe: have the mailbox look around."""
    checkpointing: bool
    exactly_once_output: bool
    """Whether output may become visible only when a checkpoint completes."""
    metrics: dict[str, Any] = field(default_factory=dict)
    object_reuse: bool = False
    """Whether state may share mutable values with user code."""
    history: str = ""
    """Whose numbers attempt and checkpoints are."""
    input_records: BatchCodec = field(default_factory=BatchCodec)
    """How a checkpoint keeps records of the operator's input."""


class SubtaskWork:
    """A subtask's snapshot after its synchronous part: small things are there, state is still to be written."""

    __slots__ = ("keyed", "snapshot")

    def __init__(self, snapshot: SubtaskSnapshot, keyed: SnapshotWork | None) -> None:
        self.snapshot = snapshot
        self.keyed = keyed

    def finish(self, store: FileStore) -> SubtaskSnapshot:
        """Write what is left, on a background thread."""
        if self.keyed is None:
            return self.snapshot
        return msgspec.structs.replace(self.snapshot, keyed=self.keyed.write(store))

    def cancel(self) -> None:
        if self.keyed is not None:
            self.keyed.cancel()


class Operator(ABC):
    """Base of all operators. The task calls `setup`, `restore`, `open`, then records, then `close`."""

    context: OperatorContext
    outputs: Outputs
    emit: Emit
    operator_states: OperatorStates
    """State of this subtask as a whole, beside what it keeps per key."""

    def __init__(self) -> None:
        self.current_watermark = MIN_WATERMARK
        self.ended = False
        self.output_ended = False
        """The same in this attempt: nothing may be emitted any more."""
        self.restored = False

    def setup(self, context: OperatorContext, outputs: Outputs) -> None:
        self.context = context
        self.outputs = outputs
        self.emit = outputs.emit
        self.operator_states = OperatorStates(context.uid, object_reuse=context.object_reuse)

    def input(self, number: int) -> Callable[[Block, Attention], None]:
        """What takes the records of that input. Asked once for each edge, when the task is put together."""
        return self.process_block

    def takes_columns(self, number: int) -> bool:
        """Whether cells of Arrow columns come to that input as a `ColumnBlock`, without a row made of any record.

        Asked once for each edge. Cells of few records still come as rows, in a `Block`.
        """
        return False

    def restore(self, restored: Restored, store: FileStore) -> None:
        """Take back what was saved. Called once before `open`, only if there is a checkpoint."""
        self.restored = True
        self.ended = restored.ended
        self.operator_states.restore(restored.operator_state)
        if self.context.backend is not None:
            self.context.backend.restore(restored.keyed, store)

    def own_states(self) -> Sequence[StateDescriptor]:
        """The keyed states that the operator declares by itself; its function may declare more in `open()`.

        May be called before `setup`: a start compares their types with those of the checkpoint before any task runs.
        """
        return ()

    def open(self) -> None:  # noqa: B027 - optional
        """Called once per attempt, before the first record."""

    @abstractmethod
    def process(self, value: Any, timestamp: int | None) -> None:
        """One record. For keyed operators the key is set before."""

    def process_block(self, block: Block, attention: Attention) -> None:
        """Records from `block.position` on, until the end or until attention is asked for."""
        process = self.process
        values, timestamps = block.values, block.timestamps
        start = position = block.position
        keys = block.keys
        context = self.context.backend.key_context if keys is not None and self.context.backend else None
        try:
            for position in range(start, len(values)):
                if context is not None:
                    context.key = keys[position]  # type: ignore[index]
                process(values[position], None if timestamps is None else timestamps[position])
                if attention.raised:
                    break
        finally:
            block.position = position + 1

    def has_room(self) -> bool:
        """Whether another record may come now.

        While one of its operators says no, a task takes no input and polls no source; barriers that overtake, timers
        and messages go on. The operator wakes its task when it runs out of room; what the record in hand still gives
        must be taken. An operator that overrides this may end its output later than its input ends: its task is
        drained when `output_ended` is true.
        """
        return True

    def process_columns(self, batch: pa.RecordBatch, timestamps: pa.Array | None) -> bool:
        """Take Arrow columns as they are; False if the operator wants rows."""
        return False

    def watermark(self, time_ms: int) -> None:
        """Event time has reached `time_ms` on all inputs."""
        self.current_watermark = time_ms
        self.outputs.watermark(time_ms)

    def idle(self, is_idle: bool) -> None:
        self.outputs.idle(is_idle)

    def next_processing_time(self) -> int | None:
        """When `processing_time` should be called next, in epoch milliseconds."""
        return None

    def processing_time(self, now_ms: int) -> None:  # noqa: B027 - optional
        """The clock has reached what `next_processing_time` said."""

    def end_input(self) -> None:
        """All inputs have ended. Called once per attempt; output already made before a restore is not repeated."""
        if self.current_watermark < MAX_WATERMARK:
            self.watermark(MAX_WATERMARK)
        if not self.ended:
            self.finish()
            self.ended = True
        self.end_output()

    def end_output(self) -> None:
        """Tell the next operators that nothing follows. From now on the clock is not looked at either."""
        self.output_ended = True
        self.outputs.end()

    def finish(self) -> None:  # noqa: B027 - optional
        """Emit what is due at the end of input; once in the life of a job."""

    def prepare_snapshot(self, checkpoint_id: int) -> None:  # noqa: B027 - optional
        """Called before the barrier goes out: flush what must lie before it."""

    def snapshot(self, checkpoint_id: int, *, canonical: bool) -> SubtaskWork:
        """The synchronous part of the snapshot, right after the barrier went out."""
        context = self.context
        keyed = None if context.backend is None else context.backend.snapshot(checkpoint_id, canonical=canonical)
        return SubtaskWork(
            SubtaskSnapshot(
                uid=context.uid,
                subtask=context.subtask,
                parallelism=context.parallelism,
                max_parallelism=context.max_parallelism,
                operator_state=tuple(self.operator_state()),
                splits=tuple(self.splits()),
                prepared=tuple(self.prepared()),
                watermark=self.current_watermark,
                ended=self.ended,
                extra=self.extra(),
            ),
            keyed,
        )

    def operator_state(self) -> Sequence[OperatorStateShare]:
        return self.operator_states.snapshot()

    def splits(self) -> Sequence[bytes]:
        return ()

    def prepared(self) -> Sequence[PreparedItem]:
        return ()

    def extra(self) -> bytes:
        return b""

    def complete(self, checkpoint_id: int) -> BackgroundWork | None:
        """The checkpoint is durable. What must be done now and may block (a sink's commit) is returned:
        the task runs it in the background, and what that returns again on the mailbox thread."""
        if self.context.backend is not None:
            self.context.backend.checkpoint_complete(checkpoint_id)
        return None

    def aborted(self, checkpoint_id: int) -> None:  # noqa: B027 - optional
        """The checkpoint was given up; its prepared output stays and goes with the next one."""

    def close(self) -> None:
        if self.context.backend is not None:
            self.context.backend.close()


def failure_in(operator: Operator, record: Any, error: BaseException) -> UserFunctionError:
    """The user's own error with operator, uid, record and line; an error that has them is kept as it is."""
    if isinstance(error, UserFunctionError):
        return error
    context = operator.context
    location = _users_line(error)
    shown = _short(record)
    where = f" (declared at {context.declared_at})" if context.declared_at else ""
    failure = UserFunctionError(
        f'Operator "{context.name}" (uid "{context.uid}", subtask {context.subtask}){where} failed on record '
        f"{shown} at {location}: {_own_words(error)}",
        operator=context.name,
        uid=context.uid,
        record=shown,
        location=location,
        cause="".join(traceback.format_exception(error)),
        exception=type(error).__name__,
        blames_record=_blames_record(record, error),
    )
    if isinstance(error, HeadraceError):
        failure.recovery = error.recovery
    return failure


def failure_in_driver(name: str, uid: str, declared_at: str, method: str, error: BaseException) -> UserFunctionError:
    """The same for code of a source or a sink that the driver calls, where there is no subtask and no record."""
    location = _users_line(error)
    where = f" (declared at {declared_at})" if declared_at else ""
    return UserFunctionError(
        f'Operator "{name}" (uid "{uid}"){where} failed in {method}, which the driver calls, at {location}: '
        f"{_own_words(error)}",
        operator=name,
        uid=uid,
        record=f"(none: {method} in the driver)",
        location=location,
        cause="".join(traceback.format_exception(error)),
        exception=type(error).__name__,
    )


def _blames_record(record: Any, error: BaseException) -> bool:
    """Whether the record may be why the function failed. What cannot be reached (`OSError`) is no fault of a record."""
    if isinstance(error, HeadraceError):
        return isinstance(error, RecordError)
    return not isinstance(error, OSError) and not (isinstance(record, str) and record.startswith(NO_RECORD))


def _users_line(error: BaseException) -> str:
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith(_OWN_CODE)]
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else "inside Headrace"


def _own_words(error: BaseException) -> str:
    return str(error) if isinstance(error, HeadraceError) else f"{type(error).__name__}: {error}"


def _short(record: Any, limit: int = 200) -> str:
    try:
        text = repr(record)
    except Exception as error:
        return f"<a {type(record).__name__} whose repr() raised {type(error).__name__}>"
    return text if len(text) <= limit else f"{text[:limit]}… ({len(text)} characters)"
