"""A stream's output as Spark DataFrames: `fn(df, id)` in the driver, once for each checkpoint that has output.

    records ─▶ Arrow batches ─▶ barrier n: sealed, part of the checkpoint ─▶ complete: the driver calls fn(df, n)

A write-ahead log whose sender is the driver. What was sealed at barrier *n* is handed over under the id *n*, always the
same rows under the same id; if *n* itself was given up, when a later checkpoint completes. The driver notes each id
when `fn` has returned. A driver that dies between the two cannot tell whether `fn` did its work, so the next one calls
it again with the same rows and the same id.

A prepared item is an Arrow stream: schema, batches, end mark.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import pyarrow as pa

from headrace.checkpoint.handles import HistoryPoint, PreparedItem
from headrace.checkpoint.storage.base import CheckpointStorage
from headrace.connectors.dataframe.notes import HandOverNotes
from headrace.connectors.sink import CommittedOutput, Committer, Sink, SinkGuarantee, SinkWriter, WriterContext
from headrace.errors import CommitFailedError, JobDefinitionError, StorageError
from headrace.types.columns import rows_to_batch, schema_of
from headrace.types.information import TypeInformation

ROWS_PER_BATCH = 10_000
_READ_PREFIX = "read/output"
"""A file store wants to know where it writes; this one only reads."""


class OutputId(int):
    """The id under which output is handed over: the number of the checkpoint at whose barrier it was sealed.

    Numbers begin anew when a finished job is started again or goes on in another checkpoint directory, and every sink
    has the same ones; `marker` tells all of them apart.
    """

    marker: str
    """`job/sink uid/history/attempt/number`: no other output of any run or sink of this job has the same, in whatever
    directory its checkpoints lie. Fits a text column."""

    @classmethod
    def of(cls, job_id: str, uid: str, point: HistoryPoint) -> OutputId:
        """`point`: when the output was sealed. Its history is empty if the checkpoint does not say."""
        made = cls(point.checkpoint_id)
        made.marker = "/".join([job_id, uid, *(str(part) for part in point if part != "")])
        return made


HandOverFunction: TypeAlias = Callable[[Any, OutputId], Any]


class DataFrameSink(Sink):
    """Made by `stream.sink_to_dataframe`. The function stays in the driver; tasks know the type of the records."""

    needs_spark_slot = True

    def __init__(self, function: HandOverFunction, record_type: TypeInformation, *, idempotent: bool = False) -> None:
        if not callable(function):
            raise JobDefinitionError(f"sink_to_dataframe() got {function!r}; wanted a function of (df, checkpoint id).")
        schema = schema_of(record_type)
        if schema is None:
            raise JobDefinitionError(
                f"sink_to_dataframe() has records of type {record_type}, some part of which has no column type. Map "
                "them to rows of plain types first, with map(..., output_type=Types.ROW_NAMED(...))."
            )
        self.function: HandOverFunction | None = function
        self.record_type = record_type
        self.guarantee = SinkGuarantee.WRITE_AHEAD if idempotent else SinkGuarantee.WRITE_AHEAD_UNMARKED
        self._named = _name_of(function)
        self.notes: HandOverNotes | None = None
        """What was handed over. Set by the runtime in the driver, and nowhere else."""

    @property
    def schema(self) -> pa.Schema:
        """The columns of the DataFrame."""
        return schema_of(self.record_type)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "function": None, "notes": None}

    def guarantee_in_words(self) -> tuple[str, str | None]:
        if self.guarantee is SinkGuarantee.WRITE_AHEAD:
            return (
                f"hands each checkpoint's output to {self._named} with its id; after a crash perhaps again with the "
                "same id, which the program says (idempotent=True) changes nothing then",
                None,
            )
        return (
            f"hands each checkpoint's output to {self._named} with its id, and again after a crash in the middle of it",
            "let the function skip ids it has seen, in the transaction that writes the rows, and say idempotent=True",
        )

    def create_writer(self, context: WriterContext) -> SinkWriter:
        return DataFrameWriter(self.record_type)

    def create_committer(self) -> Committer:
        return _HandedOver(self.notes)

    def describe(self) -> str:
        return f"hands its output to {self._named} as a Spark DataFrame, checkpoint by checkpoint"


class DataFrameWriter(SinkWriter):
    """Keeps the output of one subtask since the last barrier, as Arrow batches."""

    def __init__(self, record_type: TypeInformation) -> None:
        self._type = record_type
        self._schema = schema_of(record_type)
        self._rows: list[Any] = []
        self._batches: list[pa.RecordBatch] = []

    def write(self, value: Any, timestamp: int | None) -> None:
        self._rows.append(value)
        if len(self._rows) >= ROWS_PER_BATCH:
            self._encode()

    def prepare_commit(self, checkpoint_id: int) -> Sequence[bytes]:
        self._encode()
        if not self._batches:
            return ()
        target = pa.BufferOutputStream()
        with pa.ipc.new_stream(target, self._schema) as stream:
            for batch in self._batches:
                stream.write_batch(batch)
        self._batches = []
        return [target.getvalue().to_pybytes()]

    def close(self) -> None:
        self._rows, self._batches = [], []

    def _encode(self) -> None:
        if self._rows:
            self._batches.append(rows_to_batch(self._type, self._rows, self._schema))
            self._rows = []


class _HandedOver(Committer):
    """Nothing is left to do in a task: it hears of a checkpoint only when the driver has handed its output over."""

    def __init__(self, notes: HandOverNotes | None) -> None:
        self._notes = notes

    def commit(self, items: Sequence[bytes]) -> None:
        return

    def committed_since(self, job_id: str, uid: str, point: HistoryPoint) -> Sequence[CommittedOutput]:
        try:
            handed = [] if self._notes is None else self._notes.since(job_id, uid, point)
        except StorageError as error:
            raise CommitFailedError(f"What was handed over by {uid} of job {job_id} cannot be read: {error}") from error
        return [
            CommittedOutput(
                noted.attempt, noted.checkpoint_id, f"what was handed over as {OutputId.of(job_id, uid, noted).marker}"
            )
            for noted in handed
        ]


class OutputReader:
    """Reads prepared output where Spark's tasks run. `storage` is where the checkpoint's files lie."""

    def __init__(self, storage: CheckpointStorage) -> None:
        self._storage = storage

    def __call__(self, work: bytes) -> Iterator[pa.RecordBatch]:
        """The rows of one prepared item, which travels in msgpack."""
        item = msgspec.msgpack.decode(work, type=PreparedItem)
        data = item.payload
        if item.file is not None:
            data = self._storage.file_store(_READ_PREFIX).read(item.file)
        with pa.ipc.open_stream(data) as stream:
            yield from stream


def _name_of(function: Any) -> str:
    name = getattr(function, "__qualname__", type(function).__name__)
    try:
        file, line = inspect.getsourcefile(function), inspect.getsourcelines(function)[1]
    except (TypeError, OSError):
        return f"{name}()"
    return f"{name}() ({Path(file).name}:{line})" if file else f"{name}()"
