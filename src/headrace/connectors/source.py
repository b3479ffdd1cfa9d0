"""The source interface: splits, a reader in the tasks, an enumerator in the driver.

A **split** is a part of the input that one reader reads on its own (a file, a Kafka partition, a
share of a number range), with the position up to which it was read. Splits are plain data: a
`msgspec.Struct` or dataclass of plain fields with a `split_id`, named by `Source.split_type`, so
that positions are saved without pickle and the program, never the file, chooses their type.

The **enumerator** runs in the driver, on one thread. It deals splits out on request and may find new
ones. Its own state is taken in the same step in which a checkpoint is triggered; splits that it
has handed out by then are in the readers' snapshots, all others in its own.

The **reader** runs in a task, on the mailbox thread. On every restore, unfinished splits go back to the
enumerator with their positions (`add_splits_back`) and are dealt out anew, at whatever parallelism.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Generic, Protocol, TypeVar

import pyarrow as pa

from headrace.connectors.metrics import Metrics, OwnMetrics
from headrace.types.information import TypeInformation


class Split(Protocol):
    """Anything with a `split_id` that stays the same while its position moves."""

    @property
    def split_id(self) -> str: ...


SplitT = TypeVar("SplitT", bound=Split)


class Boundedness(Enum):
    """Whether the input has an end."""

    BOUNDED = "bounded"
    UNBOUNDED = "unbounded"


class PollStatus(Enum):
    """What `poll` says when it has no records."""

    IDLE = "nothing right now"
    NEEDS_SPLIT = "all splits are read, another is wanted"
    ENDED = "all splits are read and no more will come"


@dataclass(slots=True)
class SourceBatch:
    """Records of one split, in order: Python values, or Arrow columns of the source's row type.

    After `poll` returned it, `snapshot` must give positions that lie behind its last record.
    """

    split_id: str
    values: list[Any] | None = None
    columns: pa.RecordBatch | None = None
    timestamps: list[int] | None = None
    """Event time of each record in milliseconds, where the source itself knows it."""


@dataclass(frozen=True, slots=True)
class ReaderContext:
    """What a reader may know of the task it lives in."""

    subtask: int
    parallelism: int
    wake: Callable[[], None] = field(default=lambda: None)
    """Thread-safe: call it when records became available, so that an idle task polls at once."""
    wants_timestamps: bool = True
    """Whether anybody looks at the timestamps of the source itself; if not, they need not be given."""
    metrics: Metrics = field(default_factory=OwnMetrics)
    """Counters by name, which the status of the job shows as `uid.name`."""


class SourceReader(ABC, Generic[SplitT]):
    """Reads splits. All methods are called on one thread, never concurrently; none may block."""

    pauses_splits: bool = False
    """Whether `pause_splits` works. Needed for watermark alignment if it reads several splits at a time."""

    def open(self) -> None:
        """Called once per attempt, before the first split arrives."""

    @abstractmethod
    def add_splits(self, splits: Sequence[SplitT]) -> None:
        """Take these splits, from their positions on."""

    def no_more_splits(self) -> None:
        """No further split will be added; after the last one `poll` may answer `ENDED`."""

    @abstractmethod
    def poll(self, limit: int) -> SourceBatch | PollStatus:
        """The next records of one split, at most about `limit`, or why there are none. Never blocks.

        A client that can only block belongs into a fetcher thread of the reader's own.
        """

    def pause_splits(self, paused: AbstractSet[str]) -> None:
        """From now on `poll` gives no records of the splits with these ids, and of all others it does.

        Called for watermark alignment, with other ids whenever they change, and only where `pauses_splits` is set.
        """
        raise NotImplementedError

    def idle_until(self) -> float | None:
        """After `IDLE`: the `time.monotonic()` at which polling again makes sense, if it is known."""
        return None

    @abstractmethod
    def snapshot(self) -> list[SplitT]:
        """All unfinished splits with the position behind the last record that `poll` returned."""

    def snapshot_for(self, checkpoint_id: int) -> None:
        """The `snapshot` that follows at once belongs to this checkpoint. Nothing needs to be done."""

    def checkpoint_complete(self, checkpoint_id: int) -> None:
        """The checkpoint is durable: positions may be told to the outside (a consumer group, say)."""

    def close(self) -> None:
        """Called once, also after a failure. Releases everything `open` took."""


class EnumeratorContext(Protocol):
    """How an enumerator talks to its readers. Use it only on the enumerator's own thread."""

    @property
    def parallelism(self) -> int: ...

    def assign(self, subtask: int, splits: Sequence[Any]) -> None:
        """Send splits to the reader of that subtask."""

    def no_more_splits(self, subtask: int) -> None:
        """Tell the reader that it will get no further split."""


class SplitEnumerator(ABC, Generic[SplitT]):
    """Deals splits out. Runs in the driver; all methods are called on one thread."""

    discovery_interval_ms: int | None = None
    """How often `discover` is called; None for never."""

    def start(self) -> None:
        """Called once per attempt before any reader asks, after `add_splits_back` of restored splits."""

    @abstractmethod
    def handle_split_request(self, subtask: int) -> None:
        """A reader has nothing to read: assign it a split, tell it that none will come, or wait."""

    def holds_back(self, subtask: int) -> bool:
        """Whether a reader that got nothing will get splits that are known already, as soon as it is sure that it may.

        Asked after `handle_split_request`. Event time waits for such a reader; one that might get a split some day
        counts as idle.
        """
        return False

    @abstractmethod
    def add_splits_back(self, splits: Sequence[SplitT]) -> None:
        """Splits that readers had when the restored checkpoint was taken, with their positions."""

    def discover(self) -> None:
        """Look for new splits. Called every `discovery_interval_ms`."""

    @abstractmethod
    def snapshot_state(self) -> bytes:
        """What this enumerator must remember, without splits that were assigned. No pickle."""

    def close(self) -> None:
        """Called once at the end of the attempt."""


class Source(ABC, Generic[SplitT]):
    """Describes an input. It travels to the tasks, so it holds settings and opens nothing."""

    split_type: type[SplitT]
    """Struct or dataclass of plain fields; the codec of positions in checkpoints."""

    replayable: bool = True
    """Whether a reader can go back to a saved position. If not, the job is at-most-once."""

    needs_spark_slot: bool = False
    """Whether a Spark query feeds it, which needs a slot besides those of the job."""

    @property
    def boundedness(self) -> Boundedness:
        return Boundedness.BOUNDED

    @property
    def produced_type(self) -> TypeInformation | None:
        """Type of the records, or None for any Python object."""
        return None

    @abstractmethod
    def create_enumerator(self, context: EnumeratorContext, restored: bytes | None) -> SplitEnumerator[SplitT]:
        """A new enumerator, from what `snapshot_state` gave if the job is restored."""

    @abstractmethod
    def create_reader(self, context: ReaderContext) -> SourceReader[SplitT]:
        """A new reader for one subtask and attempt."""

    def describe(self) -> str:
        """One line for `explain`."""
        return type(self).__name__
