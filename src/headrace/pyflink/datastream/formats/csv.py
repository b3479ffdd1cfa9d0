"""CSV files, under the name of `pyflink.datastream.formats.csv`: read and written by FileSource and FileSink."""

from __future__ import annotations

from headrace.pyflink.absence import absent

__all__: list[str] = []

_READ = "use FileSource.csv(path, type_info=…) of headrace.connectors.files."
_WRITE = "use FileSink.csv(path, type_info) of headrace.connectors.files."

__getattr__ = absent(
    __name__,
    {
        "CsvBulkWriters": _WRITE,
        "CsvReaderFormat": _READ,
        "CsvRowDeserializationSchema": "split the text of SimpleStringSchema() in a map().",
        "CsvRowSerializationSchema": "join the fields in a map() and write them with SimpleStringSchema().",
        "CsvSchema": _READ,
        "CsvSchemaBuilder": _READ,
    },
)
