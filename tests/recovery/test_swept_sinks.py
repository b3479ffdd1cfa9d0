"""Whole jobs on a real Spark into Kafka and into files, with workers killed between the barrier and the commit.

PostgreSQL has the same in `test_postgres_sink.py`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sink_lives import Output
from swept_sinks import AROUND_THE_COMMIT, IN_SHORT, run_through
from tests.services.kafka import kafka_broker, new_topic

from headrace import FileSink
from headrace.connectors.kafka import JsonRowSerializationSchema, KafkaRecordSerializationSchema
from headrace.testing.kafka_broker import KafkaBroker

__all__ = ["kafka_broker", "new_topic"]

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]

PLANS = [pytest.param(IN_SHORT, id="short"), pytest.param(AROUND_THE_COMMIT, marks=pytest.mark.slow, id="every")]


@pytest.mark.parametrize("plan", PLANS)
def test_a_topic_is_exact_through_kills_before_and_after_every_step_of_the_commit(
    bench: Any, faults: Any, start: Any, kafka_broker: KafkaBroker, new_topic: Callable[..., str], plan: tuple[str, ...]
) -> None:
    # Event time is the record's timestamp, and the ledger's begins in 1970: brokers would delete what is so old.
    output = Output(kafka_broker, new_topic("lines", partitions=2, retention_ms="-1"))
    schema = KafkaRecordSerializationSchema.builder().set_topic(output.topic).set_key(lambda line: str(line[1]))
    schema.set_value_serialization_schema(JsonRowSerializationSchema())
    sink = output.builder().set_record_serializer(schema.build()).build()
    faults.plan(*plan)

    ledger = run_through(faults, bench, start, sink)

    output.wait_until_decided()
    assert ledger.problems(json.loads(line) for line in output.seen()) == []


@pytest.mark.parametrize("plan", PLANS)
def test_files_are_exact_through_kills_before_and_after_every_step_of_the_commit(
    bench: Any, faults: Any, start: Any, plan: tuple[str, ...]
) -> None:
    folder = Path(bench.directory, "out")
    faults.plan(*plan)

    ledger = run_through(faults, bench, start, FileSink.json_lines(folder))

    shown = [path for path in folder.rglob("*") if path.is_file() and ".staging" not in path.parts]
    assert ledger.problems(json.loads(line) for path in shown for line in path.read_text().splitlines()) == []
    # What stays says which job writes here, and what was committed.
    stays = (".committed", ".owner")
    left = [path for path in (folder / ".staging").rglob("*") if path.is_file() and path.suffix not in stays]
    assert left == []
