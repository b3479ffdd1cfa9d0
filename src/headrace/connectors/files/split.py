"""A file as a split: where it is, how it looked when it was found, and how far it was read."""

from __future__ import annotations

import os
from typing import NamedTuple

import msgspec


class Fingerprint(NamedTuple):
    """What tells a file from another one of the same name: nothing is read to find out."""

    size: int
    mtime_ns: int

    @classmethod
    def of(cls, status: os.stat_result) -> Fingerprint:
        return cls(status.st_size, status.st_mtime_ns)

    def __str__(self) -> str:
        return f"{self.size} bytes, changed at {self.mtime_ns} ns"


class FileSplit(msgspec.Struct):
    """One file. Only the `size` bytes it had when it was found are read, so that a replay reads the same."""

    path: str
    size: int
    mtime_ns: int
    position: int = 0
    """Rows (Parquet) or lines (everything else) consumed."""
    offset: int = 0
    """Bytes consumed; stays 0 for formats that are not read by lines."""

    @property
    def split_id(self) -> str:
        return self.path

    @property
    def fingerprint(self) -> Fingerprint:
        return Fingerprint(self.size, self.mtime_ns)
