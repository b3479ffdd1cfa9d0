"""A partition as a split: which one, of which life of its topic, and how far it was read."""

from __future__ import annotations

import msgspec

UNBOUNDED = -1


class KafkaSplit(msgspec.Struct):
    """One partition, read in order by one reader."""

    topic: str
    partition: int
    offset: int
    """Of the next record to read."""
    stop: int = UNBOUNDED
    """Reading ends before this offset; `UNBOUNDED` for a partition without end."""
    topic_id: str = ""
    """Tells a topic from one of the same name that was made after it was deleted; empty where brokers do not say."""

    @property
    def split_id(self) -> str:
        return f"{self.topic}-{self.partition}"
