"""Elasticsearch: not here."""

from headrace.pyflink.absence import absent_module

raise absent_module(__name__, "write it as a headrace.IdempotentSink, with the document id as the key.")
