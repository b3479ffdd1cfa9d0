"""PostgreSQL: exactly-once by a ledger row, idempotent by upsert, or in two phases by PREPARE TRANSACTION.

Needs psycopg: `pip install "headrace[postgres]"`. Evolving.
"""

from headrace.connectors.postgres.sink import PostgresSink
from headrace.connectors.postgres.two_phase import PostgresTwoPhaseSink
from headrace.connectors.postgres.upsert import PostgresUpsertSink

__all__ = ["PostgresSink", "PostgresTwoPhaseSink", "PostgresUpsertSink"]
