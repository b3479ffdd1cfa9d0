"""A task from its first line to its last: what Spark runs in a Python worker."""

from __future__ import annotations

import gc
import os
import queue
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa

from headrace import failpoints
from headrace.backends.heap.backend import HeapBackend
from headrace.backends.heap.options import HeapOptions
from headrace.backends.rocksdb.backend import RocksDBBackend
from headrace.checkpoint.local_copies import LocalCopies
from headrace.checkpoint.local_files import LocalFirstFileStore
from headrace.checkpoint.storage.memory import JobManagerCheckpointStorage
from headrace.checkpoint.storage.paths import WriterScope
from headrace.errors import DataLossError, FencedError, HeadraceError, Recovery, UserFunctionError, retry
from headrace.operators.base import Attention, OperatorContext, Restored
from headrace.operators.collect import Collected as CollectedRecords
from headrace.plan.graph import Edge, Node
from headrace.plan.settings import CheckpointingMode
from headrace.runtime.control import messages
from headrace.runtime.control.client import ControlClient
from headrace.runtime.control.results import ResultsClient
from headrace.runtime.control.wire import ConnectionLost
from headrace.runtime.spark.taskcontext import task_attempt_number
from headrace.runtime.task.chain import ChainSubtask, build_subtask
from headrace.runtime.task.deployment import LevelDeployment
from headrace.runtime.task.edges import Clock, EdgeWriter
from headrace.runtime.task.gate import CONTROL, GateMode, InputGate
from headrace.runtime.task.in_flight import inlets_of, read_frames, restored_cells
from headrace.runtime.task.local_directory import LocalDirectory, remove_abandoned
from headrace.runtime.task.mailbox import Mailbox
from headrace.runtime.task.output import OutputClosed, OutputQueue
from headrace.runtime.task.printing import DriverStdout
from headrace.runtime.task.records import EdgeCodec
from headrace.runtime.task.routing import Router, fixed_edges_through
from headrace.runtime.task.snapshots import SnapshotWriter
from headrace.state.backend import BackendContext, KeyedStateBackend
from headrace.state.key_groups import group_range
from headrace.state.object_batches import BatchCodec

READ_AHEAD = 128 * 1024
SWITCH_INTERVAL_S = 0.001
"""A mailbox at full load must let the input and control threads in: 28 ms instead of 69 ms at the 99th percentile."""

GC_THRESHOLDS = (50_000, 20, 100)


class TaskFailed(Exception):
    """Raised in the Spark task after the driver was told the cause."""


class LevelTask:
    """The function of a level: called once in every worker with the cells for its slot."""

    def __init__(self, deployment: LevelDeployment) -> None:
        self.deployment = deployment

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        slot = _slot_of(self.deployment.level, batches)
        return Task(self.deployment, slot, batches).run()


def _slot_of(level: int, batches: Iterator[pa.RecordBatch]) -> int:
    if level == 0:
        return int(next(batches).column(0)[0].as_py())
    return task_attempt_number().partition_id


