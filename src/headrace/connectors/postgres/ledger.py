"""The ledger: a table in which a row says how far the output of one writer is there.

    headrace_ledger_writers
    job | sink | history | shard | writer | attempt | checkpoint_id | sequence | records | target | committed_at
    └──────────── primary key ───────────┘

A writer is one subtask of one attempt. It numbers what it seals at barriers (`sequence`), which is committed in order.
So the highest number that was committed stands for all before it: one row for each writer is enough, however many
checkpoints it commits, and no row is ever removed. Whether a savepoint of any age is committed is always known.
`history` is the job directory that numbers attempts and checkpoints; `target` the table that was written to.

The row is written in the same transaction as the output, so it says exactly what is there:

* write-ahead log: the row of the writer is inserted or raised. A second process that tries the same log waits for the
  row's lock until the first has committed or gone, and then finds the number raised or not.
* two-phase: a prepared transaction would keep that lock until it is committed, and the next one could not be prepared.
  So each inserts a row of its own, `<writer>-<sequence>`, which is merged into the writer's row after the commit.

Older versions had a row for each checkpoint, in the table `headrace_ledger`. It is read where it is there, so that
checkpoints of those versions restore, and not written any more. Nor is it altered: prepared transactions of a job that
is to be recovered may hold locks on it.
"""

from __future__ import annotations

from typing import Any

from headrace.checkpoint.handles import HistoryPoint
from headrace.connectors.postgres.client import Server, Session, postgres, refused
from headrace.connectors.sink import CommittedOutput
from headrace.connectors.write_ahead import Marker, token_start
from headrace.errors import CommitFailedError

DEFAULT_LEDGER = "headrace_ledger"

_CREATE = (
    "CREATE TABLE IF NOT EXISTS {} (job text NOT NULL, sink text NOT NULL, history text NOT NULL, "
    "shard integer NOT NULL, writer text NOT NULL, attempt bigint NOT NULL, checkpoint_id bigint NOT NULL, "
    "sequence bigint NOT NULL, records bigint NOT NULL, target text NOT NULL, "
    "committed_at timestamptz NOT NULL DEFAULT now(), PRIMARY KEY (job, sink, history, shard, writer))"
)
_COLUMNS = "job, sink, history, shard, writer, attempt, checkpoint_id, sequence, records, target"
_RAISE = (
    "ON CONFLICT (job, sink, history, shard, writer) DO UPDATE SET attempt = excluded.attempt, "
    "checkpoint_id = excluded.checkpoint_id, sequence = excluded.sequence, "
    "records = known.records + excluded.records, target = excluded.target, committed_at = now() "
    "WHERE known.sequence < excluded.sequence"
)
_OF_SHARD = "job = %s AND sink = %s AND history = %s AND shard = %s"


