"""Idempotent output to PostgreSQL: rows are written as records come, and replace the row of the same key.

After a failure the records since the last checkpoint are written again, under the same keys. Until the job has
caught up, readers may see a key run back to an older value and forward again. The end is that of an undisturbed run.
"""

from __future__ import annotations

import time
from collections.abc import Hashable, Sequence
from typing import Any

from headrace.connectors.idempotent import IdempotentSink
from headrace.connectors.postgres.client import PostgresUnavailableError, Server, Session, postgres
from headrace.connectors.postgres.preflight import checked_connection
from headrace.connectors.postgres.table import Table, ToRow
from headrace.connectors.sink import WriterContext
from headrace.errors import ConfigurationError

_TRIES = 4


class PostgresUpsertSink(IdempotentSink):
    """Rows replace others by key: `INSERT … ON CONFLICT DO UPDATE`.

    Rows are sent together: when there are `flush_rows`, when the oldest has waited `flush_ms` as another comes, and at
    every barrier.
    """

    def __init__(
        self,
        url: str,
        table: str,
        columns: Sequence[str],
        keys: Sequence[str],
        *,
        to_row: ToRow | None = None,
        flush_rows: int = 5_000,
        flush_ms: int = 200,
    ) -> None:
        if not keys:
            raise ConfigurationError(
                f'PostgresSink.upsert on table "{table}" needs the columns by which rows replace others: keys=["id"]. '
                "Rows without a key are written exactly-once by PostgresSink."
            )
        self.server = Server(url)
        self.table = Table(table, columns, keys, to_row)
        self.flush_rows = flush_rows
        self.flush_ms = flush_ms

    def preflight(self) -> None:
        with checked_connection(self.server, "PostgresSink.upsert") as connection:
            self.table.check(connection, self.server, "PostgresSink.upsert")

    def describe(self) -> str:
        keys = ", ".join(self.table.keys)
        return f"PostgreSQL table {self.table.name}, upsert by {keys} at {self.server.shown}"

    def __repr__(self) -> str:
        return f"PostgresUpsertSink({self.describe()})"

    # What a task does.

    def open(self, context: WriterContext) -> None:
        self._session = Session(self.server, "PostgresSink.upsert")
        self._rows: list[tuple[Any, ...]] = []
        self._since = 0.0
        self._session.connection()

    def key_of(self, value: Any) -> Hashable:
        return self.table.key_of(self.table.row_of(value))

    def write(self, key: Hashable, value: Any, timestamp: int | None) -> None:
        now = time.monotonic()
        if not self._rows:
            self._since = now
        self._rows.append(self.table.row_of(value))
        if len(self._rows) >= self.flush_rows or (now - self._since) * 1_000 >= self.flush_ms:
            self.flush()

    def flush(self) -> None:
        if not self._rows:
            return
        library = postgres()
        for tries in range(1, _TRIES + 1):
            try:
                connection = self._session.connection()
                self.table.write(connection, self._rows)
                connection.commit()
                break
            except (PostgresUnavailableError, library.OperationalError) as error:
                # A deadlock, or a server that went away. Whether the rows got in or not: writing again does no harm.
                self._session.drop()
                if tries == _TRIES:
                    raise PostgresUnavailableError(self._failure(error)) from None
                time.sleep(0.1 * 2**tries)
            except library.Error as error:
                self._session.drop()
                raise PostgresUnavailableError(self._failure(error)) from None
        self._rows = []

    def close(self) -> None:
        self._session.drop()

    def _failure(self, error: BaseException) -> str:
        return (
            f"{len(self._rows)} rows could not be written to table {self.table.name} at {self.server.shown}: "
            f"{self.server.redact(error)}."
        )
