"""Two-phase output to PostgreSQL: records go into a transaction that outlives the process once it is prepared.

    records ─▶ BEGIN, COPY ─▶ barrier: ledger row, PREPARE TRANSACTION ─▶ checkpoint complete: COMMIT PREPARED

Opt-in, because it asks more of the server than the ledger does: `max_prepared_transactions` is 0 by default, a prepared
transaction keeps its locks and holds back VACUUM until somebody ends it, and a server with more of them than slots does
not start. In return the log is not kept in the checkpoint, and rows are on the server before the barrier.

A second COMMIT PREPARED answers 42704, whether the first was a commit or somebody rolled back. The ledger row inside
the transaction tells which; after the commit it is merged into the row of its writer.
"""

from __future__ import annotations

import contextlib
import copy
import secrets
from collections.abc import Sequence
from typing import Any

import msgspec

from headrace.checkpoint.handles import HistoryPoint
from headrace.connectors.postgres.client import (
    PostgresUnavailableError,
    Server,
    Session,
    answered,
    commit_failure,
    postgres,
)
from headrace.connectors.postgres.gids import Gid
from headrace.connectors.postgres.ledger import DEFAULT_LEDGER, Ledger
from headrace.connectors.postgres.preflight import checked_connection
from headrace.connectors.postgres.prepared import prepared_transactions, roll_back
from headrace.connectors.postgres.table import Table, ToRow, with_json
from headrace.connectors.sink import CommittedOutput, Committer, WriterContext
from headrace.connectors.two_phase import TwoPhaseCommitSink, TwoPhaseCommitter
from headrace.connectors.write_ahead import Marker, token_start
from headrace.errors import CommitFailedError, ConfigurationError, OutputLostError

_WHO = "PostgresSink.two_phase"


class PostgresTransaction(msgspec.Struct, array_like=True):
    """A prepared transaction: its name on the server, and its row in the ledger."""

    gid: str = ""
    marker: Marker | None = None
    records: int = 0


