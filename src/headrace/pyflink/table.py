"""The Table API: not here."""

from headrace.pyflink.absence import absent_module

raise absent_module(__name__, "Headrace has the DataStream API. Spark SQL is the table API beside it.")
