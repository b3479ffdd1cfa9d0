"""Kafka in, Kafka and PostgreSQL out, with a secret for each: `secret_job.py '{"directory": …}'`. It fails in the end.

The secrets are in JOB_SECRETS of the environment. Runs in a Spark session of its own that writes Spark's event log.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from headrace import (
    ExternalizedCheckpointRetention,
    KeyedProcessFunction,
    RestartStrategies,
    RuntimeContext,
    StreamExecutionEnvironment,
    Types,
    ValueStateDescriptor,
    WatermarkStrategy,
    spark_conf,
)
from headrace.connectors.kafka import (
    DeliveryGuarantee,
    KafkaOffsetsInitializer,
    KafkaRecordSerializationSchema,
    KafkaSink,
    KafkaSource,
    SimpleStringSchema,
)
from headrace.connectors.postgres import PostgresSink


class Counting(KeyedProcessFunction):
    """Counts, and breaks down once: in the attempt that makes the mark."""

    def __init__(self, mark: str) -> None:
        self._mark = mark

    def open(self, runtime_context: RuntimeContext) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Any:
        count = (self.count.value() or 0) + 1
        self.count.update(count)
        if not Path(self._mark).exists():
            Path(self._mark).touch()
            raise ValueError("the books do not balance")
        yield f"{value}-{count}"


def session(directory: Path) -> SparkSession:
    events = directory / "spark-events"
    events.mkdir()
    builder = SparkSession.builder.master("local[4]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1")
    builder = builder.config("spark.eventLog.enabled", "true").config("spark.eventLog.dir", events.as_uri())
    # As plain text, so that it can be looked through.
    builder = builder.config("spark.eventLog.compress", "false")
    for name, value in spark_conf(4, 2).items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def run(settings: dict[str, Any], secrets: dict[str, str]) -> None:
    directory = Path(settings["directory"])
    spark = session(directory)
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(1)
    env.enable_checkpointing(200)
    config = env.get_checkpoint_config()
    config.set_checkpoint_storage(f"file://{directory}/checkpoints")
    config.set_externalized_checkpoint_retention(ExternalizedCheckpointRetention.RETAIN_ON_CANCELLATION)
    env.set_restart_strategy(RestartStrategies.fixed_delay_restart(1, 20))

    reading = KafkaSource.builder().set_bootstrap_servers(settings["servers"]).set_topics(settings["source"])
    reading.set_bounded(KafkaOffsetsInitializer.latest()).set_property("sasl.username", "ada")
    reading.set_property("sasl.password", secrets["source"]).set_value_only_deserializer(SimpleStringSchema())
    schema = KafkaRecordSerializationSchema.builder().set_topic(settings["sink"])
    schema.set_value_serialization_schema(SimpleStringSchema())
    writing = KafkaSink.builder().set_bootstrap_servers(settings["servers"]).set_record_serializer(schema.build())
    writing.set_delivery_guarantee(DeliveryGuarantee.EXACTLY_ONCE).set_marker_topic(settings["markers"])
    writing.set_property("sasl.password", secrets["sink"]).set_property("ssl.key.password", secrets["sink"])
    table = PostgresSink(secrets["url"], "lines", ["line"], to_row=lambda line: (line,))

    entries = env.from_source(reading.build(), WatermarkStrategy.no_watermarks(), "entries").uid("entries")
    counting = Counting(str(directory / "broke-down"))
    counted = entries.key_by(lambda line: line).process(counting, output_type=Types.STRING()).uid("counting")
    counted = counted.name(settings["name"])
    counted.sink_to(writing.build()).uid("topic")
    counted.sink_to(table).uid("table")
    try:
        env.execute(settings["name"])
    finally:
        spark.stop()


if __name__ == "__main__":
    run(json.loads(sys.argv[1]), json.loads(os.environ["JOB_SECRETS"]))
