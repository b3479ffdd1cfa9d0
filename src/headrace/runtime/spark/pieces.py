"""A DataFrame whose rows Spark's tasks read themselves: each task gets descriptions of pieces, not the data."""

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
