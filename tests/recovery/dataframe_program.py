"""A whole program: files by Spark's streaming reader → keyed counts → Parquet or PostgreSQL by Spark's writers."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import headrace
from headrace import (
    KeyedProcessFunction,
    RestartStrategies,
    Row,
    StreamExecutionEnvironment,
    Types,
    ValueStateDescriptor,
)

COUNTED = Types.ROW_NAMED(["id", "key", "nth"], [Types.LONG(), Types.LONG(), Types.LONG()])
SLOTS = 6


class Counting(KeyedProcessFunction):
    """Gives every record its number within its key: what was lost or counted twice is seen in the output."""

    def open(self, runtime_context: Any) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))

    def process_element(self, value: Any, ctx: Any) -> Any:
        nth = (self.count.value() or 0) + 1
        self.count.update(nth)
        yield Row(id=value.id, key=value.key, nth=nth)


def to_parquet(directory: Path) -> Any:
    def write(frame: Any, checkpoint: Any) -> None:
        with open(directory / "calls", "a") as calls:
            calls.write(f"{checkpoint.marker}\n")
        frame.write.mode("overwrite").parquet(str(directory / "out" / checkpoint.marker.replace("/", "-")))

    return write


def to_postgres(directory: Path, url: str, jdbc: str) -> Any:
    import psycopg

    def write(frame: Any, checkpoint: Any) -> None:
        with open(directory / "calls", "a") as calls:
            calls.write(f"{checkpoint.marker}\n")
        with psycopg.connect(url) as connection:
            known = connection.execute("SELECT 1 FROM handed_over WHERE marker = %s", [checkpoint.marker])
            if known.fetchone():
                return
            frame.write.mode("overwrite").jdbc(jdbc, "staging", properties={"driver": "org.postgresql.Driver"})
            connection.execute("INSERT INTO handed_over VALUES (%s)", [checkpoint.marker])
            connection.execute("INSERT INTO counted SELECT id, key, nth FROM staging")

    return write


def main() -> None:
    settings = json.loads(sys.argv[1])
    directory = Path(settings["directory"])
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master(f"local[{SLOTS}]").config("spark.ui.enabled", "false")
    for name, value in headrace.spark_conf(total_slots=SLOTS - 1, largest_level_slots=2).items():
        builder = builder.config(name, value)
    if settings.get("jar"):
        builder = builder.config("spark.driver.extraClassPath", settings["jar"])
    spark = builder.getOrCreate()
    files = spark.readStream.schema("id long, key long").option("maxFilesPerTrigger", 1).parquet(settings["input"])
    env = StreamExecutionEnvironment.get_execution_environment(spark=spark)
    env.set_parallelism(2)
    env.enable_checkpointing(100)
    env.get_checkpoint_config().set_checkpoint_storage(f"file://{directory}/checkpoints")
    env.set_restart_strategy(RestartStrategies.no_restart())
    write = to_parquet(directory)
    if settings.get("url"):
        write = to_postgres(directory, settings["url"], settings["jdbc"])
    stream = env.from_dataframe(files, trigger={"availableNow": True}, source_name="files").uid("files")
    counted = stream.key_by("key").process(Counting(), output_type=COUNTED)
    counted.sink_to_dataframe(write, idempotent=True).uid("out")
    env.execute("ledger")


if __name__ == "__main__":
    main()
