"""JDBC: not here."""

from headrace.pyflink.absence import absent_module

raise absent_module(
    __name__, "JDBC is Java's. headrace.connectors.postgres.PostgresSink writes to PostgreSQL, exactly once."
)
