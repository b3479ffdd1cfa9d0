"""The write-ahead sink as a template: say how a whole checkpoint's values are sent, and how to ask whether they were.

    records ─▶ append … append ─▶ barrier: seal ─▶ checkpoint complete: is_committed(marker)? no: send(values, marker)
                                    │                  (in another process if this one died)
                                    └ values and marker are part of the checkpoint

The store needs no transactions that outlive a process: until the checkpoint is complete nothing has left the job.

What the checkpoint keeps of a sealed log, in msgpack, is an array of two:

    marker, an array of job_id, uid, shard, checkpoint_id, attempt, token | array of bytes, each some values in order

The runtime moves a large one into a file of the checkpoint.
"""

from __future__ import annotations

import contextlib
import copy
import re
import secrets
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import msgspec

from headrace.checkpoint.handles import HistoryPoint
from headrace.connectors.sink import CommittedOutput, Committer, Sink, SinkGuarantee, SinkWriter, WriterContext
from headrace.errors import CommitFailedError, TypeMismatchError
from headrace.state.codecs import codec_for
from headrace.state.plain_values import decode_plain, encode_plain
from headrace.types.information import TypeLike, Types, type_of

_TOKEN = re.compile(r"-(\d+)\Z")
VALUES_PER_CHUNK = 1_000
"""Values are encoded in portions as they come: encoded they are smaller, and the barrier finds little left to do."""


class Marker(msgspec.Struct, frozen=True, array_like=True):
    """Names one sealed log for ever: no other log of any job, run or attempt has the same."""

    job_id: str
    uid: str
    shard: int
    """The subtask that wrote it."""
    checkpoint_id: int
    """The first checkpoint that holds it."""
    attempt: int
    token: str
    """`<history>.<random for each writer>-<count>`: a job that begins anew under its old name has checkpoints from 1
    on, and one that moves to another checkpoint directory attempts from 1 on."""

    @property
    def history(self) -> str:
        """The job directory that numbers attempt and checkpoint; empty if a version wrote it that did not say."""
        return history_of(self.token)

    @property
    def writer(self) -> str:
        """The random name of the writer: one subtask of one attempt."""
        return _TOKEN.sub("", self.token.rpartition(".")[2])

    @property
    def sequence(self) -> int:
        """Counts what the writer has sealed. Logs of one writer are committed in this order."""
        number = _TOKEN.search(self.token)
        return 0 if number is None else int(number[1])

    def __str__(self) -> str:
        return f"{self.job_id}/{self.uid}/{self.shard}/{self.checkpoint_id}/{self.token}"


class _Log(msgspec.Struct, array_like=True):
    marker: Marker
    chunks: list[bytes]


class WriteAheadSink(Sink):
    """Output into anything that takes a batch of values, sent when their checkpoint is complete. Extend it.

    It is exactly-once if `send` writes the values and the marker in **one transaction**; then say so in the class:
    `guarantee = SinkGuarantee.WRITE_AHEAD`. Without that a crash between the two sends the values again:
    at-least-once, which is the default, and `explain` names the difference.

    Where no record came between two barriers, nothing is sent.
    """

    guarantee = SinkGuarantee.WRITE_AHEAD_UNMARKED

    knows_other_jobs: bool = False
    """Whether `committed_since` may be asked about a job of another name; see `Committer.knows_other_jobs`."""

    record_type: TypeLike | None = None
    """Type of the records, which chooses how they are kept in the checkpoint. None for plain Python values: numbers,
    text, bytes, dates, tuples, lists, dicts, rows. For a dataclass or NamedTuple, name it here."""

    def open(self) -> None:
        """Connect. Called once in each process that sends, before the first `is_committed` or `send` there.

        Raise `CommitFailedError` if the store cannot be reached: it is tried again, and so is `open`.
        """

    @abstractmethod
    def send(self, values: Sequence[Any], marker: Marker) -> None:
        """Write all values of one subtask and checkpoint, in order, and note the marker.

        Called after the checkpoint is complete, once for each log that `is_committed` does not know, in order of
        checkpoints. It runs beside the task that wrote the log or, on recovery, in the driver; two processes may try
        the same log at one time if the older is about to be stopped. `str(marker)` is a text that fits a column.
        Raise `CommitFailedError` if nothing happened, `CommitOutcomeUnknownError` if it may have: both are tried
        again, `is_committed` first.
        """

    @abstractmethod
    def is_committed(self, marker: Marker) -> bool:
        """Whether a `send` with this marker has got through. Asked before every `send`."""

    def committed_since(self, job_id: str, uid: str, point: HistoryPoint) -> Sequence[CommittedOutput]:
        """Markers that were noted after that moment, if the store can tell; see `Committer.committed_since`.

        `open` was called before. `token_start(point.history)` is what the tokens of that history begin with.
        """
        return ()

    def other_owner(self, job_id: str, uid: str, history: str) -> str:
        """Who else writes this output, if the store can tell; see `Committer.other_owner`. `open` was called before."""
        return ""

    def encode(self, values: Sequence[Any]) -> bytes:
        """Some values as they are kept in the checkpoint. Override together with `decode`, and use no pickle."""
        try:
            if self.record_type is None:
                return encode_plain(list(values))
            return codec_for(Types.LIST(type_of(self.record_type))).encode(list(values))
        except TypeMismatchError as error:
            raise TypeMismatchError(
                f"{type(self).__name__} cannot keep a record in its write-ahead log: {error} Or set record_type in the "
                "class, or map records to tuples, dicts or rows before the sink."
            ) from error

    def decode(self, data: bytes) -> list[Any]:
        """The values again."""
        if self.record_type is None:
            return list(decode_plain(data))
        return list(codec_for(Types.LIST(type_of(self.record_type))).decode(data))

    def to_log(self, value: Any, timestamp: int | None) -> Any:
        """What is kept of a record, and given to `send`: by default the record as it is. Runs in the task."""
        return value

    def close(self) -> None:
        """Called once for each `open`, also after a failure. Releases what was opened."""

    def create_writer(self, context: WriterContext) -> SinkWriter:
        return WriteAheadWriter(copy.copy(self), context)

    def create_committer(self) -> Committer:
        # A copy, so that what `open` puts on `self` belongs to one sender.
        return WriteAheadCommitter(copy.copy(self))


