"""Parquet files, under the name of `pyflink.datastream.formats.parquet`: see FileSource and FileSink."""

from __future__ import annotations

from headrace.pyflink.absence import absent

__all__: list[str] = []

_READ = (
    "use FileSource.parquet(path, columns=[…]) of headrace.connectors.files, or for_bulk_file_format(ParquetFormat())."
)
_WRITE = "use FileSink.parquet(path, type_info) of headrace.connectors.files."

__getattr__ = absent(
    __name__,
    {
        "AvroParquetReaders": _READ,
        "AvroParquetWriters": _WRITE,
        "ParquetBulkWriters": _WRITE,
        "ParquetColumnarRowInputFormat": _READ,
    },
)
