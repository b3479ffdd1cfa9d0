"""The job of the Kafka demo, as a user would write it: payments in, an alert whenever an account is overdrawn.

headrace run kafka_job.py --checkpoint-dir DIR -- BOOTSTRAP_SERVERS PAYMENTS_PER_PARTITION
"""

import sys
from collections.abc import Iterator
from typing import Any

from headrace import (
    KeyedProcessFunction,
    RestartStrategies,
    Row,
    RuntimeContext,
    StreamExecutionEnvironment,
    Types,
    ValueStateDescriptor,
    WatermarkStrategy,
)
from headrace.connectors.kafka import (
    DeliveryGuarantee,
    JsonRowDeserializationSchema,
    JsonRowSerializationSchema,
    KafkaOffsetsInitializer,
    KafkaRecordSerializationSchema,
    KafkaSink,
    KafkaSource,
)

PAYMENTS, ALERTS = "payments", "alerts"
PARTITIONS = 2
PAYMENT = Types.ROW_NAMED(["account", "number", "amount"], [Types.STRING(), Types.LONG(), Types.LONG()])
ALERT = Types.ROW_NAMED(["account", "number", "balance"], [Types.STRING(), Types.LONG(), Types.LONG()])


class Balance(KeyedProcessFunction):
    """Keeps the balance of each account, and gives an alert for the payment that takes it below zero."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.balance = runtime_context.get_state(ValueStateDescriptor("balance", Types.LONG()))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterator[Row]:
        before = self.balance.value() or 0
        after = before + value.amount
        self.balance.update(after)
        if after < 0 <= before:
            yield Row(account=value.account, number=value.number, balance=after)


def main(servers: str, payments_per_partition: int) -> None:
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(2)
    env.enable_checkpointing(500)
    env.set_restart_strategy(RestartStrategies.fixed_delay_restart(20, 200))

    ends = {(PAYMENTS, partition): payments_per_partition for partition in range(PARTITIONS)}
    source = (
        KafkaSource.builder()
        .set_bootstrap_servers(servers)
        .set_topics(PAYMENTS)
        .set_group_id("kafka-demo")
        .set_bounded(KafkaOffsetsInitializer.offsets(ends))
        .set_value_only_deserializer(JsonRowDeserializationSchema(PAYMENT))
        .build()
    )
    sink = (
        KafkaSink.builder()
        .set_bootstrap_servers(servers)
        .set_delivery_guarantee(DeliveryGuarantee.EXACTLY_ONCE)
        .set_record_serializer(
            KafkaRecordSerializationSchema.builder()
            .set_topic(ALERTS)
            .set_key(lambda alert: alert.account)
            .set_value_serialization_schema(JsonRowSerializationSchema())
            .build()
        )
        .build()
    )
    payments = env.from_source(source, WatermarkStrategy.no_watermarks(), "payments")
    alerts = payments.key_by("account").process(Balance(), output_type=ALERT).name("balance")
    alerts.sink_to(sink).name("alerts")
    env.execute("kafka-demo")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
