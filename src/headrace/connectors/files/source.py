"""The file source: a fixed set of files, or a folder that is watched."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TypeAlias

from headrace.connectors.files.csv import CsvDialect, CsvFormat
from headrace.connectors.files.enumerator import FileEnumerator
from headrace.connectors.files.formats import FileFormat, OnChange, OnError, Problems, check_policy
from headrace.connectors.files.json_lines import JsonLinesFormat
from headrace.connectors.files.lines import TextLineFormat
from headrace.connectors.files.listing import local_paths
from headrace.connectors.files.parquet import ParquetFormat
from headrace.connectors.files.reader import FileReader
from headrace.connectors.files.split import FileSplit
from headrace.connectors.source import (
    Boundedness,
    EnumeratorContext,
    ReaderContext,
    Source,
    SourceReader,
    SplitEnumerator,
)
from headrace.durations import DurationLike, to_millis
from headrace.errors import ConfigurationError
from headrace.types.information import TypeInformation, TypeLike, type_of

PathLike: TypeAlias = str | os.PathLike[str]


class StreamFormat:
    """PyFlink's name for formats that are read record by record."""

    @staticmethod
    def text_line_format(charset_name: str = "UTF-8") -> FileFormat:
        return TextLineFormat(charset_name)


BulkFormat = FileFormat
"""PyFlink's name for formats that are read many records at a time, such as `ParquetFormat`."""


class FileSource(Source[FileSplit]):
    """Reads files or folders; each file is one split, read in order by one reader.

        FileSource.parquet("readings/", columns=["id", "temperature"])
        FileSource.json_lines("events/", type_info=…).monitor_continuously(Duration.of_seconds(1))

    Which files count, and what a rewritten, half-written, empty or deleted one means, is told in `files/listing.py`
    and `files/enumerator.py`. A record that cannot be read raises `RecordError` with file, line and text, or is left
    out, logged and counted with `on_error="skip"`; so is a file that is gone. A file that changed after it was found
    raises `RecordError`, or is read on from where the reader was, logged and counted, with `on_change="read"`.

    The setters change this source and return it, so that PyFlink's chains of calls work; `build` returns it as it is.
    """

    split_type = FileSplit

    def __init__(
        self,
        file_format: FileFormat,
        *paths: PathLike,
        on_error: OnError = "fail",
        on_change: OnChange = "fail",
    ) -> None:
        check_policy("on_error", on_error, ("fail", "skip"))
        check_policy("on_change", on_change, ("fail", "read"))
        self.paths = local_paths(paths, "FileSource")
        self.format = file_format
        self.on_error: OnError = on_error
        self.on_change: OnChange = on_change
        self.watch_ms: int | None = None
        self._type = file_format.produced_type(self.paths)

    @classmethod
    def parquet(
        cls,
        *paths: PathLike,
        columns: Sequence[str] | None = None,
        type_info: TypeLike | None = None,
        on_error: OnError = "fail",
        on_change: OnChange = "fail",
    ) -> FileSource:
        """Rows of Parquet files, as Arrow columns; their type is that of the first file, or `type_info`."""
        row_type = None if type_info is None else type_of(type_info)
        return cls(ParquetFormat(columns, row_type), *paths, on_error=on_error, on_change=on_change)

    @classmethod
    def json_lines(
        cls,
        *paths: PathLike,
        type_info: TypeLike | None = None,
        on_error: OnError = "fail",
        on_change: OnChange = "fail",
    ) -> FileSource:
        """One JSON value a line: rows of `type_info`, or dicts and the like."""
        row_type = None if type_info is None else type_of(type_info)
        return cls(JsonLinesFormat(row_type), *paths, on_error=on_error, on_change=on_change)

    @classmethod
    def csv(
        cls,
        *paths: PathLike,
        type_info: TypeLike,
        header: bool = True,
        delimiter: str = ",",
        quote: str = '"',
        on_error: OnError = "fail",
        on_change: OnChange = "fail",
    ) -> FileSource:
        """Rows of `type_info`; with a header, columns are found by name."""
        dialect = CsvDialect(delimiter=delimiter, quote=quote, header=header)
        return cls(CsvFormat(type_of(type_info), dialect), *paths, on_error=on_error, on_change=on_change)

    @classmethod
    def text(
        cls, *paths: PathLike, charset: str = "UTF-8", on_error: OnError = "fail", on_change: OnChange = "fail"
    ) -> FileSource:
        """Lines as strings."""
        return cls(TextLineFormat(charset), *paths, on_error=on_error, on_change=on_change)

    @classmethod
    def for_record_stream_format(cls, stream_format: FileFormat, *paths: PathLike) -> FileSource:
        return cls(stream_format, *paths)

    @classmethod
    def for_bulk_file_format(cls, bulk_format: FileFormat, *paths: PathLike) -> FileSource:
        return cls(bulk_format, *paths)

    def monitor_continuously(self, discovery_interval: DurationLike) -> FileSource:
        """Watch the folders for new files, looking every so often: the source has no end then."""
        watch_ms = to_millis(discovery_interval, "FileSource.monitor_continuously")
        if watch_ms < 1:
            raise ConfigurationError(
                f"FileSource.monitor_continuously({discovery_interval!r}) would never pause. "
                "Give a millisecond or more."
            )
        self.watch_ms = watch_ms
        return self

    def process_static_file_set(self) -> FileSource:
        """Read what is there when the job first starts, and end. The default."""
        self.watch_ms = None
        return self

    def build(self) -> FileSource:
        return self

    @property
    def boundedness(self) -> Boundedness:
        return Boundedness.BOUNDED if self.watch_ms is None else Boundedness.UNBOUNDED

    @property
    def produced_type(self) -> TypeInformation | None:
        return self._type

    def create_enumerator(self, context: EnumeratorContext, restored: bytes | None) -> SplitEnumerator[FileSplit]:
        return FileEnumerator(context, self.paths, self.watch_ms, restored)

    def create_reader(self, context: ReaderContext) -> SourceReader[FileSplit]:
        return FileReader(self.format, Problems(self.on_error, self.on_change, context.metrics))

    def describe(self) -> str:
        watched = "" if self.watch_ms is None else f", watched every {self.watch_ms} ms"
        return f"{self.format.name} files in {', '.join(self.paths)}{watched}"
