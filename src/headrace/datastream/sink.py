"""The end of a stream: a sink that may still be named and sized."""

from __future__ import annotations

from headrace.datastream.choices import checked_width
from headrace.plan.builder import Draft
from headrace.plan.graph import Chaining


class DataStreamSink:
    """What `sink_to` and `print` return."""

    def __init__(self, draft: Draft) -> None:
        self._draft = draft

    def name(self, name: str) -> DataStreamSink:
        self._draft.name = str(name)
        return self

    def uid(self, uid: str) -> DataStreamSink:
        """Names its state in every checkpoint, so that it is found again in a changed program."""
        self._draft.set_uid(uid)
        return self

    def set_parallelism(self, parallelism: int) -> DataStreamSink:
        self._draft.parallelism = checked_width("parallelism", parallelism)
        return self

    def set_max_parallelism(self, max_parallelism: int) -> DataStreamSink:
        self._draft.max_parallelism = checked_width("max parallelism", max_parallelism)
        return self

    def disable_chaining(self) -> DataStreamSink:
        """Run it in tasks of its own."""
        self._draft.chaining = Chaining.NEVER
        return self
