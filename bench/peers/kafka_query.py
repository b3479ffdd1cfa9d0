"""The Spark side of `bench/kafka_spark.py`: the query alone, in Spark's own environment, against a broker that runs.

    python bench/peers/kafka_query.py --servers HOST:PORT --jars A,B --scratch DIR --api row|pandas
        throughput:  --through warm-up,timed --rows-per-batch N     payments-<name> to balances-<name>, in turn
        latency:     --through latency --endless                    until its standard input is closed

Prints a JSON line for each topic that it has read to the end: rows, micro-batches, when the first of them began.

`local[2]`, RocksDB with changelog checkpoints, two state partitions. JSON is read and values are made by Spark's own
functions, in the JVM; only the state is Python's.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle
from transform_with_state import make_session

SCHEMA = "account string, amount long, created double"
STATE = "number long, total long"
OUTPUT = "account string, line string"


class Balances(StatefulProcessor):
    """The same as our job: reads the state once for each key of a micro-batch and writes it once."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._balance = handle.getValueState("balance", STATE)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        number, total = self._balance.get() or (0, 0)
        for row in rows:
            number, total = number + 1, total + row.amount
            yield Row(account=key[0], line=f"{key[0]}:{number}:{total}:{row.created:.6f}")
        self._balance.update((number, total))


class BalancesByFrame(StatefulProcessor):
    """The same by data frames."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._balance = handle.getValueState("balance", STATE)

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:
        number, total = self._balance.get() or (0, 0)
        for frame in rows:
            lines = []
            for amount, created in zip(frame["amount"].tolist(), frame["created"].tolist(), strict=True):
                number, total = number + 1, total + amount
                lines.append(f"{key[0]}:{number}:{total}:{created:.6f}")
            yield pd.DataFrame({"account": key[0], "line": lines})
        self._balance.update((number, total))


def balances(session: SparkSession, args: argparse.Namespace, name: str) -> DataFrame:
    """The balances of one topic of payments, as Kafka's sink wants them."""
    reader = session.readStream.format("kafka").option("kafka.bootstrap.servers", args.servers)
    reader = reader.option("subscribe", f"payments-{name}").option("startingOffsets", "earliest")
    if args.rows_per_batch:
        reader = reader.option("maxOffsetsPerTrigger", args.rows_per_batch)
    payments = reader.load().select(F.from_json(F.col("value").cast("string"), SCHEMA).alias("p")).select("p.*")
    grouped = payments.groupBy("account")
    if args.api == "pandas":
        made = grouped.transformWithStateInPandas(BalancesByFrame(), OUTPUT, "append", "none")
    else:
        made = grouped.transformWithState(Balances(), OUTPUT, "append", "none")
    return made.select(F.col("account").alias("key"), F.col("line").alias("value"))


def main() -> None:
    """Run the query through each topic in turn."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--servers", required=True)
    parser.add_argument("--jars", required=True)
    parser.add_argument("--scratch", required=True)
    parser.add_argument("--through", required=True)
    parser.add_argument("--api", choices=["row", "pandas"], default="row")
    parser.add_argument("--rows-per-batch", type=int, default=0)
    parser.add_argument("--endless", action="store_true")
    args = parser.parse_args()

    session = make_session(
        args.scratch,
        {
            "spark.jars": args.jars,
            "spark.sql.streaming.pollingDelay": "0",
            "spark.sql.streaming.noDataMicroBatches.enabled": "false",
        },
    )
    for name in args.through.split(","):
        writer = balances(session, args, name).writeStream.format("kafka").option("topic", f"balances-{name}")
        writer = writer.option("kafka.bootstrap.servers", args.servers)
        writer = writer.option("checkpointLocation", f"{args.scratch}/{name}")
        query = (writer if args.endless else writer.trigger(availableNow=True)).start()
        if args.endless:
            sys.stdin.read()
            query.stop()
            continue
        query.awaitTermination()
        batches = [json.loads(progress.json) for progress in query.recentProgress]
        batches = [batch for batch in batches if batch["numInputRows"]]
        line = {
            "name": name,
            "records": sum(batch["numInputRows"] for batch in batches),
            "micro_batches": len(batches),
            "began": datetime.fromisoformat(batches[0]["timestamp"]).timestamp(),
        }
        print(f"\n{json.dumps(line)}", flush=True)
    session.stop()


if __name__ == "__main__":
    main()
