"""What an operator under test has emitted."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pyarrow as pa

from headrace.operators.base import Emit, Operator, Outputs, failure_in
from headrace.types.columns import batch_to_values
from headrace.types.conforming import conformer
from headrace.types.information import TypeInformation


class Emitted(NamedTuple):
    """One record of an output."""

    value: Any
    timestamp: int | None
    subtask: int


@dataclass
class Output:
    """Everything that came out of all subtasks, in order."""

    records: list[Emitted] = field(default_factory=list)
    """The main output."""
    side: dict[str, list[Emitted]] = field(default_factory=dict)
    """Side outputs by the id of their tag."""
    watermarks: list[tuple[int, int]] = field(default_factory=list)
    """(subtask, watermark), as they went out."""
    events: list[Any] = field(default_factory=list)
    """Records of the main output and, between them, `("watermark", time)`, `("idle", is_idle)` and `"end"`."""
    ended: set[int] = field(default_factory=set)
    """Subtasks that will emit nothing more."""
    taken: int = 0
    notified: list[Any] = field(default_factory=list)
    """What operators told the driver."""

    @property
    def values(self) -> list[Any]:
        return [record.value for record in self.records]

    def take(self) -> list[Any]:
        """The values since the last `take`."""
        fresh = [record.value for record in self.records[self.taken :]]
        self.taken = len(self.records)
        return fresh

    def copy(self) -> Output:
        side = {tag: list(records) for tag, records in self.side.items()}
        return Output(
            list(self.records), side, list(self.watermarks), list(self.events), set(self.ended), self.taken, []
        )

    def of(self, subtask: int, output_type: TypeInformation | None, operator: Operator) -> Outputs:
        """Where one subtask sends its results."""
        return SubtaskOutputs(self, subtask, output_type, operator)


class SubtaskOutputs(Outputs):
    """Keeps what one subtask emits; a declared output type is enforced as in a job."""

    def __init__(self, output: Output, subtask: int, output_type: TypeInformation | None, operator: Operator) -> None:
        self._output = output
        self._subtask = subtask
        self._type = output_type
        conform = conformer(output_type, "output of the operator")

        def emit(value: Any, timestamp: int | None) -> None:
            output.records.append(Emitted(value, timestamp, subtask))
            output.events.append(value)

        def emit_conforming(value: Any, timestamp: int | None) -> None:
            assert conform is not None
            try:
                fitting = conform(value)
            except Exception as error:
                raise failure_in(operator, value, error) from error
            emit(fitting, timestamp)

        self.emit: Emit = emit if conform is None else emit_conforming

    def emit_columns(self, batch: pa.RecordBatch, timestamps: pa.Array | None) -> None:
        assert self._type is not None
        values = batch_to_values(self._type, batch)
        times = [None] * len(values) if timestamps is None else timestamps.to_pylist()
        for value, timestamp in zip(values, times, strict=True):
            self.emit(value, timestamp)

    def side(self, tag_id: str, value: Any, timestamp: int | None) -> None:
        self._output.side.setdefault(tag_id, []).append(Emitted(value, timestamp, self._subtask))

    def watermark(self, time_ms: int) -> None:
        self._output.watermarks.append((self._subtask, time_ms))
        self._output.events.append(("watermark", time_ms))

    def idle(self, is_idle: bool) -> None:
        self._output.events.append(("idle", is_idle))

    def end(self) -> None:
        self._output.ended.add(self._subtask)
        self._output.events.append("end")
