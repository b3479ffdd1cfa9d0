"""Spark's own Kafka connector, for tests and measurements of jobs that read Kafka through a DataFrame.

    jars = connector(Path(".services"))
    SparkSession.builder.config("spark.jars", ",".join(map(str, jars)))…

Spark does not bring it, and loads it only when the JVM starts. It is that of Spark 4.2.0: none has been released for
4.3.0, on which this one works. `docs/guides/spark-dataframes.md` shows its use.
"""

from __future__ import annotations

from pathlib import Path

from headrace.testing.maven import fetch

CONNECTOR_VERSION = "4.2.0"

ARTIFACTS = (
    f"org.apache.spark:spark-sql-kafka-0-10_2.13:{CONNECTOR_VERSION}",
    # Only looked into for security settings that nobody has made here. There is none for 4.2.0.
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
    "org.apache.kafka:kafka-clients:3.9.2",
    "org.apache.commons:commons-pool2:2.13.1",
)
"""What the connector needs besides what Spark brings; one by one, as Spark's own list leads to Spark once more."""


def connector(cache: Path) -> list[Path]:
    """Paths of the connector's jars, which Maven fetches the first time. Safe to call from several processes."""
    return sorted(fetch(cache, f"spark-sql-kafka-{CONNECTOR_VERSION}", ARTIFACTS, alone=True).glob("*.jar"))