class Ledger:
    """Statements on the ledger for output to the table `target`; who calls them decides about transactions."""

    def __init__(self, name: str = DEFAULT_LEDGER, target: str = "") -> None:
        self.name = f"{name}_writers"
        self.target = target
        self._old = name
        self._old_is_there: bool | None = None

    def create(self, connection: Any, server: Server, who: str) -> None:
        """Make the table if it is not there. For a connection with autocommit."""
        library = postgres(who)
        try:
            # Looked for first: a user who may not create tables can have it made by somebody else.
            if not self._is_there(connection, self.name):
                # IF NOT EXISTS does not look at what another session is creating at the same moment, and what the
                # loser is told depends on how far the winner was. So creators queue up for the name.
                with connection.transaction():
                    connection.execute("SELECT pg_advisory_xact_lock(hashtext(%s))", [self.name])
                    connection.execute(self._sql(_CREATE))
            connection.execute(self._sql(f"SELECT {_COLUMNS} FROM {{}} LIMIT 0"))
            connection.execute(self._sql("UPDATE {} SET records = records WHERE false"))
            connection.execute(self._sql("DELETE FROM {} WHERE false"))
        except library.Error as error:
            raise refused(
                error,
                f'{who} cannot use the ledger table "{self.name}" of {server.shown}',
                f"Have somebody run: {_CREATE.format(self.name)}; GRANT SELECT, INSERT, UPDATE, DELETE ON {self.name} "
                "TO this user.",
                server,
            ) from None

    def claim(self, connection: Any, marker: Marker, records: int) -> bool:
        """Raise the writer's row to this log; False if it is there already, and with it the output."""
        statement = self._sql(
            f"INSERT INTO {{}} AS known ({_COLUMNS}) VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s) {_RAISE}"
        )
        row = [*_shard(marker), marker.writer, *self._values(marker, records)]
        return bool(connection.execute(statement, row).rowcount)

    def insert(self, connection: Any, marker: Marker, records: int) -> None:
        """Write a row of its own for a transaction that will be prepared; `merge` follows when it is committed."""
        statement = self._sql(f"INSERT INTO {{}} ({_COLUMNS}) VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s)")
        connection.execute(statement, [*_shard(marker), _own_row(marker), *self._values(marker, records)])

    def merge(self, connection: Any, marker: Marker) -> None:
        """Put the rows of a writer's committed transactions up to this one into the writer's row."""
        statement = self._sql(
            f"WITH committed AS (DELETE FROM {{}} WHERE {_OF_SHARD} AND starts_with(writer, %s) AND sequence <= %s "
            f"RETURNING *) INSERT INTO {{}} AS known ({_COLUMNS}) SELECT job, sink, history, shard, %s, max(attempt), "
            "max(checkpoint_id), max(sequence), sum(records), max(target) FROM committed "
            f"GROUP BY job, sink, history, shard {_RAISE}"
        )
        key = [*_shard(marker), f"{marker.writer}-", marker.sequence, marker.writer]
        connection.execute(statement, key)

    def has(self, connection: Any, marker: Marker) -> bool:
        """Whether this log is committed."""
        statement = self._sql(
            f"SELECT 1 FROM {{}} WHERE {_OF_SHARD} AND ((writer = %s AND sequence >= %s) OR writer = %s)"
        )
        key = [*_shard(marker), marker.writer, marker.sequence, _own_row(marker)]
        if connection.execute(statement, key).fetchone() is not None:
            return True
        if not self._has_old(connection):
            return False
        old = self._sql(
            "SELECT 1 FROM {} WHERE job = %s AND sink = %s AND shard = %s AND checkpoint_id = %s AND token = %s",
            self._old,
        )
        key = [marker.job_id, marker.uid, marker.shard, marker.checkpoint_id, marker.token]
        return connection.execute(old, key).fetchone() is not None

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
        """How far writers to the same table got that are newer than the point, in order."""
        statement = self._sql(
            "SELECT attempt, checkpoint_id, shard FROM {} WHERE job = %s AND sink = %s AND history = %s "
            "AND target = %s AND (attempt, checkpoint_id) > (%s, %s)"
        )
        after = [point.attempt, point.checkpoint_id]
        rows = connection.execute(statement, [job_id, uid, point.history, self.target, *after]).fetchall()
        if self._has_old(connection):
            old = self._sql(
                "SELECT attempt, checkpoint_id, shard FROM {} WHERE job = %s AND sink = %s "
                "AND starts_with(token, %s) AND (attempt, checkpoint_id) > (%s, %s)",
                self._old,
            )
            rows += connection.execute(old, [job_id, uid, token_start(point.history), *after]).fetchall()
        return [
            CommittedOutput(
                attempt, checkpoint, f"rows of subtask {shard} in table {self.target} up to checkpoint {checkpoint}"
            )
            for attempt, checkpoint, shard in sorted(rows)
        ]

    def other_owner(self, connection: Any, job_id: str, uid: str, history: str) -> str:
        """Whether another job directory has committed since this one did, in words."""
        statement = self._sql(
            "SELECT history, max(attempt), max(committed_at) FROM {} WHERE job = %s AND sink = %s AND target = %s "
            "AND history <> '' GROUP BY history ORDER BY max(committed_at) DESC LIMIT 1"
        )
        newest = connection.execute(statement, [job_id, uid, self.target]).fetchone()
        if newest is None or not history or newest[0] == history:
            return ""
        return (
            f"table {self.target} was also written to by a job of this name with another checkpoint directory, last "
            f"{newest[2]:%Y-%m-%d %H:%M:%S %Z} (attempt {newest[1]}). Neither touches the other's output. If both read "
            "the same input, it is there twice."
        )

    def _values(self, marker: Marker, records: int) -> list[Any]:
        return [marker.attempt, marker.checkpoint_id, marker.sequence, records, self.target]

    def _has_old(self, connection: Any) -> bool:
        """Whether the table of older versions is there. It does not come back, so it is looked for once."""
        if self._old_is_there is None:
            self._old_is_there = self._is_there(connection, self._old)
        return self._old_is_there

    def _is_there(self, connection: Any, name: str) -> bool:
        quoted: str = postgres().sql.Identifier(*name.split(".")).as_string(connection)
        return connection.execute("SELECT to_regclass(%s)", [quoted]).fetchone()[0] is not None

    def _sql(self, statement: str, name: str | None = None) -> Any:
        sql = postgres().sql
        table = sql.Identifier(*(name or self.name).split("."))
        return sql.SQL(statement).format(*[table] * statement.count("{}"))


def _shard(marker: Marker) -> list[Any]:
    return [marker.job_id, marker.uid, marker.history, marker.shard]


def _own_row(marker: Marker) -> str:
    return f"{marker.writer}-{marker.sequence}"
