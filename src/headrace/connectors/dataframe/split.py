"""A file of the spool as a split: which file of which batch, and how far it was read."""

from __future__ import annotations

import msgspec


class SpoolSplit(msgspec.Struct):
    """Names no path: a spool that is moved together with its checkpoints is still found."""

    batch: int
    part: int
    """Its place among the files that the batch's manifest names."""
    size: int = 0
    """Bytes of the file."""
    position: int = 0
    """Rows consumed."""

    @property
    def split_id(self) -> str:
        return f"{self.batch}/{self.part}"
