"""A sink that prints each record on a line of its own, for looking at a stream."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, TextIO

from headrace.connectors.sink import Sink, SinkWriter, WriterContext


class PrintSink(Sink):
    """Prints records where the task runs: to its stdout or, where that is closed, to its stderr.

    Lines begin as Flink's do: `identifier:2> ` with several subtasks, counted from 1, and `identifier> ` with one.
    After a failure some lines come again: at-least-once.
    """

    def __init__(self, identifier: str | None = None) -> None:
        self.identifier = identifier

    def create_writer(self, context: WriterContext) -> SinkWriter:
        parts = [] if not self.identifier else [self.identifier]
        if context.parallelism > 1:
            parts.append(str(context.subtask + 1))
        return _PrintWriter(f"{':'.join(parts)}> " if parts else "")

    def describe(self) -> str:
        return "print" + (f" as {self.identifier}" if self.identifier else "")


class _PrintWriter(SinkWriter):
    def __init__(self, prefix: str) -> None:
        self._prefix = prefix

    def write(self, value: Any, timestamp: int | None) -> None:
        self.write_batch((value,), None)

    def write_batch(self, values: Sequence[Any], timestamps: Sequence[int] | None) -> None:
        if values:
            # One write for whole lines: lines of tasks that share a stream do not mix, and none waits in a buffer.
            out = _usable_stream()
            out.write("".join(f"{self._prefix}{value}\n" for value in values))
            out.flush()


def _usable_stream() -> TextIO:
    # Looked up at every write, since whoever runs the task may redirect it at any time.
    out = sys.stdout
    return sys.stderr if out is None or out.closed else out
