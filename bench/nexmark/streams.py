"""What a query begins with: the streams of people, auctions and bids, each made when it is asked for."""

from __future__ import annotations

from bench.nexmark.generator import DEFAULT, NexmarkSource
from bench.nexmark.model import Course, Kind
from headrace import DataStream, StreamExecutionEnvironment, WatermarkStrategy


class Events:
    """The first `events` events of a course in an environment; a query reads the kinds it needs and no others."""

    def __init__(self, env: StreamExecutionEnvironment, events: int, course: Course = DEFAULT) -> None:
        self._env = env
        self._events = events
        self._course = course
        self.sources: list[NexmarkSource] = []
        """Of the streams that were asked for."""

    @property
    def people(self) -> DataStream:
        return self._stream(Kind.PERSON, "people")

    @property
    def auctions(self) -> DataStream:
        return self._stream(Kind.AUCTION, "auctions")

    @property
    def bids(self) -> DataStream:
        return self._stream(Kind.BID, "bids")

    @property
    def records(self) -> int:
        """How many records the query will read."""
        return sum(source.records for source in self.sources)

    def _stream(self, kind: Kind, name: str) -> DataStream:
        source = NexmarkSource(kind, self._events, self._course)
        self.sources.append(source)
        return self._env.from_source(source, WatermarkStrategy.for_monotonous_timestamps(), name)
