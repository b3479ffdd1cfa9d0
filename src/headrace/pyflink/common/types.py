"""Rows, under the names of `pyflink.common.types`."""

from headrace.types.rows import Row, RowKind

__all__ = [
    "Row",
    "RowKind",
]
