"""The only package that imports pyspark: session, pipelined plan, submission, cancellation."""
