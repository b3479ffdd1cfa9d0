"""State in Spark's tasks, piece by piece: read into a DataFrame, or gathered from DataFrames and written."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import BinaryType, StructField, StructType

_WORK = StructType([StructField("work", BinaryType(), nullable=False)])


def dataframe_of_pieces(
    spark: SparkSession, work: Sequence[bytes], read: Callable[[bytes], Iterator[Any]], schema: pa.Schema
) -> DataFrame:
    """One partition for each item of `work`; `read` runs in the worker and gives the Arrow batches of that item."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for item in batch.column(0).to_pylist():
                yield from read(item)

    rows = spark.sparkContext.parallelize([(bytearray(item),) for item in work], max(1, len(work)))
    return spark.createDataFrame(rows, _WORK).mapInArrow(run, from_arrow_schema(schema))


def gathered_by_piece(
    frames: Sequence[DataFrame],
    pieces: int,
    deal: Callable[[int, Iterator[Any]], Iterator[tuple[int, Any]]],
    write: Callable[[int, Iterator[Any]], bytes],
) -> list[bytes]:
    """Bring together what belongs together and write it: what `write` gave for each piece, in order.

    `deal(n, rows)` runs where frame n is read and says for each row which piece it goes to, and as what. `write(piece,
    items)` runs once for each piece, also for one without items. Spark may run either again after a failure.
    """
    dealt = [frame.rdd.mapPartitions(_Dealing(n, deal)) for n, frame in enumerate(frames)]
    together = frames[0].sparkSession.sparkContext.union(dealt) if len(dealt) > 1 else dealt[0]
    return list(together.partitionBy(pieces, _itself).mapPartitionsWithIndex(_Writing(write)).collect())


def _itself(piece: int) -> int:
    return piece


class _Dealing:
    def __init__(self, number: int, deal: Callable[[int, Iterator[Any]], Iterator[tuple[int, Any]]]) -> None:
        self._number = number
        self._deal = deal

    def __call__(self, rows: Iterator[Any]) -> Iterator[tuple[int, Any]]:
        return self._deal(self._number, rows)


class _Writing:
    def __init__(self, write: Callable[[int, Iterator[Any]], bytes]) -> None:
        self._write = write

    def __call__(self, piece: int, items: Iterator[tuple[int, Any]]) -> Iterator[bytes]:
        yield self._write(piece, (item for _, item in items))