GenericWriteAheadSink = WriteAheadSink


class WriteAheadWriter(SinkWriter):
    """Keeps the log of one subtask: appends records, seals it at the barrier. Sends nothing itself."""

    def __init__(self, sink: WriteAheadSink, context: WriterContext) -> None:
        self._sink = sink
        self._context = context
        self._mark = secrets.token_hex(8)
        self._sealed = 0
        self._values: list[Any] = []
        self._chunks: list[bytes] = []

    def write(self, value: Any, timestamp: int | None) -> None:
        self._values.append(self._sink.to_log(value, timestamp))
        if len(self._values) >= VALUES_PER_CHUNK:
            self._encode()

    def prepare_commit(self, checkpoint_id: int) -> Sequence[bytes]:
        if self._values:
            self._encode()
        if not self._chunks:
            return ()
        context = self._context
        self._sealed += 1
        token = f"{token_start(context.history)}{self._mark}-{self._sealed}"
        marker = Marker(context.job_id, context.uid, context.subtask, checkpoint_id, context.attempt, token)
        sealed = msgspec.msgpack.encode(_Log(marker, self._chunks))
        self._chunks = []
        return [sealed]

    def close(self) -> None:
        self._values, self._chunks = [], []

    def _encode(self) -> None:
        self._chunks.append(self._sink.encode(self._values))
        self._values = []


class WriteAheadCommitter(Committer):
    """Sends sealed logs that have not got through, beside the writer or, on recovery, in the driver."""

    def __init__(self, sink: WriteAheadSink) -> None:
        self._sink = sink
        self._opened = False
        self._operator: tuple[str, str] | None = None
        self.knows_other_jobs = sink.knows_other_jobs

    def attempt_starts(self, job_id: str, uid: str, attempt: int, parallelism: int) -> None:
        self._operator = (job_id, uid)

    def other_owner(self) -> str:
        # A store that is down delays output; it does not keep a job from starting.
        with contextlib.suppress(CommitFailedError):
            if self._operator is not None:
                self._open()
                return self._sink.other_owner(*self._operator, self.history)
        return ""

    def commit(self, items: Sequence[bytes]) -> None:
        if items:
            self._open()
        for item in items:
            log = msgspec.msgpack.decode(item, type=_Log)
            if not self._sink.is_committed(log.marker):
                values = [value for chunk in log.chunks for value in self._sink.decode(chunk)]
                self._sink.send(values, log.marker)

    def committed_since(self, job_id: str, uid: str, point: HistoryPoint) -> Sequence[CommittedOutput]:
        self._open()
        return self._sink.committed_since(job_id, uid, point)

    def close(self) -> None:
        if self._opened:
            self._opened = False
            self._sink.close()

    def _open(self) -> None:
        if not self._opened:
            self._sink.open()
            self._opened = True


def token_start(history: str) -> str:
    """What tokens of markers begin with that were made in this history."""
    return f"{history}." if history else ""


def history_of(token: str) -> str:
    """The history in which a token was made; empty if it does not say."""
    return token.partition(".")[0] if "." in token else ""


def marker_of(item: bytes) -> Marker:
    """The marker of a prepared item, for those who look at checkpoints from outside."""
    return msgspec.msgpack.decode(item, type=_Log).marker
