"""Messages between the driver and its tasks: tagged msgpack structs, no pickle."""

from __future__ import annotations

import msgspec

from headrace.checkpoint.handles import (
    ChannelSnapshot,
    KeyedSnapshot,
    OperatorStateShare,
    RestoredBytes,
    RestoredEdge,
    TaskSnapshot,
)
from headrace.errors import Recovery


class Message(msgspec.Struct, frozen=True, tag=True):
    """Base of all messages; the struct's name is its tag."""


class Heartbeat(Message, frozen=True):
    """From either end: this process is alive. Handled by the connection itself."""


# -- from a task to the driver


class Hello(Message, frozen=True):
    """The first message of a task: who it is. A second hello for one slot is refused."""

    attempt: int
    level: int
    slot: int
    pid: int
    host: str


class Ready(Message, frozen=True):
    """State is restored and every operator is open."""

    restore_ms: int = 0
    restored: RestoredBytes = RestoredBytes()


class SplitRequest(Message, frozen=True):
    """A reader has nothing left to read."""

    uid: str
    subtask: int


class Announced(Message, frozen=True):
    """A reader is about to emit records up to these positions; sent only where no checkpoint keeps them."""

    uid: str
    subtask: int
    splits: tuple[bytes, ...]


class Reached(Message, frozen=True):
    """How far the slowest split of a source subtask is, where watermarks are aligned; the largest time if none is."""

    uid: str
    subtask: int
    watermark: int


class Acknowledge(Message, frozen=True):
    """The snapshot of this task is written."""

    checkpoint_id: int
    snapshot: TaskSnapshot


class Decline(Message, frozen=True):
    """This task cannot take part in the checkpoint."""

    checkpoint_id: int
    failure: str
    detail: str


class Committed(Message, frozen=True):
    """All sinks of this task have committed what the checkpoint prepared."""

    checkpoint_id: int


class Drained(Message, frozen=True):
    """All inputs of this task have ended."""


class Failed(Message, frozen=True):
    """This task cannot go on; it waits for the driver to cancel the job."""

    error: str
    message: str
    operator: str = ""
    uid: str = ""
    record: str = ""
    location: str = ""
    cause: str = ""
    facts: dict[str, str | int] | None = None
    """Of a `DataLossError`, which the driver rebuilds with its own type; None for any other error."""
    kinds: tuple[str, ...] = ()
    """Of an error of the Headrace tree: the names of its classes, its own first. The driver may not know the first."""
    recovery: Recovery | None = None
    """Whether another attempt can help, as the error itself says; None for an exception of another kind."""
    exception: str = ""
    """The class of what user code raised."""
    blames_record: bool = False


class ResultsHello(Message, frozen=True):
    """The first message on a connection for results: whose they are. The task has said its hello before."""

    attempt: int
    level: int
    slot: int


class Collected(Message, frozen=True):
    """Records for `execute_and_collect`, on a connection of their own. The driver answers `Taken`."""

    collector: str
    uid: str
    subtask: int
    checkpoint_id: int
    payload: bytes
    more: bool = False
    """The payload goes on in the next message."""


class Printed(Message, frozen=True):
    """Lines of `print()`, shown by the driver."""

    lines: tuple[str, ...]


class Progress(Message, frozen=True):
    """What a task did since it started; sent about once a second."""

    records_in: int
    records_out: int
    records_read: int
    records_written: int
    watermark: int | None
    latency_ms: float | None
    busy: float
    metrics: dict[str, float | int]


TaskMessage = (
    Hello
    | Ready
    | SplitRequest
    | Announced
    | Reached
    | Acknowledge
    | Decline
    | Committed
    | Drained
    | Failed
    | Printed
    | Progress
    | Heartbeat
)

FirstMessage = TaskMessage | ResultsHello
"""What a connection may begin with; everything but the two hellos is turned away."""

# -- from the driver to a task


class SubtaskRestoration(msgspec.Struct, frozen=True):
    """What one subtask gets back."""

    uid: str
    subtask: int
    keyed: tuple[KeyedSnapshot, ...] = ()
    operator_state: tuple[OperatorStateShare, ...] = ()
    extra: bytes = b""
    ended: bool = False


class Deploy(Message, frozen=True):
    """Open the operators, from a checkpoint if `restored`."""

    restored: bool
    subtasks: tuple[SubtaskRestoration, ...] = ()
    channels: tuple[ChannelSnapshot, ...] = ()
    """Files with records in flight that this task may own, in the order in which they are put back."""
    edges: tuple[RestoredEdge, ...] = ()
    """Where the records in flight on each edge of the saved program go on."""
    checkpoint_id: int | None = None
    """The restored checkpoint, if it is of this run: its shared files need not be stored again, and the task's host may
    still have copies of its files."""


class Start(Message, frozen=True):
    """Every task is ready: begin."""


class AssignSplits(Message, frozen=True):
    """Splits for a reader, and whether these are the last."""

    uid: str
    subtask: int
    splits: tuple[bytes, ...]
    last: bool = False


class AlignTo(Message, frozen=True):
    """How far the slowest other subtask of this source's alignment group is."""

    uid: str
    subtask: int
    floor: int


class Trigger(Message, frozen=True):
    """Begin a checkpoint. In-band with `AssignSplits`: what was assigned before it belongs to the checkpoint."""

    checkpoint_id: int
    unaligned: bool = False
    canonical: bool = False
    stopping: bool = False
    drain: bool = False


class SavepointTarget(Message, frozen=True):
    """Where the files of a savepoint go: sent to every task before the trigger, which not every task gets."""

    checkpoint_id: int
    location: str


class Complete(Message, frozen=True):
    """The checkpoint is durable: commit."""

    checkpoint_id: int
    shared: tuple[str, ...] = ()
    """The task's own shared files in it, which need not be stored again while it is retained."""


class Abort(Message, frozen=True):
    """The checkpoint was given up."""

    checkpoint_id: int


class Release(Message, frozen=True):
    """The job is done: return."""


class Refuse(Message, frozen=True):
    """This task is not wanted (an old attempt, a second hello): end."""

    reason: str


class Taken(Message, frozen=True):
    """The answer to results: the program has them."""


DriverMessage = (
    Deploy
    | Start
    | AssignSplits
    | AlignTo
    | Trigger
    | SavepointTarget
    | Complete
    | Abort
    | Release
    | Refuse
    | Heartbeat
)
