"""Runs one operator by hand: no Spark, no threads, no waiting; time passes when the test says so.

    harness = OperatorHarness(CountLogins(), key_by=lambda login: login.user)
    harness.process(Login("ann"), timestamp=1_000)
    harness.watermark(60_000)
    assert harness.take() == [("ann", 1)]

All subtasks of the operator live in one harness; records go to the subtask that owns their key. The operators,
backends, snapshots and the way state is dealt out at another parallelism are the engine's own.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from headrace.backends.heap.backend import HeapBackend
from headrace.backends.heap.options import HeapOptions
from headrace.backends.rocksdb.backend import RocksDBBackend
from headrace.backends.rocksdb.options import RocksDBOptions
from headrace.checkpoint.metadata.model import CheckpointMetadata, OperatorRecord
from headrace.checkpoint.restore import OperatorTarget, plan_restore
from headrace.checkpoint.storage.memory import JobManagerCheckpointStorage
from headrace.checkpoint.storage.paths import WriterScope
from headrace.datastream.streams import DataStream
from headrace.durations import DurationLike
from headrace.errors import JobDefinitionError, KeyedStateError
from headrace.operators.base import Attention, Block, Operator, OperatorContext, Restored
from headrace.operators.functions import OutputTag
from headrace.operators.watermarks import MIN_WATERMARK
from headrace.plan.keys import KeyLike
from headrace.plan.settings import BackendOptions
from headrace.runtime.task.cells import Address
from headrace.runtime.task.chain import ChainInput
from headrace.state.backend import BackendContext, KeyedStateBackend
from headrace.state.descriptors import StateDescriptor
from headrace.state.key_groups import group_range, key_group
from headrace.state.keys import raw_key, stored_form
from headrace.testing.clock import ManualClock
from headrace.testing.output import Output
from headrace.testing.subject import Subject, own_copy, subject_of, subject_of_program
from headrace.types.information import TypeLike

PATIENCE_S = 60.0
"""How long a harness waits for what an operator does in the background before it fails the test."""
LOOK_AGAIN_S = 0.01

_BACKENDS: dict[str, BackendOptions] = {"heap": HeapOptions(), "rocksdb": RocksDBOptions()}
_STORE = JobManagerCheckpointStorage(max_state_size=1 << 30).file_store(WriterScope("harness", 1, 1).prefix)


class Timer(NamedTuple):
    """A timer that waits, as `OperatorHarness.timers` tells it."""

    time: int
    key: Any
    namespace: bytes = b""


@dataclass(frozen=True, slots=True)
class HarnessSnapshot:
    """What a checkpoint holds of the operator: bytes and plain values only, as in a real one."""

    metadata: CheckpointMetadata
    output: Output
    """What had been emitted before the barrier."""

    @property
    def checkpoint_id(self) -> int:
        return self.metadata.checkpoint_id


class _Subtask:
    """One subtask: its operator and what feeds it."""

    def __init__(self, operator: Operator, inputs: int, index: int) -> None:
        self.operator = operator
        self.input = ChainInput(operator, [(n, 0) for n in range(inputs)], {n: n for n in range(inputs)})
        self.takers = [operator.input(number) for number in range(inputs)]
        self.index = index

    def address(self, number: int) -> Address:
        return Address(number, 0, self.index)


class OperatorHarness:
    """All subtasks of one operator, driven by the test. Also a context manager that closes them.

    `function` is a user function or an operator factory; `OperatorHarness.of(lambda stream: …)` takes any operator
    that a program can say, windows, joins and connected streams among them. `backend` is `"heap"`, `"rocksdb"` or
    options. `restored` is a snapshot of another harness, which may have had another parallelism or, if the snapshot is
    canonical, another backend.

    Each subtask and attempt runs a copy of the function, as in a job: nothing outlives a crash in its attributes. A
    function that holds what cannot be copied, such as a lock, is shared.
    """

    def __init__(
        self,
        function: Any,
        *,
        key_by: KeyLike | None = None,
        parallelism: int = 1,
        max_parallelism: int = 128,
        backend: str | BackendOptions = "heap",
        clock: ManualClock | None = None,
        restored: HarnessSnapshot | None = None,
        object_reuse: bool = False,
        job_parameters: dict[str, str] | None = None,
        uid: str = "operator",
    ) -> None:
        self._subject = function if isinstance(function, Subject) else subject_of(function, key_by, uid)
        self._max_parallelism = max_parallelism
        self.clock = clock if clock is not None else ManualClock()
        self._object_reuse = object_reuse
        self._job_parameters = dict(job_parameters or {})
        self._attention = Attention()
        self._woken = threading.Event()
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._subtasks: list[_Subtask] = []
        self._checkpoint_id = 0 if restored is None else restored.checkpoint_id
        self._next_subtask = 0
        self._last = restored
        self._ended = False
        self._attempt = 0
        self.output = Output()
        self._begin(parallelism, backend, restored)

    @classmethod
    def of(
        cls, build: Callable[..., DataStream], *input_types: TypeLike | None, uid: str | None = None, **settings: Any
    ) -> OperatorHarness:
        """The operator that `build(stream)`, or `build(first, second)`, adds to its inputs. Settings as above."""
        return cls(subject_of_program(build, input_types, uid), **settings)

    # Feeding

    def process(self, value: Any, timestamp: int | None = None, *, input: int = 0, subtask: int | None = None) -> None:
        """One record. It goes to the subtask of its key, to all if broadcast, else to `subtask` or to each in turn."""
        how = self._input(input)
        key = None
        if how.key is not None:
            key = stored_form(how.key(value))
            chosen = [key_group(key, self._max_parallelism) * self.parallelism // self._max_parallelism]
        elif how.broadcast:
            chosen = list(range(self.parallelism))
        elif subtask is not None:
            chosen = [subtask]
        else:
            chosen = [self._next_subtask]
            self._next_subtask = (self._next_subtask + 1) % self.parallelism
        for index in chosen:
            target = self._subtasks[index]
            if not target.operator.has_room():
                self.wait_until(target.operator.has_room, "room for another record")
            block = Block([value], None if key is None else [key], None if timestamp is None else [timestamp])
            target.takers[input](block, self._attention)
        self._fire()

    def process_all(self, values: Iterable[Any], *, input: int = 0) -> None:
        """Records without timestamps, in order."""
        for value in values:
            self.process(value, input=input)

    def watermark(self, time_ms: int, *, input: int | None = None) -> None:
        """Event time has come so far: on one input, or on all."""
        for subtask in self._subtasks:
            for number in self._numbers(input):
                subtask.input.watermark(subtask.address(number), time_ms)
        self._fire()

    def idle(self, is_idle: bool = True, *, input: int | None = None) -> None:
        """An input, or all of them, fell silent (or came back): watermarks do not wait for it."""
        for subtask in self._subtasks:
            for number in self._numbers(input):
                subtask.input.idle(subtask.address(number), is_idle)

    def advance(self, by: DurationLike) -> None:
        """Let processing time pass; timers that are due fire."""
        self.clock.advance(by)
        self._fire()

    def set_time(self, now_ms: int) -> None:
        """The same, to a point in time."""
        self.clock.set(now_ms)
        self._fire()

    def end_input(self, *, input: int | None = None) -> None:
        """An input, or all of them, came to its end. At the end of all, waits until the operator has ended too."""
        for subtask in self._subtasks:
            for number in self._numbers(input):
                subtask.input.end(subtask.address(number))
        self._fire()
        if all(subtask.input.ended for subtask in self._subtasks):
            self._ended = True
            self.wait_until(lambda: len(self.output.ended) == self.parallelism, "the end of the output")

    def wait_until(self, condition: Callable[[], bool], what: str = "it", timeout_s: float = PATIENCE_S) -> None:
        """For operators that work in the background: take their results until the condition holds."""
        deadline = time.monotonic() + timeout_s
        while True:
            self._woken.clear()
            self._fire()
            if condition():
                return
            left = deadline - time.monotonic()
            if left <= 0:
                raise AssertionError(f"Waited {timeout_s:g} s for {what}, in vain.")
            # The operator wakes the harness; what else the condition may depend on does not.
            self._woken.wait(min(left, LOOK_AGAIN_S))

    # Looking

    def take(self) -> list[Any]:
        """The values of the main output since the last `take`."""
        return self.output.take()

    def side_output(self, tag: OutputTag | str) -> list[Any]:
        """All values of a side output so far."""
        tag_id = tag.tag_id if isinstance(tag, OutputTag) else tag
        return [record.value for record in self.output.side.get(tag_id, ())]

    def state(self, state: str | StateDescriptor, key: Any, namespace: bytes = b"") -> Any:
        """What that state holds for a key: the value, a list or a dict. Read as the function itself would read it."""
        name = state if isinstance(state, str) else state.name
        stored = stored_form(key)
        group = key_group(stored, self._max_parallelism)
        backend = self._backend(self._subtasks[group * self.parallelism // self._max_parallelism])
        found = backend.declared.get(name)
        if found is None:
            raise JobDefinitionError(
                f'The operator has declared no keyed state "{name}". It has: {", ".join(backend.declared) or "none"}.'
            )
        before = backend.key_context.key
        backend.key_context.key = stored
        if namespace:
            found.set_namespace(namespace)
        try:
            return _reading(found)
        finally:
            backend.key_context.key = before
            if namespace:
                found.set_namespace(b"")

    def keys(self, state: str | StateDescriptor, namespace: bytes = b"") -> list[Any]:
        """All keys that have something in that state, expired entries among them."""
        name = state if isinstance(state, str) else state.name
        return [raw_key(key) for s in self._subtasks for key in list(self._backend(s).keys(name, namespace))]

    def timers(self, domain: str = "event") -> list[Timer]:
        """Timers that wait, earliest first: `"event"` or `"processing"`."""
        queues: list[Any] = [self._backend(subtask).timers(domain) for subtask in self._subtasks]
        found = [Timer(time_ms, raw_key(key), space) for queue in queues for time_ms, key, space in queue]
        return sorted(found, key=lambda timer: timer.time)

    @property
    def current_watermark(self) -> int:
        return min((s.operator.current_watermark for s in self._subtasks), default=MIN_WATERMARK)

    @property
    def operators(self) -> list[Operator]:
        """The operators themselves, one for each subtask."""
        return [subtask.operator for subtask in self._subtasks]

    @property
    def parallelism(self) -> int:
        return len(self._subtasks)

    # Checkpoints and crashes

    def snapshot(self, *, canonical: bool = False, complete: bool = True) -> HarnessSnapshot:
        """A barrier comes, the snapshot is written and, unless told otherwise, its checkpoint completes.

        `canonical` asks for the format of savepoints, which every backend reads.
        """
        self._checkpoint_id += 1
        works = []
        for subtask in self._subtasks:
            subtask.operator.prepare_snapshot(self._checkpoint_id)
            works.append(subtask.operator.snapshot(self._checkpoint_id, canonical=canonical))
        written = tuple(work.finish(_STORE) for work in works)
        subject = self._subject
        record = OperatorRecord(subject.uid, subject.name, self.parallelism, self._max_parallelism, written)
        metadata = CheckpointMetadata(
            job_id="harness",
            job_name="harness",
            run=1,
            attempt=1,
            checkpoint_id=self._checkpoint_id,
            kind="savepoint" if canonical else "checkpoint",
            mode="aligned",
            created_ms=0,
            duration_ms=0,
            operators=(record,),
        )
        taken = HarnessSnapshot(metadata, self.output.copy())
        if complete:
            self._last = taken
            self.complete(self._checkpoint_id)
        return taken

    def complete(self, checkpoint_id: int) -> None:
        """Tell the operator that a checkpoint is durable; what it does in the background is done at once."""
        for subtask in self._subtasks:
            work = subtask.operator.complete(checkpoint_id)
            after = None if work is None else work()
            if after is not None:
                after()

    def abort(self, checkpoint_id: int) -> None:
        """Tell the operator that a checkpoint was given up."""
        for subtask in self._subtasks:
            subtask.operator.aborted(checkpoint_id)

    def crash(self, *, parallelism: int | None = None, backend: str | BackendOptions | None = None) -> None:
        """The operator dies and comes back from the last completed snapshot, or empty if there is none.

        Output that was emitted after that snapshot is taken back. Feed again what came after it.
        """
        width = self.parallelism if parallelism is None else parallelism
        self._discard()
        self.output = Output() if self._last is None else self._last.output.copy()
        self._ended = False
        self._begin(width, self._options if backend is None else backend, self._last)

    def close(self) -> None:
        """Close the operators, as at the end of an attempt. May be called more than once."""
        self._discard()
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    def __enter__(self) -> OperatorHarness:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # Inside

    def _begin(self, parallelism: int, backend: str | BackendOptions, restored: HarnessSnapshot | None) -> None:
        self._options = _options_of(backend)
        self._attempt += 1
        self._next_subtask = 0
        shares = None
        if restored is not None:
            target = OperatorTarget(
                uid=self._subject.uid,
                name=self._subject.name,
                parallelism=parallelism,
                max_parallelism=self._max_parallelism,
                is_keyed=self._subject.factory.keyed,
            )
            shares = plan_restore(restored.metadata, [target], (), allow_non_restored=False)
        # A function reaches each subtask of a job as a copy of its own.
        factories = [own_copy(self._subject.factory) for _ in range(parallelism)]
        for index, factory in enumerate(factories):
            operator = factory.create()
            operator.setup(
                self._context(index, parallelism), self.output.of(index, self._subject.output_type, operator)
            )
            self._subtasks.append(_Subtask(operator, len(self._subject.inputs), index))
            if shares is not None:
                share = shares.subtask(self._subject.uid, index)
                operator.restore(Restored(share.keyed, share.operator_state, share.extra, share.ended), _STORE)
            operator.open()

    def _discard(self) -> None:
        subtasks, self._subtasks = self._subtasks, []
        for subtask in subtasks:
            subtask.operator.close()

    def _context(self, index: int, parallelism: int) -> OperatorContext:
        subject = self._subject
        return OperatorContext(
            job_id="harness",
            uid=subject.uid,
            name=subject.name,
            declared_at="",
            subtask=index,
            parallelism=parallelism,
            max_parallelism=self._max_parallelism,
            attempt=self._attempt,
            job_parameters=self._job_parameters,
            backend=self._new_backend(index, parallelism) if subject.factory.keyed else None,
            now_ms=self.clock,
            notify=self.output.notified.append,
            wake=self._woken.set,
            checkpointing=True,
            exactly_once_output=True,
            object_reuse=self._object_reuse,
        )

    def _new_backend(self, index: int, parallelism: int) -> KeyedStateBackend:
        options = self._options
        local_dir = Path("/nowhere")
        if isinstance(options, RocksDBOptions):
            if self._folder is None:
                self._folder = tempfile.TemporaryDirectory(prefix="headrace-harness-")
            local_dir = Path(tempfile.mkdtemp(dir=self._folder.name))
        context = BackendContext(
            uid=self._subject.uid,
            subtask=index,
            key_groups=group_range(index, parallelism, self._max_parallelism),
            max_parallelism=self._max_parallelism,
            local_dir=local_dir,
            object_reuse=self._object_reuse,
            now_ms=self.clock,
        )
        return HeapBackend(context, options) if isinstance(options, HeapOptions) else RocksDBBackend(context, options)

    def _fire(self) -> None:
        """Everything that is due by the clock."""
        now_ms = self.clock()
        for subtask in self._subtasks:
            operator = subtask.operator
            due_ms = None if operator.output_ended else operator.next_processing_time()
            if due_ms is not None and due_ms <= now_ms:
                operator.processing_time(now_ms)

    def _input(self, number: int) -> Any:
        if not 0 <= number < len(self._subject.inputs):
            raise JobDefinitionError(
                f"The operator has {len(self._subject.inputs)} inputs; there is no input {number}."
            )
        return self._subject.inputs[number]

    def _numbers(self, input: int | None) -> Iterator[int]:
        return iter(range(len(self._subject.inputs)) if input is None else (input,))

    def _backend(self, subtask: _Subtask) -> KeyedStateBackend:
        backend = subtask.operator.context.backend
        if backend is None:
            raise KeyedStateError(
                f'Operator "{self._subject.name}" has no keyed state and no timers: its input has no key. '
                "Give the harness key_by=."
            )
        return backend


def _options_of(backend: str | BackendOptions) -> BackendOptions:
    if not isinstance(backend, str):
        return backend
    options = _BACKENDS.get(backend)
    if options is None:
        raise JobDefinitionError(f'There is no backend "{backend}". Give one of {", ".join(_BACKENDS)}, or options.')
    return options


def _reading(state: Any) -> Any:
    if hasattr(state, "value"):
        return state.value()
    if hasattr(state, "items"):
        return dict(state.items())
    found = state.get()
    return list(found) if hasattr(state, "add_all") else found
