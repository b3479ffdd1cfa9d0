"""What a coordinator needs of the world. Production, harnesses and simulations each bring their own.

Who calls what: `Tasks` and `Reporter` are called on the coordinator's thread and must not wait. `CheckpointStore`,
`Sources` and `HandOver.hand` are called on I/O threads, each by one lane of the executor, and may take as long as they
need.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from headrace.checkpoint.handles import AttemptId, CheckpointId, EdgeRecord, RestoredBytes
from headrace.checkpoint.lifecycle.facts import TaskId
from headrace.checkpoint.lifecycle.settings import LifecycleSettings
from headrace.checkpoint.metadata.model import CheckpointMetadata
from headrace.clocks import SYSTEM_CLOCKS, Clocks
from headrace.errors import CheckpointFailure, HeadraceError, StorageError
from headrace.runtime.control import messages as msg
from headrace.runtime.coordinator.savepoints import SavepointOrder


@dataclass(frozen=True, slots=True)
class CoordinatedAttempt:
    """What is known of an attempt before it begins."""

    job_id: str
    job_name: str
    run: int
    number: AttemptId
    history: str
    """Names the job directory's numbering of attempts."""
    tasks: frozenset[TaskId]
    source_tasks: frozenset[TaskId]
    """Those that get the trigger of an aligned checkpoint: tasks with readers, and all of level 0."""
    operator_names: Mapping[str, str]
    edges: tuple[EdgeRecord, ...]
    """All edges of the program: a checkpoint with records in flight says what they connect."""
    mode: str
    """What metadata calls a checkpoint without records in flight: `aligned` or `at-least-once`."""
    lifecycle: LifecycleSettings
    next_checkpoint_id: CheckpointId
    retained: tuple[CheckpointMetadata, ...] = ()


@dataclass(frozen=True, slots=True)
class Removal:
    """Decided on the coordinator's thread, done later on another: so it holds values, and nothing that changes."""

    checkpoint_ids: tuple[CheckpointId, ...] = ()
    """Checkpoints to drop; then shared files are collected."""
    files: tuple[str, ...] = ()
    """Files of abandoned checkpoints."""
    savepoints: tuple[SavepointOrder, ...] = ()
    """Savepoints that failed, whose tasks may have left files."""
    retained: tuple[CheckpointMetadata, ...] = ()
    """Every checkpoint that stays."""
    open_ids: tuple[CheckpointId, ...] = ()
    """Triggered or undecided at the decision: their tasks may have stored files that nobody has named yet."""
    next_id: CheckpointId = 0
    """Checkpoints from this id on were triggered after the decision, which knows nothing of their files."""
    claimed: bool = False
    """As many checkpoints as are kept have completed: what the job was started from may go, if the job owns it."""


class Tasks(Protocol):
    """The tasks of the attempt."""

    def send(self, task: TaskId, message: msg.Message) -> None:
        """In order, to one task. Never waits; a task that is gone is reported elsewhere."""

    def deployment(self, task: TaskId) -> msg.Deploy:
        """What a task that has joined is sent first."""


class CheckpointStore(Protocol):
    """The job's directory, as this attempt may use it. `FencedError`: a newer attempt exists; nothing was done."""

    def publish(self, metadata: CheckpointMetadata) -> None:
        """Make a checkpoint complete. When this returns, it exists and the attempt was current afterwards."""

    def publish_savepoint(self, order: SavepointOrder, metadata: CheckpointMetadata) -> None:
        """The same for a savepoint, at its own place."""

    def remove(self, removal: Removal) -> None:
        """Delete. `StorageError`: only a part of it was done."""


