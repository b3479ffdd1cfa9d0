"""Cassandra: not here."""

from headrace.pyflink.absence import absent_module

raise absent_module(__name__, "write it as a headrace.IdempotentSink, with the row's key.")
