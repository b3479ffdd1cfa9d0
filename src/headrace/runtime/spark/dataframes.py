"""Queries on a user's DataFrames, beside a job: what they give is written to files by their own tasks.

Everything happens in the user's session. A query holds whatever slots are free while it runs; the job keeps its own.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from headrace.errors import HeadraceError, retry
from headrace.runtime.spark.jvm import within
from headrace.runtime.spark.taskcontext import task_attempt_number

WritePart = Callable[[int, Iterator["pa.RecordBatch"]], Iterator[bytes]]
"""`write(partition, batches)`: runs in a worker, gives what the driver is to know of the partition."""

_numbers = itertools.count(1)
_STOP_WITHIN_S = 60.0
_TRACEBACK = "Traceback (most recent call last):"
_AFTER_TRACE = ("\n SQLSTATE:", "\n\nJVM stacktrace:", "\n\tat ", "\nDriver stacktrace:")


class SparkQueryError(HeadraceError):
    """A query of the user's DataFrame failed. The message is the query's own."""

    recovery = retry("what the query reads or calls may answer again")

    def __init__(self, message: str, detail: str = "") -> None:
        super().__init__(message)
        self.detail = detail
        """All that Spark said."""


class PartsQuery:
    """One run of a DataFrame's query, in the calling thread; another thread may cancel it."""

    def __init__(self, frame: DataFrame, write: WritePart, description: str) -> None:
        self._frame = frame
        self._write = write
        self._description = description
        self._context = frame.sparkSession.sparkContext
        self._group = f"headrace-query#{next(_numbers)}"

    def run(self, *, own_group: bool) -> list[bytes]:
        """What `write` gave, of every partition. `own_group`: false within a streaming query, which has one itself."""
        write = self._write

        def each(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            partition = task_attempt_number().partition_id
            for told in write(partition, batches):
                yield pa.RecordBatch.from_arrays([pa.array([told], pa.binary())], ["told"])

        if own_group:
            self._context.setJobGroup(self._group, self._description, interruptOnCancel=False)
        try:
            return [bytes(row[0]) for row in self._frame.mapInArrow(each, "told binary").collect()]
        except Exception as error:
            raise SparkQueryError(_headline(str(error)), str(error)) from error

    def cancel(self) -> None:
        context = self._context._jsc
        if context is not None:
            within(lambda: context.sc().cancelJobGroupAndFutureJobs(self._group), otherwise=None)


class StreamQuery:
    """A streaming query that gives each micro-batch to `each(frame, batch id)` in the driver, one after the other."""

    def __init__(
        self, frame: DataFrame, each: Callable[[Any, int], None], checkpoint: str, trigger: Mapping[str, Any], name: str
    ) -> None:
        """`checkpoint`: where Spark keeps its own. `name`: for Spark's page and its messages."""
        writer = frame.writeStream.foreachBatch(each).option("checkpointLocation", checkpoint).queryName(name)
        if trigger:
            writer = writer.trigger(**trigger)
        try:
            self._query: StreamingQuery = writer.start()
        except Exception as error:
            raise SparkQueryError(_headline(str(error)), str(error)) from error

    @property
    def id(self) -> str:
        """Stays the same for as long as Spark's checkpoint does."""
        return str(self._query.id)

    def wait(self) -> None:
        """Return when the query has ended by itself or was stopped; raise what it failed of."""
        try:
            self._query.awaitTermination()
        except Exception as error:
            raise SparkQueryError(_headline(str(error)), str(error)) from error

    def stop(self) -> None:
        """Return when the query has stopped, or is over, or Spark does not answer."""
        within(self._query.stop, otherwise=None, seconds=_STOP_WITHIN_S)


_HADOOP_NAMES = {"s3": "s3a", "gcs": "gs"}


def spark_uri(location: str) -> str:
    """A location as Spark's file systems name it."""
    scheme, colon, rest = location.partition(":")
    return f"{_HADOOP_NAMES.get(scheme, scheme)}{colon}{rest}"


def why_spark_cannot_open(session: SparkSession, uri: str) -> str | None:
    """What Hadoop says if it knows no file system for that URI; None if it has one. Nothing there is looked at."""
    context = session.sparkContext
    jvm: Any = context._jvm
    try:
        jvm.org.apache.hadoop.fs.Path(uri).getFileSystem(context._jsc.hadoopConfiguration())
    except Py4JJavaError as error:
        java: Any = error.java_exception
        return str(java.getMessage() or java.getClass().getName()).splitlines()[0]
    return None


def _headline(text: str) -> str:
    """The line of Spark's report that says what happened: the exception, where Python code of the query raised it."""
    if _TRACEBACK in text:
        trace = text.rsplit(_TRACEBACK, 1)[1]
        for end in _AFTER_TRACE:
            trace = trace.split(end, 1)[0]
        lines = [line for line in trace.splitlines() if line and not line.startswith((" ", "\t"))]
        if lines:
            return lines[-1].strip()
    return text.strip().splitlines()[0] if text.strip() else "Spark gave no reason"
