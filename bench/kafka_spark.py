"""Peer of the Kafka job: PySpark `transformWithState` between Spark's own Kafka source and its at-least-once sink.

    python -m bench.kafka_spark --scratch DIR --workload balances --rows N --keys K --rows-per-batch N --api row
    python -m bench.kafka_spark --scratch DIR --workload latency --rate N --keys K --seconds S --warm-up-seconds S

The same payments, the same balances, checked in the same way. This program has the broker and the topics; the query
runs in Spark's environment (`peers/kafka_query.py`), its checkpoints in memory where the machine has a place for them.
The clock of `balances` runs from the start of the first micro-batch with rows to the last record in the output topic.
`latency` runs with the default trigger: the next batch begins at once.

The connector comes from Maven once. It is that of Spark 4.2.0: none has been released for 4.3.0.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from bench import environments
from bench import kafka_topics as topics
from headrace.testing.kafka_broker import KafkaBroker
from headrace.testing.spark_kafka import CONNECTOR_VERSION, connector

STARTED = time.time()
WARM_UP_ROWS = 20_000
QUERY = Path(__file__).parent / "peers" / "kafka_query.py"


def query(args: argparse.Namespace, broker: KafkaBroker, scratch: str, *more: str) -> subprocess.Popen[str]:
    """Start the query. It ends with its input, if it is endless."""
    python = environments.ensure("spark") / "bin" / "python"
    jars = ",".join(map(str, connector(topics.SERVICES)))
    command = [str(python), str(QUERY), "--servers", broker.bootstrap_servers, "--jars", jars]
    command += ["--scratch", scratch, "--api", args.api, *more]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def throughput(args: argparse.Namespace, broker: KafkaBroker, scratch: str) -> dict[str, Any]:
    """Payments to balances, after a warm-up in the same session."""
    sizes = {"warm-up": min(WARM_UP_ROWS, args.rows), "timed": args.rows}
    made = {name: topics.Payments(rows, args.keys) for name, rows in sizes.items()}
    for name, payments in made.items():
        payments.fill(broker, topics.create_topics(broker, name)[0])
    running = query(args, broker, scratch, "--through", ",".join(sizes), "--rows-per-batch", str(args.rows_per_batch))
    output, _ = running.communicate()
    lines = [json.loads(text) for text in output.splitlines() if text.startswith('{"name"')]
    if running.returncode or len(lines) != len(sizes):
        raise topics.WrongOutputError(f"The query ended with {running.returncode} after {len(lines)} topics.")
    for line in lines:
        ended = made[line["name"]].check(broker, f"{topics.SINK}-{line['name']}", duplicates=True)
    timed = lines[-1]
    return {
        "records": timed["records"],
        "seconds_between_first_and_last_record": ended - timed["began"],
        "micro_batches": timed["micro_batches"],
        "started_at": lines[0]["began"],
    }


def latency(args: argparse.Namespace, broker: KafkaBroker, scratch: str) -> dict[str, Any]:
    """From creation to a reader of the output topic."""
    source, sink = topics.create_topics(broker, "latency")
    running = query(args, broker, scratch, "--through", "latency", "--endless")
    began = time.time()

    def alive() -> None:
        if running.poll() is not None:
            raise topics.WrongOutputError(f"The query ended too early, with {running.returncode}.")

    probe = topics.LatencyProbe(broker, source, sink, args.rate, args.keys)
    probe.start()
    try:
        line = probe.measure(args.warm_up_seconds, args.seconds, alive)
    finally:
        running.communicate()
    return line | {"started_at": began}


def main() -> None:
    """Run one workload, print the one line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scratch", type=Path, required=True)
    parser.add_argument("--workload", choices=["balances", "latency"], required=True)
    parser.add_argument("--api", choices=["row", "pandas"], default="row")
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--rows-per-batch", type=int, default=200_000)
    parser.add_argument("--keys", type=int, default=10_000)
    parser.add_argument("--rate", type=int, default=1_000)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--warm-up-seconds", type=float, default=20.0)
    args = parser.parse_args()

    in_memory = Path("/dev/shm")
    place = in_memory if in_memory.is_dir() else args.scratch
    with tempfile.TemporaryDirectory(prefix="bench-spark-", dir=place) as scratch, topics.broker() as broker:
        line = (throughput if args.workload == "balances" else latency)(args, broker, scratch)
    started_at = line.pop("started_at")
    print(
        json.dumps(
            {
                "peer": "kafka-transform-with-state",
                "variant": f"{args.workload}, {args.api}",
                **line,
                "startup_seconds": started_at - STARTED,
                "versions": {"spark-sql-kafka": CONNECTOR_VERSION},
            }
        )
    )


if __name__ == "__main__":
    main()
