"""The two-phase sink as a template: say how one transaction begins, takes a record, is made durable and committed.

    records ─▶ begin ─▶ invoke … invoke ─▶ barrier: pre_commit ─▶ checkpoint complete: commit
                                             │                       (in another process if this one died)
                                             └ the prepared transaction is part of the checkpoint

What the checkpoint keeps of a prepared transaction, in msgpack, is an array of three:

    checkpoint_id int | writer str | transaction, as `transaction_type` says

`writer` is a random mark of the writer that prepared it: a committer that lives beside that writer calls `commit`, any
other `recover_and_commit`.
"""

from __future__ import annotations

import copy
import secrets
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, Generic, TypeVar

import msgspec

from headrace.checkpoint.handles import HistoryPoint
from headrace.connectors.sink import CommittedOutput, Committer, Sink, SinkGuarantee, SinkWriter, WriterContext
from headrace.errors import JobDefinitionError

TxnT = TypeVar("TxnT")


class _Prepared(msgspec.Struct, array_like=True):
    checkpoint_id: int
    writer: str
    transaction: msgspec.Raw


class TwoPhaseCommitSink(Sink, Generic[TxnT]):
    """Exactly-once output into anything that has transactions. Extend it; `transaction_type` is required.

    A transaction value is plain data (a `msgspec.Struct`, a dataclass of plain fields, a str, an int …) that finds
    the transaction again from another process: an id, a file name. It is saved in checkpoints without pickle. What
    cannot be saved, a connection or an open file, belongs to `self`, opened in `open`.

    A transaction begins at the first record after a barrier. Where no record came, none begins and nothing is
    committed.
    """

    guarantee = SinkGuarantee.TWO_PHASE

    transaction_type: type[TxnT]
    """Type of the transaction values, which chooses how a saved one is read."""

    context: WriterContext
    """Which job, operator, subtask and attempt is writing. Set before `open`, in tasks only: `commit`,
    `recover_and_*` and `find_leftovers` also run in the driver, where it is not set."""

    checkpoint_id: int
    """The checkpoint that is being prepared. Set before `pre_commit`, in tasks only."""

    history: str = ""
    """The job directory that recovers, as in `context.history`. Set before `find_leftovers`, in the driver only."""

    def open(self, context: WriterContext) -> None:
        """Called once per subtask and attempt in the task, before the first `begin`."""

    @abstractmethod
    def begin(self) -> TxnT:
        """Open a transaction. Called before the first record after a barrier, never for an empty checkpoint."""

    @abstractmethod
    def invoke(self, txn: TxnT, value: Any, timestamp: int | None) -> None:
        """Write one record into the open transaction. Nobody may see it yet."""

    def invoke_batch(self, txn: TxnT, values: Sequence[Any], timestamps: Sequence[int] | None) -> None:
        """Write several records; by default one after the other."""
        for i, value in enumerate(values):
            self.invoke(txn, value, None if timestamps is None else timestamps[i])

    def flush(self, txn: TxnT) -> None:
        """Push out what is buffered for the open transaction. Called before `pre_commit`."""

    @abstractmethod
    def pre_commit(self, txn: TxnT) -> None:
        """Make the transaction durable so that a later `commit` cannot fail for lack of data.

        Called once per transaction on the task that wrote it, after the last record before the barrier; what it changes
        in `txn` is saved. `commit` may follow in another process, more than once, or never.
        """

    @abstractmethod
    def commit(self, txn: TxnT) -> None:
        """Show the transaction, all of it at once. Called after the checkpoint that holds it is complete, in order.

        May be called any number of times for one transaction: the second time it must find that nothing is left to do.
        Raise `CommitFailedError` if nothing happened, `CommitOutcomeUnknownError` if it may have.
        """

    @abstractmethod
    def abort(self, txn: TxnT) -> None:
        """Give the transaction up. Called for an open one when its task ends without a barrier, at most once."""

    def recover_and_commit(self, txn: TxnT) -> None:
        """Commit what another process, dead by now, has prepared and perhaps committed. By default `commit`."""
        self.commit(txn)

    def recover_and_abort(self, txn: TxnT) -> None:
        """Give up what an older attempt left behind; it may be gone already. By default `abort`."""
        self.abort(txn)

    def find_leftovers(self, job_id: str, uid: str, attempt: int) -> Iterable[TxnT]:
        """Transactions that attempts older than `attempt` of this operator and history left open or prepared.

        Those whose `context.history` was not `self.history` belong to a job of the same name with another checkpoint
        directory, which may be running and counts its attempts from 1, too: leave them out.
        Called once per recovery, in the driver, after everything the restored checkpoint names is committed. Those
        that it names are left alone, the others get `recover_and_abort`. By default none: then open transactions of
        the dead must time out by themselves.
        """
        return ()

    def committed_since(self, job_id: str, uid: str, point: HistoryPoint) -> Sequence[CommittedOutput]:
        """What was committed after that moment, if the store can tell; see `Committer.committed_since`."""
        return ()

    def close(self) -> None:
        """Called once per writer and once per committer, also after a failure. Releases what was opened."""

    def create_writer(self, context: WriterContext) -> SinkWriter:
        # A copy for each subtask, so that what `open` puts on `self` belongs to one writer.
        own = copy.copy(self)
        own.context = context
        return TwoPhaseWriter(own, self._live_writers())

    def create_committer(self) -> Committer:
        return TwoPhaseCommitter(copy.copy(self), self._live_writers())

    def preflight(self) -> None:
        if getattr(self, "transaction_type", None) is None:
            raise JobDefinitionError(
                f"{type(self).__name__} does not say what its transactions are. "
                "Set transaction_type in the class, for example transaction_type = str."
            )

    def _live_writers(self) -> set[str]:
        # Not in __init__: subclasses need not call ours.
        marks: set[str] = self.__dict__.setdefault("_writers", set())
        return marks

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_writers"}


