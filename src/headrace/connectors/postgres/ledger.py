"""The ledger: a table in which a row says that the output of one sink subtask up to one checkpoint is there.

    job | sink | shard | checkpoint_id | token | attempt | records | committed_at
    └──────────── primary key ─────────────────┘

The row is written in the same transaction as the output, so it is there exactly if the output is. `token` is random for
each writer, because checkpoints of a job that begins anew count from 1 again; it begins with the history whose numbers
attempt and checkpoint are, so that a start from behind committed output can be refused.

A row is inserted *before* the data: a second process that tries the same log waits at the primary key until the first
has committed or gone, and then finds the row or not.
"""

from __future__ import annotations

from typing import Any

from headrace.checkpoint.handles import HistoryPoint
from headrace.connectors.postgres.client import Server, Session, postgres, refused
from headrace.connectors.sink import CommittedOutput
from headrace.connectors.write_ahead import Marker, token_start
from headrace.errors import CommitFailedError

DEFAULT_LEDGER = "headrace_ledger"
ROWS_KEPT = 1_000
"""How many checkpoints of a subtask the ledger remembers. Only those of retained checkpoints are ever asked for."""


class Ledger:
    """Statements on the ledger table; who calls them decides about transactions."""

    def __init__(self, name: str = DEFAULT_LEDGER) -> None:
        self.name = name

    def create(self, connection: Any, server: Server, who: str) -> None:
        """Make the table if it is not there. For a connection with autocommit."""
        library = postgres(who)
        statement = (
            "CREATE TABLE IF NOT EXISTS {} (job text NOT NULL, sink text NOT NULL, shard integer NOT NULL, "
            "checkpoint_id bigint NOT NULL, token text NOT NULL, attempt bigint NOT NULL, records bigint NOT NULL, "
            "committed_at timestamptz NOT NULL DEFAULT now(), PRIMARY KEY (job, sink, shard, checkpoint_id, token))"
        )
        try:
            # Looked for first: a user who may not create tables can have it made by somebody else.
            if connection.execute("SELECT to_regclass(%s)", [self._quoted(connection)]).fetchone()[0] is None:
                # IF NOT EXISTS does not look at what another session is creating at the same moment, and what the
                # loser is told depends on how far the winner was. So creators queue up for the name.
                with connection.transaction():
                    connection.execute("SELECT pg_advisory_xact_lock(hashtext(%s))", [self.name])
                    connection.execute(self._sql(statement))
            connection.execute(self._sql("SELECT job, sink, shard, checkpoint_id, token, attempt FROM {} LIMIT 0"))
        except library.Error as error:
            raise refused(
                error,
                f'{who} cannot use the ledger table "{self.name}" of {server.shown}',
                f"Have somebody run: {statement.format(self.name)}; GRANT SELECT, INSERT, DELETE ON {self.name} "
                "TO this user.",
                server,
            ) from None

    def claim(self, connection: Any, marker: Marker, records: int) -> bool:
        """Write the row; False if it is there already, and with it the output."""
        statement = self._sql(
            "INSERT INTO {} (job, sink, shard, checkpoint_id, token, attempt, records) "
            "VALUES (%s, %s, %s, %s, %s, %s, %s) ON CONFLICT DO NOTHING"
        )
        return bool(connection.execute(statement, [*_key(marker), marker.attempt, records]).rowcount)

    def has(self, connection: Any, marker: Marker) -> bool:
        statement = self._sql(
            "SELECT 1 FROM {} WHERE job = %s AND sink = %s AND shard = %s AND checkpoint_id = %s AND token = %s"
        )
        return connection.execute(statement, _key(marker)).fetchone() is not None

    def asked_since(
        self, session: Session, server: Server, job_id: str, uid: str, point: HistoryPoint
    ) -> list[CommittedOutput]:
        """`since` for a committer: on its own connection, which is left in no transaction."""
        connection = session.commit_connection()
        try:
            found = self.since(connection, job_id, uid, point)
            connection.rollback()
        except postgres().Error as error:
            session.drop()
            raise CommitFailedError(
                f"The ledger {self.name} at {server.shown} could not be asked for what was committed: "
                f"{server.redact(error)}."
            ) from None
        return found

    def since(self, connection: Any, job_id: str, uid: str, point: HistoryPoint) -> list[CommittedOutput]:
        """Rows of that history with a later attempt, or of the same and a later checkpoint, in order."""
        statement = self._sql(
            "SELECT attempt, checkpoint_id, shard, records FROM {} WHERE job = %s AND sink = %s "
            "AND starts_with(token, %s) AND (attempt, checkpoint_id) > (%s, %s) "
            "ORDER BY attempt, checkpoint_id, shard"
        )
        key = [job_id, uid, token_start(point.history), point.attempt, point.checkpoint_id]
        return [
            CommittedOutput(attempt, checkpoint, f"{records} rows of subtask {shard} for checkpoint {checkpoint}")
            for attempt, checkpoint, shard, records in connection.execute(statement, key).fetchall()
        ]

    def prune(self, connection: Any, marker: Marker) -> None:
        """Forget rows of this subtask that lie far behind."""
        statement = self._sql("DELETE FROM {} WHERE job = %s AND sink = %s AND shard = %s AND checkpoint_id < %s")
        job, sink, shard, checkpoint_id, _ = _key(marker)
        connection.execute(statement, [job, sink, shard, checkpoint_id - ROWS_KEPT])

    def _sql(self, statement: str) -> Any:
        sql = postgres().sql
        return sql.SQL(statement).format(sql.Identifier(*self.name.split(".")))

    def _quoted(self, connection: Any) -> str:
        text: str = postgres().sql.Identifier(*self.name.split(".")).as_string(connection)
        return text


def _key(marker: Marker) -> list[Any]:
    return [marker.job_id, marker.uid, marker.shard, marker.checkpoint_id, marker.token]
