"""A topic by Spark's own Kafka source, a count per account, files: `spark_source_job.py '{"servers": …}'`.

First all that is in the topic, as a batch, into `batch/`; then the same topic as a stream into `stream/`, until ended.
Exits 130 after Ctrl-C. A session of its own: the connector's jars are loaded when the JVM starts.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from kafka_job import Counting
from pyspark.sql import SparkSession

import headrace
from headrace import FileSink, RestartStrategies, StreamExecutionEnvironment, Types
from headrace.runtime.spark.settings import LOCAL_JVM_OPTIONS

SLOTS = 6
RECORDS_PER_BATCH = 300


def session(jars: str) -> SparkSession:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    # Where Spark's workers find the function's module.
    os.environ["PYTHONPATH"] = str(Path(__file__).parent)
    builder = SparkSession.builder.master(f"local[{SLOTS}]").config("spark.ui.enabled", "false")
    for name, value in headrace.spark_conf(total_slots=SLOTS - 1, largest_level_slots=2).items():
        builder = builder.config(name, value)
    # As in sessions of our own: a JVM that starts sooner.
    builder = builder.config("spark.driver.extraJavaOptions", " ".join(LOCAL_JVM_OPTIONS))
    spark = builder.config("spark.jars", jars).getOrCreate()
    # The connector warns at every record that the thread which feeds Python is not one of its own kind.
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def execute(name: str, frame: Any, out: Path, directory: Path) -> None:
    env = StreamExecutionEnvironment.get_execution_environment(spark=frame.sparkSession)
    env.set_parallelism(2)
    env.enable_checkpointing(200)
    env.get_checkpoint_config().set_checkpoint_storage(f"file://{directory}/checkpoints")
    env.set_restart_strategy(RestartStrategies.fixed_delay_restart(10, 50))
    entries = frame.selectExpr("cast(key as string) as account", "cast(cast(value as string) as long) as n")
    trigger = {"processingTime": "100 milliseconds"} if frame.isStreaming else None
    stream = env.from_dataframe(entries, source_name="entries", trigger=trigger).uid("entries")
    counted = stream.key_by("account").process(Counting(), output_type=Types.STRING()).uid("counting")
    counted.sink_to(FileSink.text(out)).uid("sink")
    env.execute(name)


def run(settings: dict[str, Any]) -> int:
    spark = session(settings["jars"])
    directory = Path(settings["directory"])
    options = {
        "kafka.bootstrap.servers": settings["servers"],
        "subscribe": settings["topic"],
        "startingOffsets": "earliest",
        "kafka.isolation.level": "read_committed",
    }
    execute("batch", spark.read.format("kafka").options(**options).load(), directory / "batch", directory)
    reader = spark.readStream.format("kafka").options(**options).option("maxOffsetsPerTrigger", RECORDS_PER_BATCH)
    try:
        execute("ledger", reader.load(), directory / "stream", directory)
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(run(json.loads(sys.argv[1])))