TwoPhaseCommitSinkFunction = TwoPhaseCommitSink


class TwoPhaseWriter(SinkWriter, Generic[TxnT]):
    """Drives the template in a task: one open transaction at most, begun by the first record."""

    def __init__(self, sink: TwoPhaseCommitSink[TxnT], live: set[str]) -> None:
        self._sink = sink
        self._live = live
        self._mark = secrets.token_hex(8)
        self._open: TxnT | None = None
        self._has_open = False

    def open(self) -> None:
        self._live.add(self._mark)
        self._sink.open(self._sink.context)

    def write(self, value: Any, timestamp: int | None) -> None:
        self._sink.invoke(self._transaction(), value, timestamp)

    def write_batch(self, values: Sequence[Any], timestamps: Sequence[int] | None) -> None:
        if values:
            self._sink.invoke_batch(self._transaction(), values, timestamps)

    def flush(self) -> None:
        if self._has_open:
            self._sink.flush(self._transaction())

    def prepare_commit(self, checkpoint_id: int) -> Sequence[bytes]:
        if not self._has_open:
            return ()
        txn = self._transaction()
        self._sink.checkpoint_id = checkpoint_id
        self._sink.pre_commit(txn)
        self._open, self._has_open = None, False
        saved = msgspec.Raw(msgspec.msgpack.encode(txn))
        return [msgspec.msgpack.encode(_Prepared(checkpoint_id, self._mark, saved))]

    def close(self) -> None:
        self._live.discard(self._mark)
        try:
            if self._has_open:
                self._sink.abort(self._transaction())
        finally:
            self._open, self._has_open = None, False
            self._sink.close()

    def _transaction(self) -> TxnT:
        if not self._has_open:
            self._open, self._has_open = self._sink.begin(), True
        return self._open  # type: ignore[return-value]  # None is a legal transaction if TxnT says so


class TwoPhaseCommitter(Committer, Generic[TxnT]):
    """Commits prepared transactions, beside the writer or, on recovery, in the driver."""

    def __init__(self, sink: TwoPhaseCommitSink[TxnT], live: set[str]) -> None:
        self._sink = sink
        self._live = live

    def transactions(self, items: Sequence[bytes]) -> list[TxnT]:
        """The transactions that these prepared items hold."""
        return [self._transaction(msgspec.msgpack.decode(item, type=_Prepared)) for item in items]

    def commit(self, items: Sequence[bytes]) -> None:
        for item in items:
            prepared = msgspec.msgpack.decode(item, type=_Prepared)
            txn = self._transaction(prepared)
            if prepared.writer in self._live:
                self._sink.commit(txn)
            else:
                self._sink.recover_and_commit(txn)

    def abort_leftovers(self, job_id: str, uid: str, attempt: int, keep: Sequence[bytes]) -> None:
        # Compared as they were saved: transaction values need be neither hashable nor comparable.
        kept = {bytes(msgspec.msgpack.decode(item, type=_Prepared).transaction) for item in keep}
        self._sink.history = self.history
        for txn in self._sink.find_leftovers(job_id, uid, attempt):
            if msgspec.msgpack.encode(txn) not in kept:
                self._sink.recover_and_abort(txn)

    def committed_since(self, job_id: str, uid: str, point: HistoryPoint) -> Sequence[CommittedOutput]:
        return self._sink.committed_since(job_id, uid, point)

    def close(self) -> None:
        self._sink.close()

    def _transaction(self, prepared: _Prepared) -> TxnT:
        return msgspec.msgpack.decode(prepared.transaction, type=self._sink.transaction_type)
