"""Writes the rows of one Spark partition into the spool. Runs in the workers of the query that feeds a job.

A file is an Arrow stream: schema, batches, end mark. It is whole or it is not named by any manifest; its size and hash
stand there.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pyarrow as pa

from headrace.connectors.dataframe.spool import Spool, SpoolFile
from headrace.errors import TypeMismatchError
from headrace.types.columns import schema_of
from headrace.types.information import RowType

FILE_BYTES = 64 * 1024 * 1024
"""A file is closed at this size: so much at most is read by one subtask while others have nothing to do."""

_END_OF_STREAM = b"\xff\xff\xff\xff\x00\x00\x00\x00"


class PartWriter:
    """Made in the driver for one try of one batch; called once in each of its tasks, and again where Spark repeats one.

    Each call writes files of its own: those of a task that died are named by nobody.
    """

    def __init__(self, spool: Spool, batch: int, attempt: str, row_type: RowType, file_bytes: int = FILE_BYTES) -> None:
        self._spool = spool
        self._batch = batch
        self._attempt = attempt
        self._row_type = row_type
        self._file_bytes = file_bytes

    def __call__(self, partition: int, batches: Iterator[pa.RecordBatch]) -> Iterator[bytes]:
        """Store the rows; gives each file as `SpoolFile` in msgpack. Nothing is stored where there are no rows."""
        store = self._spool.storage.file_store(self._spool.data_prefix(self._batch, self._attempt))
        rows = _Rows(batches, self._row_type, self._file_bytes)
        number = 0
        while rows.more():
            file = store.write(f"part-{partition:05d}-{number:03d}", rows.one_file())
            yield msgspec.msgpack.encode(SpoolFile(file, rows.written, partition))
            number += 1


class _Rows:
    """The rows of a partition, in portions of one file."""

    def __init__(self, batches: Iterator[pa.RecordBatch], row_type: RowType, file_bytes: int) -> None:
        self._batches = (batch for batch in batches if batch.num_rows)
        self._row_type = row_type
        self._schema = schema_of(row_type)
        self._file_bytes = file_bytes
        self._next: pa.RecordBatch | None = None
        self.written = 0
        """Rows of the file that was given last."""

    def more(self) -> bool:
        self._next = next(self._batches, None)
        return self._next is not None

    def one_file(self) -> Iterator[memoryview | bytes]:
        self.written = size = 0
        batch = self._next
        assert batch is not None
        first = self._as_declared(batch)
        yield memoryview(first.schema.serialize())
        while batch is not None:
            data = memoryview(self._as_declared(batch).serialize())
            self.written += batch.num_rows
            size += data.nbytes
            yield data
            batch = next(self._batches, None) if size < self._file_bytes else None
        yield _END_OF_STREAM

    def _as_declared(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if self._schema is None:
            return batch
        try:
            named = batch.rename_columns(self._schema.names)
            return named if named.schema.equals(self._schema) else named.cast(self._schema)
        except (pa.ArrowException, ValueError) as error:
            raise TypeMismatchError(
                f"The DataFrame's columns do not fit {self._row_type}, to which its schema was translated: {error}. "
                "Cast the column that is named to another type before from_dataframe()."
            ) from error
