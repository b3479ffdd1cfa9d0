"""Peer of the Kafka source: a bare confluent-kafka `consume` loop in one process that looks at every record.

    python -m bench.kafka_bare_loop --scratch DIR --rows N

It calls `value()`, `offset()` and `error()` of each message, as anybody who uses the records has to. One partition, the
same client settings that our source has. The clock runs from the first message to the last.
"""

from __future__ import annotations

import argparse
import json
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

from bench import kafka_topics as topics
from bench.kafka_job import fill_raw

STARTED = time.time()
AT_ONCE = 10_000


def loop(consumer: Any, rows: int) -> tuple[float, float]:
    """Read so many records; when the first and the last of them came."""
    count, size, behind, first = 0, 0, 0, 0.0
    while count < rows:
        messages = consumer.consume(AT_ONCE, 1.0)
        first = first or (time.time() if messages else 0.0)
        for message in messages:
            if message.error() is None:
                size += len(message.value())
                behind = message.offset() + 1
                count += 1
    if behind != rows:
        raise topics.WrongOutputError(f"The loop ends at offset {behind} of {rows}.")
    return first, time.time()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scratch", type=Path, required=True)
    parser.add_argument("--rows", type=int, required=True)
    args = parser.parse_args()

    with topics.broker() as broker:
        broker.create_topic("raw")
        fill_raw(broker, "raw", args.rows)
        consumer = topics.consumer(broker, "raw", committed=True)
        first, last = loop(consumer, args.rows)
        consumer.close()
    line = {
        "peer": "kafka-bare-loop",
        "variant": f"consume({AT_ONCE})",
        "records": args.rows,
        "seconds_between_first_and_last_record": last - first,
        "startup_seconds": first - STARTED,
        "versions": {"confluent-kafka": version("confluent-kafka")},
    }
    print(json.dumps(line))


if __name__ == "__main__":
    main()
