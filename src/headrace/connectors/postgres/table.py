"""The table that is written to: its columns, how a record becomes a row, and how many rows get in at once.

Rows go in by COPY. Where rows replace others by key, they go by COPY into a temporary table and from there, the last
one of each key, by INSERT … ON CONFLICT DO UPDATE. Names are quoted by the client library, always.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from headrace.connectors.postgres.client import Server, postgres, refused
from headrace.errors import ConfigurationError, TypeMismatchError
from headrace.types.rows import Row, positional_names, values_of

ToRow = Callable[[Any], Sequence[Any]]
_JSON_TYPES = frozenset({114, 3802})
_ORDER = "headrace_order"


class Table:
    """A table with the columns that are written, and the key columns if rows replace others."""

    def __init__(
        self, name: str, columns: Sequence[str], keys: Sequence[str] = (), to_row: ToRow | None = None
    ) -> None:
        if isinstance(columns, str) or not columns:
            raise ConfigurationError(f'Table "{name}" needs the names of its columns as a list, such as ["id", "at"].')
        if isinstance(keys, str):
            keys = [keys]
        unknown = [key for key in keys if key not in columns]
        if unknown or len(set(columns)) != len(columns):
            raise ConfigurationError(
                f'Table "{name}" has columns {", ".join(columns)} and keys {", ".join(keys)}: each column is named '
                "once, and every key is one of them."
            )
        self.name = name
        self.columns = tuple(columns)
        self.keys = tuple(keys)
        self._to_row = to_row

    def row_of(self, record: Any) -> tuple[Any, ...]:
        """The values of a record in the order of the columns.

        By name where a record has names (dict, row, dataclass, NamedTuple), by position in a tuple or list; any other
        record is the value of the only column.
        """
        if self._to_row is not None:
            row = tuple(self._to_row(record))
        elif isinstance(record, Mapping):
            return self._named(record, record.__getitem__)
        elif isinstance(record, Row):
            names = type(record).__row_names__
            if names != positional_names(len(names)):
                return self._named(record, record.__getitem__)
            row = values_of(record)
        elif hasattr(record, "_fields") or dataclasses.is_dataclass(record) or hasattr(record, "__struct_fields__"):
            return self._named(record, lambda name: getattr(record, name))
        elif isinstance(record, tuple | list):
            row = tuple(record)
        else:
            row = (record,)
        if len(row) != len(self.columns):
            raise TypeMismatchError(
                f'{_short(record)} has {len(row)} values, but table "{self.name}" is written with the columns '
                f"{', '.join(self.columns)}. Give as many, or a function with to_row=."
            )
        return row

    def key_of(self, row: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(row[self.columns.index(key)] for key in self.keys)

    def _named(self, record: Any, get: Callable[[str], Any]) -> tuple[Any, ...]:
        try:
            return tuple([get(column) for column in self.columns])
        except (KeyError, AttributeError):
            raise TypeMismatchError(
                f'{_short(record)} has not all of the columns {", ".join(self.columns)} of table "{self.name}". '
                "Name the columns that records have, or give a function with to_row=."
            ) from None

    # What is said to the server.

    def identifier(self) -> Any:
        return postgres().sql.Identifier(*self.name.split("."))

    def _names(self, columns: Sequence[str]) -> Any:
        sql = postgres().sql
        return sql.SQL(", ").join(map(sql.Identifier, columns))

    def check(self, connection: Any, server: Server, who: str) -> None:
        """Refuse a table that is not there, misses a column, or has no unique index on the keys."""
        library = postgres(who)
        sql = library.sql
        try:
            connection.execute(self._probe())
            if self.keys:
                statement = sql.SQL("EXPLAIN INSERT INTO {t} ({c}) SELECT {c} FROM {t} ON CONFLICT ({k}) DO NOTHING")
                connection.execute(
                    statement.format(t=self.identifier(), c=self._names(self.columns), k=self._names(self.keys))
                )
        except library.errors.InvalidColumnReference:
            raise ConfigurationError(
                f'{who} replaces rows of table "{self.name}" by {", ".join(self.keys)}, but no unique index stands on '
                f"these columns. CREATE UNIQUE INDEX ON {self.name} ({', '.join(self.keys)})."
            ) from None
        except library.Error as error:
            raise refused(
                error,
                f'{who} cannot write to table "{self.name}" of {server.shown}',
                f"Create it with the columns {', '.join(self.columns)} and grant this user INSERT"
                f"{', UPDATE' if self.keys else ''} and SELECT on it.",
                server,
            ) from None

    def _probe(self) -> Any:
        sql = postgres().sql
        return sql.SQL("SELECT {} FROM {} LIMIT 0").format(self._names(self.columns), self.identifier())

    def json_columns(self, connection: Any) -> tuple[int, ...]:
        """Positions of columns whose values go in as JSON."""
        found = connection.execute(self._probe()).description
        return tuple(i for i, column in enumerate(found) if column.type_code in _JSON_TYPES)

    def copy_statement(self) -> Any:
        sql = postgres().sql
        return sql.SQL("COPY {} ({}) FROM STDIN").format(self.identifier(), self._names(self.columns))

    def write(self, connection: Any, rows: Sequence[Sequence[Any]]) -> None:
        """All rows, in order, inside the transaction that is open."""
        if self.keys:
            self._merge(connection, rows)
            return
        as_json = self.json_columns(connection)
        with connection.cursor() as cursor, cursor.copy(self.copy_statement()) as copy:
            for row in rows:
                copy.write_row(with_json(row, as_json) if as_json else row)

    def _merge(self, connection: Any, rows: Sequence[Sequence[Any]]) -> None:
        sql = postgres().sql
        as_json = self.json_columns(connection)
        digest = hashlib.sha256(f"{self.name}:{self.columns}".encode()).hexdigest()[:12]
        parts = {
            "incoming": sql.Identifier(f"headrace_incoming_{digest}"),
            "order": sql.Identifier(_ORDER),
            "table": self.identifier(),
            "columns": self._names(self.columns),
            "keys": self._names(self.keys),
        }

        def run(statement: str, **more: Any) -> None:
            connection.execute(sql.SQL(statement).format(**parts, **more))

        # The columns have the table's own types, so that rows are equal here exactly if they are equal there.
        run(
            "CREATE TEMPORARY TABLE IF NOT EXISTS {incoming} ON COMMIT DELETE ROWS "
            "AS SELECT 0::bigint AS {order}, {columns} FROM {table} WITH NO DATA"
        )
        into = sql.SQL("COPY {incoming} ({order}, {columns}) FROM STDIN").format(**parts)
        with connection.cursor() as cursor, cursor.copy(into) as copy:
            for i, row in enumerate(rows):
                copy.write_row((i, *(with_json(row, as_json) if as_json else row)))
        others = [column for column in self.columns if column not in self.keys]
        sets = sql.SQL(", ").join(sql.SQL("{0} = EXCLUDED.{0}").format(sql.Identifier(column)) for column in others)
        # In the order of the keys, so that two subtasks that meet at the same rows wait for each other one way only.
        run(
            "INSERT INTO {table} ({columns}) SELECT {columns} FROM "
            "(SELECT DISTINCT ON ({keys}) * FROM {incoming} ORDER BY {keys}, {order} DESC) AS latest "
            "ON CONFLICT ({keys}) DO {action}",
            action=sql.SQL("UPDATE SET ") + sets if others else sql.SQL("NOTHING"),
        )


def with_json(row: Sequence[Any], positions: Sequence[int]) -> list[Any]:
    """The row with the values of these columns as JSON; None stays NULL."""
    wrapped = list(row)
    for i in positions:
        if wrapped[i] is not None:
            wrapped[i] = postgres().Jsonb(wrapped[i])
    return wrapped


def _short(record: Any) -> str:
    text = repr(record)
    return text if len(text) <= 200 else f"{text[:200]}…"
