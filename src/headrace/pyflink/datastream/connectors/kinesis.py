"""Kinesis: not here."""

from headrace.pyflink.absence import absent_module

raise absent_module(__name__, "Headrace has Kafka, files and sockets; write another as a headrace.Source.")
