"""Reads files of the spool in a task, one at a time, as Arrow columns."""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO, Any

import pyarrow as pa
import pyarrow.compute as pc

from headrace.connectors.dataframe.split import SpoolSplit
from headrace.connectors.dataframe.spool import Manifest, Spool
from headrace.connectors.source import SourceBatch
from headrace.connectors.split_queue import SplitQueueReader
from headrace.errors import RecordError
from headrace.types.columns import batch_to_values, schema_of
from headrace.types.information import RowType

_READ_PREFIX = "data/read"
"""A file store wants to know where it writes; this one only reads."""


class SpoolReader(SplitQueueReader[SpoolSplit]):
    """Gives rows as columns where the row type has them, else as values; with event time where a column is named."""

    def __init__(self, spool: Spool, row_type: RowType, event_time: str | None) -> None:
        super().__init__()
        self._spool = spool
        self._row_type = row_type
        self._event_time = event_time
        self._as_columns = schema_of(row_type) is not None
        self._open: _OpenFile | None = None
        self._manifest: Manifest | None = None

    def _close_split(self) -> None:
        if self._open is not None:
            self._open.close()
            self._open = None

    def _read(self, split: SpoolSplit, limit: int) -> SourceBatch | None:
        if self._open is None:
            self._open = self._opened(split)
        columns = self._open.read(limit)
        if columns is None:
            return None
        split.position += columns.num_rows
        return self._batch(split, columns)

    def _opened(self, split: SpoolSplit) -> _OpenFile:
        if self._manifest is None or self._manifest.batch != split.batch:
            self._manifest = self._spool.manifest(split.batch)
        if self._manifest is None or split.part >= len(self._manifest.files):
            raise RecordError(
                f"File {split.part} of batch {split.batch} is gone from the spool {self._spool.location}. Restore a "
                "newer checkpoint, or begin anew under another job name."
            )
        file = self._manifest.files[split.part].file
        stream = self._spool.storage.file_store(_READ_PREFIX).open(file)
        return _OpenFile(stream, split, f"{self._spool.location}/{file.path}")

    def _batch(self, split: SpoolSplit, columns: pa.RecordBatch) -> SourceBatch:
        timestamps = None if self._event_time is None else self._timestamps(split, columns.column(self._event_time))
        if self._as_columns:
            return SourceBatch(split.split_id, columns=columns, timestamps=timestamps)
        return SourceBatch(split.split_id, batch_to_values(self._row_type, columns), timestamps=timestamps)

    def _timestamps(self, split: SpoolSplit, column: pa.Array) -> list[int]:
        if column.null_count:
            raise RecordError(
                f'A row of batch {split.batch} has no value in "{self._event_time}", which is its event time. Filter '
                "such rows out of the DataFrame, or fill the column."
            )
        if pa.types.is_timestamp(column.type):
            # Down to the millisecond, also before 1970; a cast to "ms" would refuse what it cuts off.
            micros = column.cast(pa.timestamp("us", column.type.tz)).view(pa.int64())
            column = pc.floor(pc.divide(micros.cast(pa.float64()), 1_000.0)).cast(pa.int64())
        values: list[int] = column.cast(pa.int64()).to_numpy().tolist()
        return values


class _OpenFile:
    """One Arrow stream, from a position on."""

    def __init__(self, stream: IO[bytes], split: SpoolSplit, path: str) -> None:
        self._stream = stream
        self._path = path
        self._split = split
        self._batches = self._decode(split.position)
        self._current: pa.RecordBatch | None = None
        self._taken = 0

    def read(self, limit: int) -> pa.RecordBatch | None:
        """The next rows, at most `limit`; None at the end."""
        while self._current is None or self._taken == self._current.num_rows:
            try:
                self._current, self._taken = next(self._batches, None), 0
            except (pa.ArrowException, OSError) as error:
                raise RecordError(
                    f"{self._path} cannot be decoded after row {self._split.position}: {error}. The spool is damaged: "
                    "restore it from a copy, or begin anew under another job name."
                ) from error
            if self._current is None:
                return None
        columns = self._current.slice(self._taken, limit)
        self._taken += columns.num_rows
        return columns

    def close(self) -> None:
        self._stream.close()

    def _decode(self, position: int) -> Iterator[Any]:
        with pa.ipc.open_stream(self._stream) as reader:
            for batch in reader:
                if position >= batch.num_rows:
                    position -= batch.num_rows
                    continue
                yield batch.slice(position)
                position = 0
