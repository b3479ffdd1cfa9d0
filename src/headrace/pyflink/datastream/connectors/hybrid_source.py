"""Hybrid sources: not here."""

from headrace.pyflink.absence import absent_module

raise absent_module(__name__, "union() a file source and a Kafka source.")
