"""Kafka in, a count per account, Kafka out, as a program of its own: `kafka_job.py '{"servers": …}'`. Runs until ended.

Exits 130 after Ctrl-C.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from headrace import (
    KeyedProcessFunction,
    RestartStrategies,
    RuntimeContext,
    StreamExecutionEnvironment,
    Types,
    ValueStateDescriptor,
    WatermarkStrategy,
)
from headrace.connectors.kafka import (
    DeliveryGuarantee,
    JsonRowDeserializationSchema,
    KafkaRecordSerializationSchema,
    KafkaSink,
    KafkaSource,
    SimpleStringSchema,
)
from headrace.datastream.overrides import Overrides, overriding

ENTRY = Types.ROW_NAMED(["account", "n"], [Types.STRING(), Types.LONG()])


class Counting(KeyedProcessFunction):
    """Numbers the entries of an account: `account:n:how many there were`."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Any:
        count = (self.count.value() or 0) + 1
        self.count.update(count)
        yield f"{value.account}:{value.n}:{count}"


def source_of(settings: dict[str, Any]) -> KafkaSource:
    builder = KafkaSource.builder().set_bootstrap_servers(settings["servers"]).set_topics(settings["source"])
    builder.set_group_id(f"group-{settings['source']}")
    return builder.set_value_only_deserializer(JsonRowDeserializationSchema(ENTRY)).build()


def sink_of(settings: dict[str, Any]) -> KafkaSink:
    schema = KafkaRecordSerializationSchema.builder().set_topic(settings["sink"])
    schema.set_key(lambda line: line.split(":")[0]).set_value_serialization_schema(SimpleStringSchema())
    builder = KafkaSink.builder().set_bootstrap_servers(settings["servers"]).set_record_serializer(schema.build())
    return builder.set_delivery_guarantee(DeliveryGuarantee.EXACTLY_ONCE).build()


def run(settings: dict[str, Any]) -> int:
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(2)
    env.enable_checkpointing(settings.get("interval", 200))
    env.get_checkpoint_config().set_checkpoint_storage(f"file://{settings['directory']}/checkpoints")
    env.set_restart_strategy(RestartStrategies.fixed_delay_restart(50, 100))
    entries = env.from_source(source_of(settings), WatermarkStrategy.no_watermarks(), "entries").uid("entries")
    counted = entries.key_by("account").process(Counting(), output_type=Types.STRING()).uid("counting")
    counted.sink_to(sink_of(settings)).uid("sink")
    with overriding(Overrides(master=settings.get("master"))):
        try:
            env.execute("ledger")
        except KeyboardInterrupt:
            return 130
    return 0


if __name__ == "__main__":
    sys.exit(run(json.loads(sys.argv[1])))