class Task:
    """One slot of one level for one attempt: threads, control connection, mailbox."""

    mailbox_type = Mailbox

    def __init__(self, deployment: LevelDeployment, slot: int, batches: Iterator[pa.RecordBatch]) -> None:
        self._deployment = deployment
        self._level = deployment.level
        self._slot = slot
        self._batches = batches
        plan = deployment.plan
        self._next_slots = plan.levels[self._level + 1].slots if self._level + 1 < len(plan.levels) else 0
        self._attention = Attention()
        self._wakeup = threading.Event()
        self._clock = Clock()
        self._output = OutputQueue(slot, self._next_slots, self._attention)
        self._output.on_room(self._wakeup)
        self._room = threading.Condition()
        self._mailbox: Mailbox | None = None
        self._gate: InputGate | None = None
        self._copies: LocalCopies | None = None
        self._error: BaseException | None = None
        self._stopping = threading.Event()
        self._lost = False
        """The driver is gone: nothing more may be committed."""
        self._orders: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._local = LocalDirectory(deployment.job_id, self._level, slot)
        self._background = ThreadPoolExecutor(max_workers=2, thread_name_prefix="commit")

    def run(self) -> Iterator[pa.RecordBatch]:
        """The generator that Spark pulls: it only empties the output queue."""
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        # Records come and go by reference counting; the collector would only walk through state for nothing.
        gc.freeze()
        gc.set_threshold(*GC_THRESHOLDS)
        failpoints.configure(self._deployment.failpoints[0], _path_or_none(self._deployment.failpoints[1]))
        deployment = self._deployment
        self._client = ControlClient(deployment.host, deployment.port, deployment.secret, deployment.heartbeats)
        self._results = ResultsClient(
            deployment.host,
            deployment.port,
            deployment.secret,
            messages.ResultsHello(deployment.attempt, self._level, self._slot),
        )
        self._client.send(
            messages.Hello(deployment.attempt, self._level, self._slot, os.getpid(), socket.gethostname())
        )
        # From the first moment on: a task that restores or opens must notice that its driver is gone.
        threading.Thread(
            target=self._client.listen, args=(self._on_message, self._on_lost), name="control", daemon=True
        ).start()
        sys.stdout = DriverStdout(lambda lines: self._send(messages.Printed(lines)), self._client.wait_for_room)
        mailbox = threading.Thread(target=self._run_mailbox, name="mailbox", daemon=True)
        mailbox.start()
        threading.Thread(target=remove_abandoned, args=(deployment.job_id,), name="tidy", daemon=True).start()
        try:
            yield from self._output.batches()
            mailbox.join(5.0)
            if self._error is not None:
                raise TaskFailed(f"Task {self._level}.{self._slot} failed: {self._error}") from self._error
        finally:
            self._stopping.set()
            self._output.close()
            self._client.close()
            self._results.close()
            self._local.close()

    # -- the mailbox thread

    def _run_mailbox(self) -> None:
        subtasks: list[ChainSubtask] = []
        try:
            deploy = self._next_order()
            if isinstance(deploy, messages.Refuse):
                raise FencedError(f"The driver refused task {self._level}.{self._slot}: {deploy.reason}.")
            assert isinstance(deploy, messages.Deploy)
            started = time.monotonic()
            self._mailbox = mailbox = self._assemble(subtasks, deploy)
            self._client.send(messages.Ready(round((time.monotonic() - started) * 1_000), self._files.restored))
            start = self._next_order()
            assert isinstance(start, messages.Start), start
            threading.Thread(target=self._read_input, name="input", daemon=True).start()
            mailbox.run()
            self._output.finish()
            if self._copies is not None:
                # Released: the run is over.
                self._copies.remove()
        except OutputClosed:
            pass
        except ConnectionLost as error:
            self._fail(FencedError(f"The driver is gone: {error}"), tell=False)
        except BaseException as error:
            self._fail(error, tell=True)
        finally:
            self._close(subtasks)

    def _next_order(self) -> Any:
        """What the driver sends before the task runs."""
        order = self._orders.get()
        if isinstance(order, ConnectionLost):
            raise order
        return order

    def _fail(self, error: BaseException, *, tell: bool) -> None:
        self._error = error
        if tell and not self._stopping.is_set():
            try:
                self._client.send(_failure_message(error, self._level, self._slot))
                # The driver cancels the Spark job at once; raising earlier would have Spark report it late and wrong.
                self._stopping.wait(10.0)
            except ConnectionLost:
                pass
        self._output.close()

    def _close(self, subtasks: list[ChainSubtask]) -> None:
        if self._gate is not None:
            self._gate.close()
        snapshots = getattr(self, "_snapshots", None)
        if snapshots is not None:
            snapshots.close()
        self._background.shutdown(wait=False, cancel_futures=True)
        if self._copies is not None:
            self._copies.end()
        for subtask in subtasks:
            for operator in subtask.operators.values():
                try:
                    operator.close()
                except Exception as error:
                    if self._error is None:
                        self._error = error

    def _assemble(self, subtasks: list[ChainSubtask], deploy: messages.Deploy) -> Mailbox:
        deployment = self._deployment
        plan = deployment.plan
        checkpointing = deployment.checkpointing
        router = Router(plan)
        writers: list[EdgeWriter] = []
        codecs: dict[int, EdgeCodec] = {}

        def make_writer(edge: Edge, node: Node, subtask: int) -> EdgeWriter:
            target = plan.graph.node(edge.target)
            return EdgeWriter(
                edge,
                level=self._level,
                producer=subtask,
                producers=node.parallelism,
                target_parallelism=target.parallelism,
                target_max_parallelism=target.max_parallelism,
                router=router,
                queue=self._output,
                clock=self._clock,
            )

        for chain in plan.chains:
            if chain.level != self._level:
                continue
            for subtask, slot in enumerate(chain.slots):
                if slot == self._slot:
                    built, its_writers, its_codecs = build_subtask(plan, chain, subtask, self._context, make_writer)
                    subtasks.append(built)
                    writers.extend(its_writers)
                    codecs.update(its_codecs)
        # The saved program did not chain these edges, so records may be in flight into the middle of a chain.
        unchained = {way.edge for way in deploy.edges if way.edge is not None} - plan.exchanged
        own = {node for subtask in subtasks for node in subtask.chain.nodes}
        chained = {e.id: EdgeCodec(e) for e in plan.graph.edges if e.id in unchained and e.target in own}
        codecs.update(chained)
        channels = set(range(plan.levels[self._level - 1].slots)) if self._level else set()
        if any(s.source is not None for s in subtasks) or self._level == 0:
            channels.add(CONTROL)
        exactly_once = checkpointing.mode is CheckpointingMode.EXACTLY_ONCE
        timeout = checkpointing.aligned_timeout_ms / 1_000 if checkpointing.unaligned else None
        self._gate = gate = InputGate(
            channels,
            mode=GateMode.EXACTLY_ONCE if exactly_once else GateMode.AT_LEAST_ONCE,
            clock=time.monotonic,
            aligned_timeout_s=timeout if exactly_once else None,
            fixed_edges=fixed_edges_through(plan, self._level),
            aside_limit=checkpointing.alignment_max_bytes,
            spill_dir=self._local.path,
            on_urgent=self._wake,
        )
        self._copies = self._begin_copies(deploy)
        self._files = self._restored_files()
        self._snapshots = SnapshotWriter(
            level=self._level,
            slot=self._slot,
            storage=deployment.storage,
            home=deployment.home,
            attempt=deployment.attempt,
            send=self._send,
            copies=self._copies,
            edges=deployment.plan.graph.edges,
            pickles=deployment.pickles,
        )
        self._snapshots.known_shared = shared_files(deploy)
        self._open(subtasks, deploy)
        self._put_back(deploy, subtasks, gate, chained)
        return self.mailbox_type(
            level=self._level,
            slot=self._slot,
            subtasks=subtasks,
            writers=writers,
            codecs=codecs,
            router=router,
            gate=gate,
            output=self._output,
            snapshots=self._snapshots,
            send=self._send,
            clock=self._clock,
            attention=self._attention,
            wakeup=self._wakeup,
            buffer_timeout_s=deployment.buffer_timeout_ms / 1_000,
            input_consumed=self._input_consumed,
            in_background=self._in_background,
        )

    def _open(self, subtasks: list[ChainSubtask], deploy: messages.Deploy) -> None:
        failpoints.hit("task_open", f"{self._level}.{self._slot}")
        store = self._files
        restored = {(r.uid, r.subtask): r for r in deploy.subtasks}
        for subtask in subtasks:
            # From the last to the first, as Flink does: an operator may emit in open().
            for operator in reversed(subtask.operators.values()):
                if deploy.restored:
                    saved = restored.get((operator.context.uid, operator.context.subtask))
                    failpoints.hit("restore_file", f"{self._level}.{self._slot}")
                    if saved is not None:
                        operator.restore(Restored(saved.keyed, saved.operator_state, saved.extra, saved.ended), store)
                operator.open()
            if subtask.source is not None:
                subtask.source.report = lambda uid, number, reached: self._send(messages.Reached(uid, number, reached))
            if subtask.source is not None and self._deployment.announce_positions:
                subtask.source.announce = self._announce

    def _begin_copies(self, deploy: messages.Deploy) -> LocalCopies | None:
        """Where this host keeps files of the job's checkpoints; None if nothing is to be kept."""
        checkpointing, storage = self._deployment.checkpointing, self._deployment.storage
        wanted = checkpointing.enabled and checkpointing.local_recovery
        # There everything travels inside the metadata.
        if not wanted or isinstance(storage, JobManagerCheckpointStorage):
            return None
        copies = LocalCopies(storage.location, self._deployment.home)
        copies.begin(deploy.checkpoint_id)
        return copies if copies.usable else None

    def _restored_files(self) -> LocalFirstFileStore:
        deployment = self._deployment
        storage = deployment.restore_storage or deployment.storage
        store = storage.file_store(WriterScope(deployment.home, 0, deployment.attempt).prefix)
        return LocalFirstFileStore(store, self._copies)

    def _put_back(
        self, deploy: messages.Deploy, subtasks: list[ChainSubtask], gate: InputGate, chained: Iterable[int]
    ) -> None:
        """Records in flight come first, in their order, before any new input; `chained` edges have no other."""
        if not deploy.channels:
            return
        here = ((node, subtask.subtask) for subtask in subtasks for node in subtask.chain.nodes)
        inlets = inlets_of(self._deployment.plan, here)
        for channel in deploy.channels:
            where = f"channel state of task {channel.level}.{channel.slot}"
            cells = read_frames(self._files.read(channel.cells), where)
            gate.put_back(restored_cells(cells, deploy.edges, inlets, self._deployment.pickles), chained)

    def _context(self, node: Node, subtask: int) -> OperatorContext:
        deployment = self._deployment
        checkpointing = deployment.checkpointing
        return OperatorContext(
            job_id=deployment.job_id,
            uid=node.uid,
            name=node.name,
            declared_at=node.declared_at,
            subtask=subtask,
            parallelism=node.parallelism,
            max_parallelism=node.max_parallelism,
            attempt=deployment.attempt,
            job_parameters=deployment.job_parameters,
            backend=self._backend(node, subtask) if node.factory.keyed else None,
            now_ms=self._clock.wall_ms,
            notify=self._notify,
            wake=self._wake,
            checkpointing=checkpointing.enabled,
            exactly_once_output=checkpointing.enabled,
            object_reuse=deployment.object_reuse,
            history=deployment.history,
            input_records=BatchCodec(deployment.plan.graph.input_types(node.uid), deployment.pickles),
        )

    def _backend(self, node: Node, subtask: int) -> KeyedStateBackend:
        options = self._deployment.backend
        local_dir = self._local.path / f"node-{node.id}-{subtask}"
        local_dir.mkdir()
        context = BackendContext(
            uid=node.uid,
            subtask=subtask,
            key_groups=group_range(subtask, node.parallelism, node.max_parallelism),
            max_parallelism=node.max_parallelism,
            local_dir=local_dir,
            object_reuse=self._deployment.object_reuse,
            now_ms=self._clock.wall_ms,
        )
        return HeapBackend(context, options) if isinstance(options, HeapOptions) else RocksDBBackend(context, options)

    # -- other threads

    def _wake(self) -> None:
        self._attention.raised = True
        self._wakeup.set()

    def _send(self, message: messages.Message) -> None:
        try:
            self._client.send(message)
        except ConnectionLost as error:
            self._on_lost(str(error))

    def _notify(self, what: Any) -> None:
        """From an operator to the driver."""
        if isinstance(what, CollectedRecords):
            self._deliver(messages.Collected(what.collector, what.uid, what.subtask, what.checkpoint_id, what.payload))
        else:
            self._send(what)

    def _deliver(self, results: messages.Collected) -> None:
        """Returns when the driver has them; else whoever waits for that must not go on as if it had."""
        try:
            self._results.deliver(results)
        except (ConnectionLost, OSError) as error:
            self._on_lost(str(error))
            raise

    def _announce(self, uid: str, subtask: int, splits: Sequence[bytes]) -> None:
        self._send(messages.Announced(uid, subtask, tuple(splits)))

    def _on_message(self, message: Any) -> None:
        if isinstance(message, messages.Deploy | messages.Start | messages.Refuse):
            self._orders.put(message)
            return
        assert self._mailbox is not None
        self._mailbox.deliver(message)

    def _on_lost(self, reason: str) -> None:
        """Without its driver a task must not go on: a newer attempt may run already."""
        self._orders.put(ConnectionLost(reason))
        if self._stopping.is_set():
            return
        self._lost = True
        self._error = self._error or FencedError(f"The driver is gone: {reason}")
        self._output.close()
        # A user function may never return; then the process ends itself.
        if not self._stopping.wait(5.0):
            os._exit(1)

    def _in_background(self, work: Callable[[], Any]) -> None:
        if self._lost:
            raise OutputClosed
        self._background.submit(work)

    def _input_consumed(self) -> None:
        with self._room:
            self._room.notify()

    def _read_input(self) -> None:
        """Drain Spark's iterator to its end, always; stop for a while above the read-ahead limit."""
        assert self._gate is not None
        assert self._mailbox is not None
        gate, wakeup = self._gate, self._wakeup
        try:
            for batch in self._batches:
                channels = batch.column(1)
                data = batch.column(2)
                for row in range(batch.num_rows):
                    gate.arrive(channels[row].as_py(), data[row].as_py())
                wakeup.set()
                while not gate.may_read_on(READ_AHEAD) and not self._stopping.is_set():
                    with self._room:
                        self._room.wait(0.1)
        except Exception as error:
            if not self._stopping.is_set():
                self._error = self._error or error
                self._output.close()
            return
        self._mailbox.input_ended()


