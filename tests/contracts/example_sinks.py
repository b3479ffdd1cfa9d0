"""One small sink of each kind, as a user would write it: over SQLite, and over the memory of the test."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from headrace.connectors.idempotent import IdempotentSink
from headrace.connectors.sink import SinkGuarantee, WriterContext
from headrace.connectors.two_phase import TwoPhaseCommitSink
from headrace.connectors.write_ahead import Marker, WriteAheadSink
from headrace.errors import OutputLostError


class Table:
    """A store with transactions; what is in `rows` is what a reader sees."""

    def __init__(self) -> None:
        self.open: dict[str, list[Any]] = {}
        self.prepared: dict[str, list[Any]] = {}
        self.committed: set[str] = set()
        self.rows: list[Any] = []


class TableTransaction(msgspec.Struct):
    name: str


class TableSink(TwoPhaseCommitSink[TableTransaction]):
    """The two-phase template."""

    transaction_type = TableTransaction

    def __init__(self, table: Table) -> None:
        self.table = table

    def open(self, context: WriterContext) -> None:
        self.count = len(self.table.committed)

    def begin(self) -> TableTransaction:
        self.count += 1
        name = f"{self.context.uid}/{self.context.history}/{self.context.attempt}/{self.context.subtask}/{self.count}"
        self.table.open[name] = []
        return TableTransaction(name)

    def invoke(self, txn: TableTransaction, value: Any, timestamp: int | None) -> None:
        self.table.open[txn.name].append(value)

    def pre_commit(self, txn: TableTransaction) -> None:
        self.table.prepared[txn.name] = self.table.open.pop(txn.name)

    def commit(self, txn: TableTransaction) -> None:
        if txn.name not in self.table.committed:
            if txn.name not in self.table.prepared:
                raise OutputLostError(f"transaction {txn.name} is gone")
            self.table.committed.add(txn.name)
            self.table.rows += self.table.prepared.pop(txn.name)

    def abort(self, txn: TableTransaction) -> None:
        self.table.open.pop(txn.name, None)
        self.table.prepared.pop(txn.name, None)

    def find_leftovers(self, job_id: str, uid: str, attempt: int) -> list[TableTransaction]:
        names = [name.split("/") for name in (*self.table.open, *self.table.prepared)]
        own = [name for name in names if name[:2] == [uid, self.history]]
        return [TableTransaction("/".join(name)) for name in own if int(name[2]) < attempt]


class SqliteLogSink(WriteAheadSink):
    """The write-ahead template: values and marker in one transaction."""

    guarantee = SinkGuarantee.WRITE_AHEAD

    def __init__(self, path: Path) -> None:
        self.path = path
        with sqlite3.connect(path) as db:
            db.execute("CREATE TABLE IF NOT EXISTS numbers (n INTEGER)")
            db.execute("CREATE TABLE IF NOT EXISTS markers (marker TEXT PRIMARY KEY)")

    def open(self) -> None:
        self.db = sqlite3.connect(self.path, check_same_thread=False)
        self.db.execute("PRAGMA synchronous = OFF")  # the machine does not fail in these tests

    def send(self, values: Sequence[Any], marker: Marker) -> None:
        with self.db:
            self.db.execute("INSERT INTO markers VALUES (?)", [str(marker)])
            self.db.executemany("INSERT INTO numbers VALUES (?)", [[value] for value in values])

    def is_committed(self, marker: Marker) -> bool:
        return self.db.execute("SELECT 1 FROM markers WHERE marker = ?", [str(marker)]).fetchone() is not None

    def close(self) -> None:
        self.db.close()

    def numbers(self) -> list[int]:
        return numbers_in(self.path)


class TwoStepLogSink(SqliteLogSink):
    """The same with the marker in a transaction of its own: at-least-once, as the template's default says."""

    guarantee = SinkGuarantee.WRITE_AHEAD_UNMARKED

    def send(self, values: Sequence[Any], marker: Marker) -> None:
        with self.db:
            self.db.executemany("INSERT INTO numbers VALUES (?)", [[value] for value in values])
        with self.db:
            self.db.execute("INSERT INTO markers VALUES (?)", [str(marker)])


class SqliteUpsertSink(IdempotentSink):
    """The idempotent template."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with sqlite3.connect(path) as db:
            db.execute("CREATE TABLE IF NOT EXISTS numbers (n INTEGER PRIMARY KEY)")

    def open(self, context: WriterContext) -> None:
        self.db = sqlite3.connect(self.path, isolation_level=None)
        self.db.execute("PRAGMA synchronous = OFF")

    def key_of(self, value: Any) -> Any:
        return value

    def write(self, key: Any, value: Any, timestamp: int | None) -> None:
        self.db.execute("INSERT OR REPLACE INTO numbers VALUES (?)", [value])

    def close(self) -> None:
        self.db.close()


def numbers_in(path: Path) -> list[int]:
    with sqlite3.connect(path) as db:
        return [n for (n,) in db.execute("SELECT n FROM numbers ORDER BY rowid")]
