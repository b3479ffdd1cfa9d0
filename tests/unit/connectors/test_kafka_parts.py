"""The parts of the Kafka connector that need no broker: settings, secrets, values, builders, what checkpoints keep."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from typing import Any

import msgspec
import pytest
from confluent_kafka import KafkaError
from hypothesis import given
from hypothesis import strategies as st

from headrace import Row, StreamExecutionEnvironment, Types, WatermarkStrategy
from headrace.connectors.kafka import (
    AvroRowDeserializationSchema,
    AvroRowSerializationSchema,
    DeliveryGuarantee,
    JsonRowDeserializationSchema,
    JsonRowSerializationSchema,
    KafkaDataLossError,
    KafkaOffsetsInitializer,
    KafkaRecordSerializationSchema,
    KafkaSink,
    KafkaSource,
    KafkaTopicSelector,
    RawBytesSchema,
    SimpleStringSchema,
)
from headrace.connectors.kafka.client import kafka, serving
from headrace.connectors.kafka.markers import Markers
from headrace.connectors.kafka.prepared import CommitPoint, RecordLog, TransactionHeader, header_of, records_of
from headrace.connectors.kafka.refusals import is_refusal, refusal
from headrace.connectors.kafka.settings import KafkaSettings
from headrace.connectors.kafka.transactions import TransactionalProducer
from headrace.connectors.sink import SinkGuarantee
from headrace.errors import ConfigurationError, DamagedCheckpointError, RecordError
from headrace.plan.explain import explain
from headrace.plan.guarantees import Guarantee, guarantees

PASSWORD = "s3cret-passw0rd"


def sink_builder(topic: str = "out") -> Any:
    schema = KafkaRecordSerializationSchema.builder().set_topic(topic)
    schema.set_value_serialization_schema(SimpleStringSchema())
    return KafkaSink.builder().set_bootstrap_servers("broker:9092").set_record_serializer(schema.build())


def source_builder() -> Any:
    builder = KafkaSource.builder().set_bootstrap_servers("broker:9092").set_topics("in")
    return builder.set_value_only_deserializer(SimpleStringSchema())


def test_secrets_are_shown_nowhere() -> None:
    properties = {
        "sasl.username": "ada",
        "sasl.password": PASSWORD,
        "ssl.key.password": PASSWORD,
        "sasl.oauthbearer.client.secret": PASSWORD,
    }
    source = source_builder().set_properties(properties).build()
    sink = sink_builder().set_properties(properties).set_delivery_guarantee(DeliveryGuarantee.EXACTLY_ONCE).build()
    env = StreamExecutionEnvironment.get_execution_environment()
    env.from_source(source, WatermarkStrategy.no_watermarks(), "in").sink_to(sink)
    shown = [repr(source.settings), repr(sink.settings), source.describe(), sink.describe()]
    shown += [explain(*env.build("secret")), str(source.settings.refused("KafkaSource", ValueError(f"bad {PASSWORD}")))]
    for text in shown:
        assert PASSWORD not in text
    assert "ada" in repr(source.settings)
    assert "'sasl.password': '***'" in repr(source.settings)
    # They do travel to where they are needed.
    assert pickle.loads(pickle.dumps(source.settings)).get("sasl.password") == PASSWORD


def test_a_program_without_kafka_and_its_tasks_never_load_the_client() -> None:
    program = (
        "import json, sys, headrace.runtime.task.main, headrace.runtime.job.runner, headrace.connectors.kafka\n"
        "print(json.dumps([m for m in ('confluent_kafka', 'fastavro') if m in sys.modules]))"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert json.loads(run.stdout) == []


def test_without_the_client_the_error_says_how_to_get_it() -> None:
    program = (
        "import sys; sys.modules['confluent_kafka'] = None\n"
        "from headrace.connectors.kafka.client import kafka\n"
        "try: kafka('KafkaSink')\n"
        "except ImportError as error: print(error)"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == 'KafkaSink needs confluent-kafka: pip install "headrace[kafka]"'


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: KafkaSource.builder().set_topics("a").build(), "does not know its brokers"),
        (lambda: KafkaSource.builder().set_bootstrap_servers("b").build(), "reads nothing yet"),
        (lambda: KafkaSource.builder().set_bootstrap_servers("b").set_topics("a").build(), "how to read values"),
        (lambda: KafkaSource.builder().set_topics("a").set_topic_pattern("b"), "reads a already"),
        (lambda: KafkaSource.builder().set_topic_pattern("("), "no regular expression"),
        (lambda: source_builder().set_on_error("ignore"), '"fail" or "skip"'),
        (lambda: KafkaOffsetsInitializer.timestamp(-1), "before 1970"),
        (lambda: KafkaOffsetsInitializer.offsets({("a", 0): -2}), "negative offset"),
        (lambda: KafkaSink.builder().set_bootstrap_servers("b").build(), "Call set_record_serializer"),
        (lambda: sink_builder().set_transactional_id_prefix("a b"), "150 letters"),
        (lambda: sink_builder().set_property("transactional.id", "x"), "set_transactional_id_prefix"),
        (lambda: sink_builder().set_transactions_per_subtask(0), "1 or more"),
        (lambda: KafkaRecordSerializationSchema.builder().build(), "has no topic"),
        (lambda: KafkaRecordSerializationSchema.builder().set_topic("a").build(), "how to write values"),
        (lambda: SimpleStringSchema("no such charset"), "does not know the charset"),
        (lambda: AvroRowDeserializationSchema("{"), "no Avro schema"),
    ],
)
def test_what_cannot_work_is_refused_while_the_program_is_written(build: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        build()


@pytest.mark.parametrize(
    ("delivery", "sink_guarantee", "job_guarantee"),
    [
        (DeliveryGuarantee.EXACTLY_ONCE, SinkGuarantee.TWO_PHASE, Guarantee.EXACTLY_ONCE),
        (DeliveryGuarantee.AT_LEAST_ONCE, SinkGuarantee.AT_LEAST_ONCE, Guarantee.AT_LEAST_ONCE),
        (DeliveryGuarantee.NONE, SinkGuarantee.NONE, Guarantee.AT_MOST_ONCE),
    ],
)
def test_a_job_from_kafka_to_kafka_promises_what_its_sink_does(
    delivery: DeliveryGuarantee, sink_guarantee: SinkGuarantee, job_guarantee: Guarantee
) -> None:
    sink = sink_builder().set_delivery_guarantee(delivery).build()
    assert sink.guarantee is sink_guarantee
    env = StreamExecutionEnvironment.get_execution_environment()
    env.enable_checkpointing(1_000)
    env.from_source(source_builder().build(), WatermarkStrategy.no_watermarks(), "in").sink_to(sink)
    plan, settings = env.build("promise")
    assert guarantees(plan, settings.checkpointing).guarantee is job_guarantee
    if delivery is DeliveryGuarantee.EXACTLY_ONCE:
        assert "readers need isolation.level=read_committed" in sink.describe()


ROW = Types.ROW_NAMED(["account", "amount"], [Types.STRING(), Types.LONG()])


def test_json_is_read_all_at_once_and_spread_over_lines_too() -> None:
    schema = JsonRowDeserializationSchema.builder().type_info(ROW).build()
    plain = [b'{"account": "a", "amount": 1}', b'{"amount": 2, "more": true}']
    assert [tuple(row) for row in schema.deserialize_all(plain)] == [("a", 1), (None, 2)]
    spread = [b'{"account":\n"a",\n"amount": 1}', *plain]
    assert [tuple(row) for row in schema.deserialize_all(spread)] == [("a", 1), ("a", 1), (None, 2)]
    with pytest.raises(ValueError):
        schema.deserialize_all([b"1\n2", b"3"])
    assert JsonRowDeserializationSchema().deserialize(b"[1, null]") == [1, None]


@pytest.mark.parametrize(
    "values",
    [
        [b'{"amount": 1}\n{"amount": 2}', b""],
        [b'{"amount": 1} {"amount": 2}', b" "],
        [b'{"amount":', b"1}", b'{"amount": 2}{"amount": 3}'],
    ],
)
@pytest.mark.parametrize("type_info", [ROW, None])
def test_bad_json_does_not_pass_because_the_numbers_are_right(values: list[bytes], type_info: Any) -> None:
    schema = JsonRowDeserializationSchema(type_info)
    with pytest.raises(msgspec.DecodeError):
        schema.deserialize_all(values)
    for value in values:
        with pytest.raises(msgspec.DecodeError):
            schema.deserialize(value)


def test_json_is_written_without_line_ends() -> None:
    schema = JsonRowSerializationSchema.builder().with_type_info(ROW).build()
    assert schema.serialize(Row(account="a", amount=1)) == b'{"account":"a","amount":1}'
    with pytest.raises(RecordError, match="cannot be written as JSON"):
        schema.serialize(object())


def test_raw_bytes_are_bytes() -> None:
    assert RawBytesSchema().serialize(b"\x00") == b"\x00"
    with pytest.raises(RecordError, match="writes bytes, and got a str"):
        RawBytesSchema().serialize("text")


AVRO = json.dumps(
    {
        "type": "record",
        "name": "Payment",
        "fields": [
            {"name": "account", "type": "string"},
            {"name": "amount", "type": "long"},
            {"name": "note", "type": ["null", "string"], "default": None},
            {"name": "tags", "type": {"type": "array", "items": "string"}},
        ],
    }
)


def test_avro_records_are_rows_and_go_both_ways() -> None:
    reading, writing = AvroRowDeserializationSchema(AVRO), AvroRowSerializationSchema(AVRO)
    assert str(reading.produced_type) == "ROW<account STRING, amount LONG, note STRING, tags ANY>"
    data = writing.serialize(Row(account="a", amount=5, note=None, tags=["x"]))
    travelled = pickle.loads(pickle.dumps(reading))
    assert tuple(travelled.deserialize(data)) == ("a", 5, None, ["x"])
    with pytest.raises(RecordError, match="does not fit its Avro schema"):
        writing.serialize({"account": 5})


def test_a_topic_selector_is_a_function_or_an_object_as_in_pyflink() -> None:
    class ByAmount(KafkaTopicSelector):
        def apply(self, data: Any) -> str:
            return "large" if data > 100 else "small"

    for selector in (ByAmount(), ByAmount().apply):
        schema = KafkaRecordSerializationSchema.builder().set_topic_selector(selector)
        serialize = schema.set_value_serialization_schema(JsonRowSerializationSchema()).build().serializer(lambda _: 1)
        assert [serialize(amount, None)[0] for amount in (5, 500)] == ["small", "large"]


def test_topic_key_headers_and_partition_are_chosen_by_the_value() -> None:
    schema = KafkaRecordSerializationSchema.builder().set_topic_selector(lambda v: f"t{v['n'] % 2}")
    schema.set_key(lambda v: v["key"]).set_value_serialization_schema(JsonRowSerializationSchema())
    schema.set_headers(lambda v: [("n", b"%d" % v["n"])]).set_partitioner(lambda v, key, count: v["n"] % count)
    serialize = schema.build().serializer(lambda topic: 3)
    assert serialize({"n": 5, "key": "k"}, 77) == ("t1", b'{"n":5,"key":"k"}', b"k", 2, 77, [("n", b"5")])
    schema.set_partitioner(lambda v, key, count: count)
    with pytest.raises(RecordError, match="partition 3 of topic t1, which has 3"):
        schema.build().serializer(lambda topic: 3)({"n": 5, "key": "k"}, None)
    with pytest.raises(RecordError, match="names no topic"):
        schema.set_topic_selector(lambda v: None).build().serializer(lambda topic: 3)({"n": 5, "key": "k"}, None)


HEADER = TransactionHeader("prefix", "job", "uid", 1, 4, 3, 7, 12, "markers", 0)
RECORDS = st.tuples(
    st.sampled_from(["a", "b"]),
    st.none() | st.binary(max_size=20),
    st.none() | st.binary(max_size=5),
    st.none() | st.integers(0, 9),
    st.none() | st.integers(0, 2**50),
    st.none() | st.lists(st.tuples(st.text(max_size=3), st.none() | st.binary(max_size=3)), max_size=2),
)


@given(st.lists(RECORDS, max_size=40), st.booleans())
def test_what_a_checkpoint_keeps_of_a_transaction_gives_every_record_back(records: list[Any], often: bool) -> None:
    log = RecordLog()
    for record in records * (20 if often else 1):
        log.append(record)
    assert list(log.decoded()) == records * (20 if often else 1)
    payload = log.seal(HEADER)
    assert header_of(payload) == HEADER
    assert header_of(payload).point == CommitPoint(7, 12)
    assert list(records_of(payload)) == records * (20 if often else 1), "as they were: the client takes nothing else"


def test_a_damaged_log_is_an_error_not_a_short_one() -> None:
    log = RecordLog()
    log.append(("topic", b"value", None, None, None, None))
    payload = log.seal(HEADER)
    with pytest.raises(DamagedCheckpointError):
        list(records_of(payload[:-3]))


def test_a_data_loss_keeps_its_offsets_on_the_way_between_processes() -> None:
    loss = pickle.loads(pickle.dumps(KafkaDataLossError("gone", topic="t", partition=1, wanted=5, first=9, end=20)))
    assert (str(loss), loss.topic, loss.partition, loss.wanted, loss.first, loss.end) == ("gone", "t", 1, 5, 9, 20)


SENT: list[Any] = [
    ("small", b"v", b"a", None, 5, None),
    ("small", b"v" * 2_000, b"b", None, 99, None),
    ("small", b"v" * 20, None, None, None, None),
    ("other", b"v" * 9_000, b"c", None, 6, None),
]


@pytest.mark.parametrize(
    ("kind", "said", "named"),
    [
        ("MSG_SIZE_TOO_LARGE", "small [0]: too large", "topic small with key b'b' and a value of 2,000 bytes"),
        ("MSG_SIZE_TOO_LARGE", "too large", "topic other with key b'c' and a value of 9,000 bytes"),
        ("INVALID_RECORD", "small [0]: no", "topic small with no key and a value of 20 bytes"),
        ("INVALID_TIMESTAMP", "no", "topic small with key b'b'"),
        ("TOPIC_AUTHORIZATION_FAILED", "no", "records for one of the topics other, small: no. Allow the sink to write"),
        ("UNKNOWN_TOPIC_OR_PART", "other [3]: no", "records for topic other: other [3]: no. Create it"),
    ],
)
def test_a_refusal_names_the_record_that_is_meant_or_the_topic(kind: str, said: str, named: str) -> None:
    failure = KafkaError(getattr(KafkaError, kind), said)
    assert is_refusal(failure)
    error = refusal(failure, SENT, KafkaSettings({"bootstrap.servers": "b:1"}))
    assert named in str(error)
    assert "is complete" not in str(error)
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.topic, again.key, again.reason) == (str(error), error.topic, error.key, error.reason)


def test_what_may_pass_is_no_refusal() -> None:
    for kind in ("_MSG_TIMED_OUT", "NOT_ENOUGH_REPLICAS", "NOT_LEADER_FOR_PARTITION", "_STATE", "_FENCED"):
        assert not is_refusal(KafkaError(getattr(KafkaError, kind)))


def test_settings_of_users_win_over_defaults_and_lose_to_what_must_be() -> None:
    settings = KafkaSettings({"linger.ms": 50, "enable.idempotence": False})
    merged = settings.merged({"linger.ms": 5, "acks": "all"}, {"enable.idempotence": True})
    assert (merged["linger.ms"], merged["acks"], merged["enable.idempotence"]) == (50, "all", True)


def test_a_user_sets_how_many_requests_are_under_way_by_either_of_its_names() -> None:
    # More than five are refused with transactions, so the refusal shows that the user's number is the one that counts.
    for name in ("max.in.flight", "max.in.flight.requests.per.connection"):
        settings = KafkaSettings({"bootstrap.servers": "localhost:1", name: 6})
        with pytest.raises(ConfigurationError, match="<= 5"):
            TransactionalProducer("some-id", settings, Markers("markers", settings))


def test_a_fatal_error_is_the_clients_own_though_it_called_back_with_the_error_pending() -> None:
    library = kafka("the test")
    fenced = library.KafkaException(library.KafkaError(library.KafkaError._FENCED))
    with pytest.raises(library.KafkaException) as raised, serving():
        raise SystemError("told returned a result with an exception set") from fenced
    assert raised.value is fenced
    with pytest.raises(SystemError, match="of another kind"), serving():
        raise SystemError("of another kind")