def _failure_message(error: BaseException, level: int, slot: int) -> messages.Failed:
    if isinstance(error, UserFunctionError):
        # A refusal of ours inside of user code (state that does not fit) keeps its name: trying again cannot help.
        own = error.__cause__ if isinstance(error.__cause__, HeadraceError) else error
        return messages.Failed(
            type(own).__name__,
            str(error),
            error.operator,
            error.uid,
            error.record,
            error.location,
            error.cause,
            _facts_of(own),
            kinds=() if own is error else _kinds_of(own),
            recovery=_recovery_of(error),
            exception=error.exception,
            blames_record=error.blames_record,
        )
    cause = "".join(traceback.format_exception(error))
    text = f"Task {level}.{slot}: {type(error).__name__}: {error}"
    return messages.Failed(
        type(error).__name__,
        text,
        cause=cause,
        facts=_facts_of(error),
        kinds=_kinds_of(error),
        recovery=_recovery_of(error),
    )


def _kinds_of(error: BaseException) -> tuple[str, ...]:
    return tuple(kind.__name__ for kind in type(error).__mro__ if issubclass(kind, HeadraceError))


def _recovery_of(error: BaseException) -> Recovery | None:
    if not isinstance(error, HeadraceError):
        return None
    if isinstance(error, FencedError) or isinstance(error.__cause__, FencedError):
        return retry("it is the task that was fenced; the driver checks that it owns the job before its next attempt")
    return error.recovery


def shared_files(deploy: messages.Deploy) -> frozenset[str]:
    """Shared files of the restored checkpoint that need not be stored again."""
    # What lies outside is not ours to refer to: it may be moved or deleted while our checkpoints live.
    if deploy.checkpoint_id is None:
        return frozenset()
    keyed = (keyed for subtask in deploy.subtasks for keyed in subtask.keyed)
    return frozenset(file.path for each in keyed for file in each.files if file.shared and file.path)


def _facts_of(error: BaseException) -> dict[str, str | int] | None:
    if not isinstance(error, DataLossError):
        return None
    # Whatever a connector gave: the message must reach the driver.
    return {name: fact if type(fact) is int else str(fact) for name, fact in error.facts.items()}


def _path_or_none(text: str) -> Path | None:
    return Path(text) if text else None
