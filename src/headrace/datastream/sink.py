"""The end of a stream: a sink that may still be named and sized."""

from __future__ import annotations

from typing import Any

import msgspec

from headrace.connectors.sink import Sink
from headrace.datastream.choices import checked_width
from headrace.datastream.ported import OperatorHints
from headrace.errors import JobDefinitionError
from headrace.plan.builder import Draft
from headrace.plan.graph import Chaining


class DataStreamSink(OperatorHints):
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


def check_sink(sink: Any) -> None:
    """Refuse what is no sink, and a sink whose saved transactions no worker could read."""
    if not isinstance(sink, Sink):
        hint = f" Write {sink.__name__}(...)." if isinstance(sink, type) and issubclass(sink, Sink) else ""
        raise JobDefinitionError(f"sink_to() got {sink!r}; wanted a Sink object.{hint}")
    for what in ("transaction_type", "record_type"):
        saved = getattr(sink, what, None)
        if isinstance(saved, type) and issubclass(saved, msgspec.Struct) and saved.__module__ == "__main__":
            raise JobDefinitionError(
                f"The {what} {saved.__name__} of {type(sink).__name__} is a msgspec.Struct of the program itself, "
                "which does not reach the workers. Make it a dataclass, or move it into a module of its own."
            )
