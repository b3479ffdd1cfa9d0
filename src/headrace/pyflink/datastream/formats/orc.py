"""ORC files: not here."""

from headrace.pyflink.absence import absent_module

raise absent_module(
    __name__, "Headrace reads and writes text, JSON lines, CSV and Parquet. Convert the files to Parquet."
)
