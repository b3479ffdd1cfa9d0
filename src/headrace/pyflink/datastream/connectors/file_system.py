"""Files, under the names of `pyflink.datastream.connectors.file_system`."""

from __future__ import annotations

from typing import Any

from headrace.connectors import files
from headrace.connectors.files import (
    BucketAssigner,
    BulkFormat,
    FileSource,
    OutputFileConfig,
    RollingPolicy,
    StreamFormat,
)
from headrace.datastream.ignored import ignored
from headrace.pyflink.absence import absent

__all__ = [
    "BucketAssigner",
    "BulkFormat",
    "FileSink",
    "FileSource",
    "OutputFileConfig",
    "RollingPolicy",
    "StreamFormat",
]


class FileSink(files.FileSink):
    """Headrace's own, with the one setting more that PyFlink's has."""

    def enable_compact(self, strategy: Any = None, compactor: Any = None) -> FileSink:
        """In Flink, merges small files before they appear."""
        ignored(
            "FileSink.enable_compact()",
            "files appear as they were written, one for each subtask, bucket and checkpoint or more. "
            "A longer checkpoint interval makes fewer.",
        )
        return self

    def disable_compact(self) -> FileSink:
        """Files are never merged here."""
        return self


_NOT_MERGED = "files are not merged. A longer checkpoint interval makes fewer."
_BY_SOURCE = "FileSource finds and deals out files by itself."

__getattr__ = absent(
    __name__,
    {
        "FileCompactStrategy": _NOT_MERGED,
        "FileCompactor": _NOT_MERGED,
        "FileEnumeratorProvider": _BY_SOURCE,
        "FileSinkBuilder": "FileSink.for_row_format() gives a FileSink, whose build() returns it as it is.",
        "FileSourceBuilder": "FileSource.for_record_stream_format() gives a FileSource, whose build() returns it.",
        "FileSplitAssignerProvider": _BY_SOURCE,
        "StreamingFileSink": "it is gone from Flink 2 too. Use FileSink.",
    },
)
