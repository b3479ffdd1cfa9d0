"""The PostgreSQL sink: exactly-once by a write-ahead log and a ledger row in the same transaction.

Records wait in the checkpoint. When it is complete, each subtask writes its ledger row and its records in one
transaction, so readers see all of a subtask's output for a checkpoint at once, and never twice. Nothing is held open on
the server between two checkpoints, and a server that is down only delays output.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headrace.checkpoint.handles import HistoryPoint
from headrace.connectors.postgres.client import Server, Session, commit_failure, postgres
from headrace.connectors.postgres.ledger import DEFAULT_LEDGER, Ledger
from headrace.connectors.postgres.preflight import checked_connection
from headrace.connectors.postgres.table import Table, ToRow
from headrace.connectors.postgres.two_phase import PostgresTwoPhaseSink
from headrace.connectors.postgres.upsert import PostgresUpsertSink
from headrace.connectors.sink import CommittedOutput, SinkGuarantee
from headrace.connectors.write_ahead import Marker, WriteAheadSink
from headrace.errors import CommitFailedError


class PostgresSink(WriteAheadSink):
    """Writes records to a table, exactly-once.

        PostgresSink("postgresql://shop@db/shop", "alerts", ["sensor", "temperature", "at"])
        PostgresSink(url, "totals", ["user", "total"], keys=["user"])      replaces rows by key, exactly-once as well
        PostgresSink.upsert(url, "totals", ["user", "total"], keys=["user"])   idempotent: seen at once, may run back
        PostgresSink.two_phase(url, "alerts", columns)                     by PREPARE TRANSACTION

    `url` is a URL or libpq's words; passwords in it are shown nowhere. Records with names (dicts, rows, dataclasses,
    NamedTuples) are matched with the columns by name, tuples by position, anything else by `to_row`. The table must
    be there; the ledger table is made if it is not.
    """

    guarantee = SinkGuarantee.WRITE_AHEAD
    knows_other_jobs = True

    def __init__(
        self,
        url: str,
        table: str,
        columns: Sequence[str],
        *,
        keys: Sequence[str] = (),
        to_row: ToRow | None = None,
        ledger: str = DEFAULT_LEDGER,
    ) -> None:
        self.server = Server(url)
        self.table = Table(table, columns, keys, to_row)
        self.ledger = Ledger(ledger, table)

    @staticmethod
    def upsert(
        url: str,
        table: str,
        columns: Sequence[str],
        keys: Sequence[str],
        *,
        to_row: ToRow | None = None,
        flush_rows: int = 5_000,
        flush_ms: int = 200,
    ) -> PostgresUpsertSink:
        """Rows are written as records come and replace others by key: exactly-once in the end, see the class."""
        return PostgresUpsertSink(url, table, columns, keys, to_row=to_row, flush_rows=flush_rows, flush_ms=flush_ms)

    @staticmethod
    def two_phase(
        url: str,
        table: str,
        columns: Sequence[str],
        *,
        to_row: ToRow | None = None,
        ledger: str = DEFAULT_LEDGER,
    ) -> PostgresTwoPhaseSink:
        """Records are written at once into a transaction that is prepared at the barrier; see the class."""
        return PostgresTwoPhaseSink(url, table, columns, to_row=to_row, ledger=ledger)

    def preflight(self) -> None:
        with checked_connection(self.server, "PostgresSink") as connection:
            self.table.check(connection, self.server, "PostgresSink")
            self.ledger.create(connection, self.server, "PostgresSink")

    def describe(self) -> str:
        how = f", replacing by {', '.join(self.table.keys)}" if self.table.keys else ""
        return f"PostgreSQL table {self.table.name}{how} at {self.server.shown}"

    def __repr__(self) -> str:
        return f"PostgresSink({self.describe()})"

    # In the task, at every record.

    def to_log(self, value: Any, timestamp: int | None) -> Any:
        return self.table.row_of(value)

    # Beside the task or in the driver, when the checkpoint is complete.

    def open(self) -> None:
        self._session = Session(self.server, "PostgresSink")

    def is_committed(self, marker: Marker) -> bool:
        connection = self._session.commit_connection()
        try:
            found = self.ledger.has(connection, marker)
            connection.rollback()
        except postgres().Error as error:
            self._session.drop()
            raise CommitFailedError(
                f"The ledger {self.ledger.name} at {self.server.shown} could not be asked for checkpoint "
                f"{marker.checkpoint_id}: {self.server.redact(error)}."
            ) from None
        return found

    def committed_since(self, job_id: str, uid: str, point: HistoryPoint) -> Sequence[CommittedOutput]:
        return self.ledger.asked_since(self._session, self.server, job_id, uid, point)

    def other_owner(self, job_id: str, uid: str, history: str) -> str:
        connection = self._session.commit_connection()
        try:
            found = self.ledger.other_owner(connection, job_id, uid, history)
            connection.rollback()
        except postgres().Error:
            # It informs; nothing depends on it.
            self._session.drop()
            return ""
        return found

    def send(self, values: Sequence[Any], marker: Marker) -> None:
        connection = self._session.commit_connection()
        try:
            if not self.ledger.claim(connection, marker, len(values)):
                connection.rollback()
                return
            self.table.write(connection, values)
        except postgres().Error as error:
            # Given up with its transaction: whatever broke, the next try begins on a clean one.
            self._session.drop()
            raise CommitFailedError(
                f"{self._what(values, marker)} failed: {self.server.redact(error)}. Nothing was written; it is tried "
                "again, and again on recovery: change the table so that it takes them, and nothing is lost."
            ) from None
        try:
            connection.commit()
        except postgres().Error as error:
            self._session.drop()
            raise commit_failure(error, f"The commit of {self._what(values, marker)}", self.server) from None

    def close(self) -> None:
        self._session.drop()

    def _what(self, values: Sequence[Any], marker: Marker) -> str:
        return (
            f"Writing {len(values)} records of checkpoint {marker.checkpoint_id}, subtask {marker.shard}, to table "
            f"{self.table.name} at {self.server.shown}"
        )
