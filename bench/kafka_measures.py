"""The measures of Kafka in and out; `measures.ALL` takes them in. Each program starts a broker of its own."""

from __future__ import annotations

from bench.measures import Bound, Figure, Measure, Quantity, Run

OURS = "headrace-kafka"
PEER = "kafka-transform-with-state"
LOOP = "kafka-bare-loop"

KEYS = ("--keys", "10000")
LOAD = ("--rate", "1000", "--keys", "1000", "--seconds", "60", "--warm-up-seconds", "20")
APIS = (("--api", "row"), ("--api", "pandas"))
STARTUP = Figure(Quantity.STARTUP_SECONDS, ratio=False)


def ours(guarantee: str, rows: int) -> Run:
    """Payments to balances, two partitions, a checkpoint every second."""
    return Run(OURS, arguments=("--workload", "balances", *KEYS, "--rows", str(rows), "--guarantee", guarantee))


KAFKA: tuple[Measure, ...] = (
    Measure(
        "kafka-vs-transform-with-state",
        "Kafka → keyed state → Kafka exactly-once, 10,000 keys, against transformWithState with Spark's at-least-once "
        "Kafka sink, micro-batches of 200,000 records",
        ours("exactly-once", 4_000_000),
        Run(PEER, arguments=("--workload", "balances", *KEYS, "--rows", "1000000"), variants=APIS),
        (Figure(Quantity.RECORDS_PER_SECOND, bound=Bound.AT_LEAST, target=5), STARTUP),
        note="The size of the micro-batch is our choice, as in throughput-vs-transform-with-state.",
    ),
    Measure(
        "kafka-latency-vs-transform-with-state",
        "the same at 1,000 records/s: from a payment's creation to its balance at a read_uncommitted reader",
        Run(OURS, arguments=("--workload", "latency", *LOAD)),
        Run(PEER, arguments=("--workload", "latency", *LOAD), variants=(("--api", "row"),)),
        (
            Figure(Quantity.LATENCY_P50_MS, bound=Bound.AT_MOST, target=0.1),
            Figure(Quantity.LATENCY_P99_MS, bound=Bound.AT_MOST, target=0.1),
            Figure(Quantity.LATENCY_P50_MS, ratio=False),
            Figure(Quantity.LATENCY_P99_MS, ratio=False),
        ),
    ),
    Measure(
        "kafka-exactly-once-vs-at-least-once",
        "Kafka → keyed state → Kafka, our exactly-once sink against our at-least-once sink",
        ours("exactly-once", 4_000_000),
        ours("at-least-once", 4_000_000),
        (Figure(Quantity.RECORDS_PER_SECOND, bound=Bound.AT_LEAST, target=0.8), STARTUP),
    ),
    Measure(
        "kafka-source-vs-bare-loop",
        "our Kafka source alone, one partition, 100-byte values, against a bare confluent-kafka consume loop that "
        "calls value(), offset() and error()",
        Run(OURS, arguments=("--workload", "source", "--rows", "16000000")),
        Run(LOOP, arguments=("--rows", "16000000")),
        (Figure(Quantity.RECORDS_PER_SECOND, bound=Bound.AT_LEAST, target=0.6), STARTUP),
    ),
)
