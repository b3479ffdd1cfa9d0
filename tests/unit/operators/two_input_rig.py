"""Operators of one node driven by hand: several subtasks on real backends, snapshots, and restores at another width."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from typing import Any

from backend_workshop import FLAVOURS
from local_store import LocalStore

from headrace.backends.heap.backend import HeapBackend
from headrace.checkpoint.metadata.model import CheckpointMetadata, OperatorRecord
from headrace.checkpoint.restore import OperatorTarget, plan_restore
from headrace.operators.base import Attention, Block, Operator, OperatorContext, Restored
from headrace.state.backend import BackendContext
from headrace.state.key_groups import group_range, key_group
from headrace.state.keys import stored_form

MAX_PARALLELISM = 16
BOTH = ("heap", "rocksdb-cramped")
"""The second has to go to its database for nearly every access."""
_folders = count()


class Collected:
    """Takes what an operator puts out."""

    def __init__(self) -> None:
        self.values: list[Any] = []
        self.timed: list[tuple[Any, int | None]] = []
        self.aside: dict[str, list[Any]] = defaultdict(list)
        self.watermarks: list[int] = []
        self.ended = False

    def emit(self, value: Any, timestamp: int | None) -> None:
        self.values.append(value)
        self.timed.append((value, timestamp))

    def emit_columns(self, batch: Any, timestamps: Any) -> None:
        raise AssertionError("no operator here makes columns")

    def side(self, tag_id: str, value: Any, timestamp: int | None) -> None:
        self.aside[tag_id].append(value)

    def watermark(self, time_ms: int) -> None:
        self.watermarks.append(time_ms)

    def idle(self, is_idle: bool) -> None:
        pass

    def end(self) -> None:
        self.ended = True


class Rig:
    """All subtasks of one operator. What they put out is gathered in `out`, over restarts too."""

    def __init__(
        self,
        make: Callable[[], Operator],
        directory: Path,
        *,
        flavour: str | None = "heap",
        parallelism: int = 1,
        restored: CheckpointMetadata | None = None,
        out: Collected | None = None,
        uid: str = "op",
    ) -> None:
        self.make, self.directory, self.flavour, self.parallelism, self.uid = make, directory, flavour, parallelism, uid
        self.out = Collected() if out is None else out
        self.store = LocalStore(directory / "store")
        self.operators = [make() for _ in range(parallelism)]
        self._inputs: list[list[Callable[[Block, Attention], None]]] = []
        self._next = 0
        self.now_ms = 1_000
        plan = None
        if restored is not None:
            target = OperatorTarget(uid, uid, parallelism, MAX_PARALLELISM, is_keyed=flavour is not None)
            plan = plan_restore(restored, [target], (), allow_non_restored=False)
        for index, operator in enumerate(self.operators):
            operator.setup(self._context(index), self.out)
            if plan is not None:
                share = plan.subtask(uid, index)
                operator.restore(Restored(share.keyed, share.operator_state, share.extra, share.ended), self.store)
            operator.open()
            self._inputs.append([operator.input(0), operator.input(1)])

    def _context(self, subtask: int) -> OperatorContext:
        backend = None
        if self.flavour is not None:
            local = self.directory / f"local-{next(_folders)}"
            local.mkdir(parents=True)
            groups = group_range(subtask, self.parallelism, MAX_PARALLELISM)
            backend = FLAVOURS[self.flavour](BackendContext(self.uid, subtask, groups, MAX_PARALLELISM, local))
        return OperatorContext(
            job_id="job",
            uid=self.uid,
            name=self.uid,
            declared_at="jobs/test.py:1",
            subtask=subtask,
            parallelism=self.parallelism,
            max_parallelism=MAX_PARALLELISM,
            attempt=1,
            job_parameters={},
            backend=backend,
            now_ms=lambda: self.now_ms,
            notify=lambda message: None,
            wake=lambda: None,
            checkpointing=True,
            exactly_once_output=True,
        )

    def feed(self, input: int, value: Any, *, key: Any = None, at: int | None = None) -> None:
        """One record: by its key, if it has one, else to the subtasks in turn."""
        if key is not None:
            stored = stored_form(key)
            subtask = key_group(stored, MAX_PARALLELISM) * self.parallelism // MAX_PARALLELISM
            self.block(subtask, input, [value], [stored], None if at is None else [at])
        else:
            self.block(self._next % self.parallelism, input, [value], None, None if at is None else [at])
            self._next += 1

    def broadcast(self, value: Any, *, at: int | None = None) -> None:
        """One record to the second input of every subtask."""
        for subtask in range(self.parallelism):
            self.block(subtask, 1, [value], None, None if at is None else [at])

    def block(
        self,
        subtask: int,
        input: int,
        values: Sequence[Any],
        keys: Sequence[Any] | None = None,
        timestamps: Sequence[int] | None = None,
    ) -> None:
        cell = Block(
            list(values), None if keys is None else list(keys), None if timestamps is None else list(timestamps)
        )
        # Interrupted after every record: that must change nothing.
        attention = Attention()
        attention.raised = True
        while cell.position < len(cell.values):
            before = cell.position
            self._inputs[subtask][input](cell, attention)
            assert cell.position == before + 1, "an operator stops between two records when it is asked to"

    def watermark(self, time_ms: int) -> None:
        for operator in self.operators:
            operator.watermark(time_ms)

    def end(self) -> None:
        for operator in self.operators:
            operator.end_input()

    def snapshot(self, checkpoint_id: int = 1, *, canonical: bool = False) -> CheckpointMetadata:
        """A complete checkpoint of the node."""
        subtasks = []
        for operator in self.operators:
            operator.prepare_snapshot(checkpoint_id)
            subtasks.append(operator.snapshot(checkpoint_id, canonical=canonical).finish(self.store))
        for operator in self.operators:
            operator.complete(checkpoint_id)
        return CheckpointMetadata(
            job_id="job",
            job_name="job",
            run=1,
            attempt=1,
            checkpoint_id=checkpoint_id,
            kind="checkpoint",
            mode="aligned",
            created_ms=0,
            duration_ms=0,
            operators=(OperatorRecord(self.uid, self.uid, self.parallelism, MAX_PARALLELISM, tuple(subtasks)),),
        )

    def restarted(
        self,
        checkpoint: CheckpointMetadata,
        *,
        parallelism: int | None = None,
        flavour: str | None = None,
        make: Callable[[], Operator] | None = None,
    ) -> Rig:
        """The node as a new attempt has it, perhaps at another width. This one is closed."""
        self.close()
        return Rig(
            make or self.make,
            self.directory,
            flavour=flavour or self.flavour,
            parallelism=parallelism or self.parallelism,
            restored=checkpoint,
            out=self.out,
            uid=self.uid,
        )

    def close(self) -> None:
        for operator in self.operators:
            operator.close()

    def entries(self) -> int:
        """How many entries of keyed state and timers there are, counted in a savepoint: RocksDB itself only guesses."""
        found = 0
        for operator in self.operators:
            assert operator.context.backend is not None
            saved = operator.context.backend.snapshot(99, canonical=True).write(self.store)
            groups = range(saved.first_group, saved.last_group + 1)
            copy = HeapBackend(BackendContext(self.uid, 0, groups, MAX_PARALLELISM, self.directory))
            copy.restore([saved], self.store)
            found += copy.entry_count() + len(copy.timers("event"))
        return found