class PostgresTwoPhaseSink(TwoPhaseCommitSink[PostgresTransaction]):
    """Appends records to a table in transactions that are prepared at the barrier and committed with the checkpoint.

    It only appends: a second upsert of a row would wait for the lock of the first one, which is prepared and waits
    for a checkpoint that the waiting task cannot take.
    """

    transaction_type = PostgresTransaction

    max_uncommitted_checkpoints = 1
    """As `preflight_for` counts: each one more needs another slot for a prepared transaction on the server."""

    def __init__(
        self,
        url: str,
        table: str,
        columns: Sequence[str],
        *,
        to_row: ToRow | None = None,
        ledger: str = DEFAULT_LEDGER,
    ) -> None:
        self.server = Server(url)
        self.table = Table(table, columns, (), to_row)
        self.ledger = Ledger(ledger, table)

    def preflight(self) -> None:
        self.preflight_for(1, 1)

    def preflight_for(self, parallelism: int, concurrent_checkpoints: int) -> None:
        super().preflight()
        with checked_connection(self.server, _WHO) as connection:
            self.table.check(connection, self.server, _WHO)
            slots = int(connection.execute("SHOW max_prepared_transactions").fetchone()[0])
            gids = prepared_transactions(connection)
            others = sum(Gid.parse(gid) is None for gid in gids)
            # While the one of a checkpoint is committed, those of the next ones are prepared.
            needed = parallelism * (concurrent_checkpoints + 1)
            if slots - others < needed:
                raise ConfigurationError(
                    f"{_WHO} needs {needed} prepared transactions at {self.server.shown} ({parallelism} subtasks × "
                    f"{concurrent_checkpoints + 1}), but the server has max_prepared_transactions = {slots}"
                    f"{f', of which {others} are in use by others' if others else ''}. Set max_prepared_transactions "
                    f"to {needed + others} or more in postgresql.conf and restart the server, or use PostgresSink, "
                    "which needs none."
                )
            self.ledger.create(connection, self.server, _WHO)

    def describe(self) -> str:
        return f"PostgreSQL table {self.table.name} by PREPARE TRANSACTION at {self.server.shown}"

    def __repr__(self) -> str:
        return f"PostgresTwoPhaseSink({self.describe()})"

    # What a task does.

    def open(self, context: WriterContext) -> None:
        self._mark = secrets.token_hex(6)
        self._begun = 0
        self._session = Session(self.server, _WHO)
        self._copy: Any = None
        self._copying: Any = None
        self._json: tuple[int, ...] = ()
        self._session.connection()

    def begin(self) -> PostgresTransaction:
        try:
            connection = self._session.connection()
            self._json = self.table.json_columns(connection)
            # Open until the barrier: rows reach the server as they come, without a round trip for each.
            self._copying = connection.cursor().copy(self.table.copy_statement())
            self._copy = self._copying.__enter__()
        except postgres().Error as error:
            raise self._failure("begin a transaction", error) from None
        return PostgresTransaction()

    def invoke(self, txn: PostgresTransaction, value: Any, timestamp: int | None) -> None:
        row = self.table.row_of(value)
        try:
            self._copy.write_row(with_json(row, self._json) if self._json else row)
        except postgres().Error as error:
            raise self._failure(f"write {len(row)} values", error) from None
        txn.records += 1

    def pre_commit(self, txn: PostgresTransaction) -> None:
        context = self.context
        self._begun += 1
        token = f"{token_start(context.history)}{self._mark}-{self._begun}"
        named = (context.job_id, context.uid, context.subtask, self.checkpoint_id, context.attempt, token)
        txn.marker = Marker(*named)
        txn.gid = str(Gid.of(*named))
        try:
            self._end_copy()
            connection = self._session.connection()
            self.ledger.insert(connection, txn.marker, txn.records)
            connection.execute(postgres().sql.SQL("PREPARE TRANSACTION {}").format(txn.gid))
            # The session is in no transaction now, but the client's own count of that does not know it yet.
            connection.rollback()
        except postgres().Error as error:
            raise self._failure(f"prepare transaction {txn.gid}", error) from None

    def abort(self, txn: PostgresTransaction) -> None:
        self._give_up()

    def close(self) -> None:
        # A committer has written nothing, and perhaps never connected.
        if "_session" in self.__dict__:
            self._give_up()

    def _give_up(self) -> None:
        # The server rolls back what is open on a connection that goes.
        self._session.drop()
        with contextlib.suppress(postgres().Error):
            self._end_copy()

    def _end_copy(self) -> None:
        copying, self._copying = self.__dict__.get("_copying"), None
        if copying is not None:
            copying.__exit__(None, None, None)

    def _failure(self, what: str, error: Any) -> PostgresUnavailableError:
        self._give_up()
        hint = ""
        if getattr(error, "sqlstate", None) == "53200":
            hint = " Raise max_prepared_transactions, or end what is left over with: headrace sinks abort-orphans."
        return PostgresUnavailableError(
            f"{_WHO} could not {what} for table {self.table.name} at {self.server.shown}: "
            f"{self.server.redact(error)}.{hint}"
        )

    # What a committer does, beside the task or in the driver.

    def commit(self, txn: PostgresTransaction) -> None:
        session = self._commits()
        connection = session.commit_connection()
        library = postgres()
        try:
            connection.execute(library.sql.SQL("COMMIT PREPARED {}").format(txn.gid))
        except library.errors.UndefinedObject:
            self._check_committed(connection, txn)
            return
        except library.Error as error:
            session.drop()
            raise commit_failure(error, f"COMMIT PREPARED {txn.gid} at {self.server.shown}", self.server) from None
        self._merge(connection, txn)

    def _check_committed(self, connection: Any, txn: PostgresTransaction) -> None:
        """There is no such prepared transaction: because it was committed, or because somebody rolled it back?"""
        assert txn.marker is not None
        try:
            committed = self.ledger.has(connection, txn.marker)
        except postgres().Error as error:
            self._commits().drop()
            raise CommitFailedError(
                f"The ledger {self.ledger.name} at {self.server.shown} could not be asked for {txn.gid}: "
                f"{self.server.redact(error)}."
            ) from None
        if not committed:
            raise OutputLostError(
                f"Checkpoint {txn.marker.checkpoint_id} had {txn.records} records prepared for table "
                f"{self.table.name} at {self.server.shown} as transaction {txn.gid}, but the server has no such "
                "transaction and the ledger no row of it: somebody rolled it back. Start the job from an older "
                "checkpoint or savepoint with --from to write them again."
            )

    def _merge(self, connection: Any, txn: PostgresTransaction) -> None:
        assert txn.marker is not None
        try:
            self.ledger.merge(connection, txn.marker)
        except postgres().Error:
            # Committed is committed: its row waits for the next time.
            self._commits().drop()

    def other_owner(self, job_id: str, uid: str, history: str) -> str:
        """Whether another job directory writes to the same table; see `Committer.other_owner`."""
        try:
            return self.ledger.other_owner(self._commits().commit_connection(), job_id, uid, history)
        except (CommitFailedError, postgres().Error):
            self._commits().drop()
            return ""

    def recover_and_abort(self, txn: PostgresTransaction) -> None:
        session = self._commits()
        try:
            roll_back(session.commit_connection(), txn.gid)
        except postgres().Error as error:
            session.drop()
            if answered(error):
                raise CommitFailedError(f"ROLLBACK PREPARED {txn.gid} failed: {self.server.redact(error)}.") from None
            raise CommitFailedError(f"The server went away at ROLLBACK PREPARED {txn.gid}.") from None

    def committed_since(self, job_id: str, uid: str, point: HistoryPoint) -> Sequence[CommittedOutput]:
        return self.ledger.asked_since(self._commits(), self.server, job_id, uid, point)

    def create_committer(self) -> Committer:
        return _Committer(self, self._live_writers())

    def _commits(self) -> Session:
        # Made when it is needed: a committer has no `open`.
        session: Session | None = self.__dict__.get("_session")
        if session is None:
            session = self._session = Session(self.server, _WHO, autocommit=True)
        return session


class _Committer(TwoPhaseCommitter[PostgresTransaction]):
    knows_other_jobs = True

    def __init__(self, sink: PostgresTwoPhaseSink, live: set[str]) -> None:
        self._own = copy.copy(sink)
        super().__init__(self._own, live)
        self._operator: tuple[str, str] | None = None

    def other_owner(self) -> str:
        return "" if self._operator is None else self._own.other_owner(*self._operator, self.history)

    def abort_leftovers(self, job_id: str, uid: str, attempt: int, keep: Sequence[bytes]) -> None:
        self._operator = (job_id, uid)
        # By name: of what was prepared for a checkpoint that never completed, the server's list is all there is.
        kept = {txn.gid for txn in self.transactions(keep)}
        session = self._own._commits()
        try:
            gids = prepared_transactions(session.commit_connection())
        except postgres().Error as error:
            session.drop()
            raise CommitFailedError(
                f"{self._own.server.shown} could not be asked for prepared transactions: "
                f"{self._own.server.redact(error)}."
            ) from None
        for text in gids:
            gid = Gid.parse(text)
            if gid is None or text in kept or not gid.belongs_to(job_id, uid):
                continue
            # Another history is another job of this name, which may be running.
            if gid.history == self.history and gid.attempt < attempt:
                self._own.recover_and_abort(PostgresTransaction(text))
