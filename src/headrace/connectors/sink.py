"""The sink interface: a writer in the tasks, and a committer if the sink is transactional.

The runtime keeps, for every sink subtask, the ordered list of **prepared items** that were not yet
known to be committed. Every snapshot holds all of them; when checkpoint *c* completes, all items ≤ *c*
are committed in order. So output of an aborted checkpoint is not lost: the next one carries it.
On recovery the driver commits the items of the restored checkpoint before any task starts.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from headrace.checkpoint.handles import HistoryPoint


class SinkGuarantee(Enum):
    """What a sink promises when its source can be replayed and checkpoints are on."""

    NONE = "nothing: output may be lost, and seen again"
    AT_LEAST_ONCE = "at-least-once"
    IDEMPOTENT = "exactly-once by idempotent writes"
    WRITE_AHEAD = "exactly-once by write-ahead log and marker"
    WRITE_AHEAD_UNMARKED = "at-least-once by write-ahead log (send and marker are not one transaction)"
    TWO_PHASE = "exactly-once by two-phase commit"


@dataclass(frozen=True, slots=True)
class WriterContext:
    """What a writer or committer may know. `attempt` names its files apart from those of the dead."""

    job_id: str
    uid: str
    subtask: int
    parallelism: int
    attempt: int
    history: str = ""
    """Which job directory counts these attempts and their checkpoints: see `Committer.committed_since`."""


@dataclass(frozen=True, slots=True)
class CommittedOutput:
    """Output that a sink knows it has shown."""

    attempt: int
    checkpoint_id: int
    """The first checkpoint that held it."""
    what: str
    """As a person finds it: a file, a number of rows."""


class SinkWriter(ABC):
    """Writes records of one subtask. Called on the mailbox thread only; may block (that is back-pressure)."""

    def open(self) -> None:  # noqa: B027 - optional for implementers
        """Called once per attempt before the first record. `restore_state` comes before it."""

    @abstractmethod
    def write(self, value: Any, timestamp: int | None) -> None:
        """Take one record."""

    def write_batch(self, values: Sequence[Any], timestamps: Sequence[int] | None) -> None:
        """Take several records at once; by default one after the other."""
        for i, value in enumerate(values):
            self.write(value, None if timestamps is None else timestamps[i])

    def flush(self) -> None:  # noqa: B027 - optional for implementers
        """Push out what is buffered. Called at every barrier and at the end of input."""

    def prepare_commit(self, checkpoint_id: int) -> Sequence[bytes]:
        """Make all output since the last call durable and give what the committer needs to show it.

        Called at every barrier, after `flush`. Return nothing where nothing was written.
        """
        return ()

    def snapshot_state(self) -> bytes:
        """What the writer itself must remember (a file counter, say). No pickle."""
        return b""

    def restore_state(self, state: bytes) -> None:  # noqa: B027 - optional for implementers
        """Called before `open` with what this subtask's predecessor saved, if there was one."""

    def close(self) -> None:  # noqa: B027 - optional for implementers
        """Called once, also after a failure: output that was not prepared is given up."""


class Committer(ABC):
    """Makes prepared output visible. Runs in tasks after completion, and in the driver on recovery."""

    history: str = ""
    """The job directory that numbers the attempts of this recovery, as in `WriterContext.history`. Set by the driver
    that owns the directory, before `committed_since` and `attempt_starts`. Uncommitted output of another history
    belongs to another job of the same name, which may be running: leave it alone."""

    knows_other_jobs: bool = False
    """Whether `committed_since` may be asked about a job of another name: it tells what that job committed to the same
    place, and reads only, because that job may be running."""

    @abstractmethod
    def commit(self, items: Sequence[bytes]) -> None:
        """Show these items, in order. May be called any number of times for the same item.

        Raise `CommitFailedError` if nothing happened, `CommitOutcomeUnknownError` if it may have.
        """

    def abort_leftovers(self, job_id: str, uid: str, attempt: int, keep: Sequence[bytes]) -> None:  # noqa: B027
        """Remove uncommitted output that older attempts of `self.history` left, except `keep`. Runs in the driver."""

    def attempt_starts(self, job_id: str, uid: str, attempt: int, parallelism: int) -> None:  # noqa: B027
        """A new attempt recovers: `commit` of what it restored and `abort_leftovers` follow. Runs in the driver."""

    def committed_since(self, job_id: str, uid: str, point: HistoryPoint) -> Sequence[CommittedOutput]:
        """What was committed for this operator after that moment, as far as the sink remembers; the newest last.

        Only output of writers whose `WriterContext.history` is `point.history` can be compared with it, by attempt and
        then checkpoint id. Asked in the driver before `attempt_starts`, only where a person chose the checkpoint to
        begin from: if there is any, the start is refused. By default nothing is known, and nothing refused.
        """
        return ()

    def other_owner(self) -> str:
        """Who else writes the same operator's output to the same place: a job of the same name with another checkpoint
        directory. Empty if nobody is known. Asked in the driver after `abort_leftovers`; the start goes on, and the
        text is reported as advice."""
        return ""

    def close(self) -> None:  # noqa: B027 - optional for implementers
        """Release connections."""


class Sink(ABC):
    """Describes an output. It travels to the tasks, so it holds settings and opens nothing."""

    guarantee: SinkGuarantee = SinkGuarantee.AT_LEAST_ONCE

    needs_spark_slot: bool = False
    """Whether a Spark query follows it, which needs a slot besides those of the job."""

    max_uncommitted_checkpoints: int = 10
    """Completed checkpoints whose output a subtask may have yet to commit. With more, it takes no input until it has
    caught up: a slow store slows the job down instead of filling memory and checkpoints."""

    @abstractmethod
    def create_writer(self, context: WriterContext) -> SinkWriter:
        """A new writer for one subtask and attempt."""

    def create_committer(self) -> Committer | None:
        """A committer, for transactional sinks."""
        return None

    def preflight(self) -> None:  # noqa: B027 - optional for implementers
        """Check settings and reachability in the driver before anything starts; raise what is wrong."""

    def preflight_for(self, parallelism: int, concurrent_checkpoints: int) -> None:
        """The same for a sink whose needs grow with its subtasks and with the checkpoints under way at one time."""
        self.preflight()

    def guarantee_in_words(self) -> tuple[str, str | None] | None:
        """What the guarantee rests on and what would better it, where the usual words for its kind do not fit."""
        return None

    def describe(self) -> str:
        """One line for `explain`."""
        return type(self).__name__