class Sources(Protocol):
    """The enumerators of the job's sources. What they have to say to readers comes as `ReaderAddressed`."""

    def restore(self) -> None:
        """Create them and give back the splits that readers had. Called once."""

    def start(self, now_ms: int) -> None:
        """All tasks run. Called once."""

    def hear(self, message: msg.SplitRequest | msg.Announced) -> None: ...

    def snapshot(self) -> Mapping[str, bytes]:
        """Their state by uid. Splits assigned before belong to the readers, others to the enumerators."""

    def discover(self, now_ms: int) -> None:
        """Look for new splits where that is due."""

    def look(self, uid: str) -> None:
        """There may be something new for this source."""

    def close(self) -> None: ...


class Alignment(Protocol):
    """Keeps sources together in event time. Called on the coordinator's thread: it waits for nothing."""

    def take(self, reached: msg.Reached) -> None: ...


class HandOver(Protocol):
    """The program's functions that take output as DataFrames, and the Spark queries that feed the job."""

    def begin(self) -> None:
        """All tasks run: feeding queries may start. Called on the coordinator's thread; does not wait."""

    def has_output(self, metadata: CheckpointMetadata) -> bool: ...

    def hand(self, metadata: CheckpointMetadata, order: SavepointOrder | None) -> None:
        """Give the functions what is not known to have been handed over. `order`: of a savepoint."""


class Reporter(Protocol):
    """What people and programs are told about the attempt."""

    def starting(self, progress: str) -> None: ...

    def running(self, pids: dict[str, int], started_in_ms: int, restored: RestoredBytes) -> None: ...

    def tick(self) -> None:
        """About once a second."""

    def failing(self, error: HeadraceError) -> None: ...

    def cancelling(self) -> None: ...

    def checkpoint_completed(self, metadata: CheckpointMetadata, duration_ms: int) -> None: ...

    def checkpoint_declined(self, checkpoint_id: CheckpointId, reason: str) -> None: ...

    def checkpoint_failed(
        self, checkpoint_id: CheckpointId, failure: CheckpointFailure, detail: str, in_a_row: int
    ) -> None:
        """It was given up; `in_a_row`: how many have failed since the last one that completed."""

    def savepoint_completed(self, order: SavepointOrder, metadata: CheckpointMetadata, duration_ms: int) -> None: ...

    def savepoint_failed(self, order: SavepointOrder, reason: str) -> None: ...

    def storage_trouble(self, error: StorageError) -> None:
        """Files that nothing needs could not be removed."""


class Silent:
    """A reporter that tells nobody, an alignment and a hand-over with nothing to do: for those who need none."""

    def starting(self, progress: str) -> None: ...
    def running(self, pids: dict[str, int], started_in_ms: int, restored: RestoredBytes) -> None: ...
    def tick(self) -> None: ...
    def failing(self, error: HeadraceError) -> None: ...
    def cancelling(self) -> None: ...
    def checkpoint_completed(self, metadata: CheckpointMetadata, duration_ms: int) -> None: ...
    def checkpoint_declined(self, checkpoint_id: CheckpointId, reason: str) -> None: ...
    def checkpoint_failed(
        self, checkpoint_id: CheckpointId, failure: CheckpointFailure, detail: str, in_a_row: int
    ) -> None: ...
    def savepoint_completed(self, order: SavepointOrder, metadata: CheckpointMetadata, duration_ms: int) -> None: ...
    def savepoint_failed(self, order: SavepointOrder, reason: str) -> None: ...
    def storage_trouble(self, error: StorageError) -> None: ...
    def take(self, reached: msg.Reached) -> None: ...
    def begin(self) -> None: ...
    def has_output(self, metadata: CheckpointMetadata) -> bool:
        return False

    def hand(self, metadata: CheckpointMetadata, order: SavepointOrder | None) -> None: ...


SILENT = Silent()


@dataclass(frozen=True, slots=True)
class Ports:
    """The world of one coordinator."""

    tasks: Tasks
    store: CheckpointStore
    sources: Sources
    reporter: Reporter = SILENT
    alignment: Alignment = SILENT
    hand_over: HandOver = SILENT
    clocks: Clocks = field(default=SYSTEM_CLOCKS)
