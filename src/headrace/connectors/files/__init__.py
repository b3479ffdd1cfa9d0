"""Files as input and output: text, JSON lines, CSV and Parquet."""

from headrace.connectors.files.buckets import BucketAssigner
from headrace.connectors.files.encoders import Encoder, OutputFormat, PartEncoder
from headrace.connectors.files.formats import FileCursor, FileFormat
from headrace.connectors.files.parquet import ParquetFormat
from headrace.connectors.files.rolling import RollingPolicy
from headrace.connectors.files.sink import FileSink, OutputFileConfig
from headrace.connectors.files.source import BulkFormat, FileSource, StreamFormat

__all__ = [
    "BucketAssigner",
    "BulkFormat",
    "Encoder",
    "FileCursor",
    "FileFormat",
    "FileSink",
    "FileSource",
    "OutputFileConfig",
    "OutputFormat",
    "ParquetFormat",
    "PartEncoder",
    "RollingPolicy",
    "StreamFormat",
]
