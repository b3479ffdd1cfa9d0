"""Which folder a record's file belongs to."""

from __future__ import annotations

import datetime
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any
from urllib.parse import quote
from zoneinfo import ZoneInfo

from headrace.connectors.files.listing import is_hidden
from headrace.errors import RecordError

_JAVA_LETTERS = (("yyyy", "%Y"), ("MM", "%m"), ("dd", "%d"), ("HH", "%H"), ("mm", "%M"), ("ss", "%S"))


class BucketAssigner(ABC):
    """Extend it to sort records into folders of your own."""

    @abstractmethod
    def bucket_of(self, value: Any, timestamp: int | None) -> str:
        """A relative folder such as `2024-05-01/eu`, or "" for the sink's own. Called once for each record."""

    @staticmethod
    def base_path_bucket_assigner() -> BucketAssigner:
        """No buckets: all files go into the sink's own folder. The default."""
        return BasePath()

    @staticmethod
    def date_time_bucket_assigner(
        format_str: str = "%Y-%m-%d--%H", timezone_id: str | None = None, *, event_time: bool = False
    ) -> BucketAssigner:
        """By the time of writing, as Flink does, or by the record's own time with `event_time`.

        The format is strftime's; Flink's `yyyy-MM-dd--HH` is understood too. Without a time zone: UTC.
        """
        return DateTimeBuckets(format_str, timezone_id or "UTC", event_time=event_time)

    @staticmethod
    def field_bucket_assigner(*names: str) -> BucketAssigner:
        """By the values of these fields: `country=de/city=bonn`."""
        return FieldBuckets(names)


class BasePath(BucketAssigner):
    def bucket_of(self, value: Any, timestamp: int | None) -> str:
        return ""


class DateTimeBuckets(BucketAssigner):
    def __init__(
        self, format_str: str, timezone_id: str, *, event_time: bool, clock: Callable[[], float] = time.time
    ) -> None:
        if "%" not in format_str:
            for java, python in _JAVA_LETTERS:
                format_str = format_str.replace(java, python)
        self._format = format_str
        self._timezone = ZoneInfo(timezone_id)
        self._event_time = event_time
        self._clock = clock

    def bucket_of(self, value: Any, timestamp: int | None) -> str:
        if not self._event_time:
            seconds = self._clock()
        elif timestamp is None:
            raise RecordError(
                f"Record {value!r} has no timestamp to find its bucket by. "
                "Assign timestamps in the watermark strategy, or use event_time=False."
            )
        else:
            seconds = timestamp / 1_000
        return datetime.datetime.fromtimestamp(seconds, self._timezone).strftime(self._format)


class FieldBuckets(BucketAssigner):
    def __init__(self, names: tuple[str, ...]) -> None:
        self._names = names

    def bucket_of(self, value: Any, timestamp: int | None) -> str:
        return "/".join(f"{name}={quote(str(value[name]), safe=' ')}" for name in self._names)


def checked_bucket(bucket: str) -> str:
    """The bucket, if files in it stay under the sink's path and are seen by readers."""
    if bucket and (bucket.startswith("/") or any(not part or is_hidden(part) for part in bucket.split("/"))):
        raise RecordError(
            f"Bucket {bucket!r} leaves the sink's folder or is hidden from readers. "
            'Let bucket_of give relative names whose parts begin with neither "." nor "_".'
        )
    return bucket
