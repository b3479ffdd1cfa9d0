"""Factories of the operators on columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from headrace.operators.base import Operator
from headrace.operators.columns.aggregates import Aggregates
from headrace.operators.columns.combining import CombineOperator
from headrace.operators.columns.map_batches import MapBatchesOperator
from headrace.operators.columns.panes import Gaps, Panes, TimePieces
from headrace.operators.columns.running import RunningAggregateOperator
from headrace.operators.columns.sessions import ColumnSessionOperator
from headrace.operators.columns.windows import ColumnWindowOperator
from headrace.operators.factory import OperatorFactory
from headrace.operators.functions import OutputTag
from headrace.operators.windows.assigners import WindowAssigner
from headrace.types.information import TypeInformation


@dataclass(frozen=True)
class MapBatchesFactory(OperatorFactory):
    """`map_batches`."""

    function: Any
    input_type: TypeInformation
    output_type: TypeInformation
    timestamp_field: str | None = None

    def create(self) -> Operator:
        return MapBatchesOperator(self.function, self.input_type, self.output_type, self.timestamp_field)

    @property
    def user_function(self) -> Any:
        return self.function


@dataclass(frozen=True)
class CombineFactory(OperatorFactory):
    """The half of `aggregate_columns` that stands before the exchange."""

    aggregates: Aggregates
    panes: TimePieces | None
    input_type: TypeInformation

    def create(self) -> Operator:
        return CombineOperator(self.aggregates, self.panes, self.input_type)


@dataclass(frozen=True)
class ColumnWindowFactory(OperatorFactory):
    """`window(...).aggregate_columns`."""

    aggregates: Aggregates
    assigner: WindowAssigner
    pieces: Panes | Gaps
    input_type: TypeInformation
    lateness_ms: int
    late_tag: OutputTag | None
    raw: bool
    keyed: bool = True

    def create(self) -> Operator:
        kind = ColumnSessionOperator if isinstance(self.pieces, Gaps) else ColumnWindowOperator
        return kind(
            self.aggregates,
            self.assigner,
            self.pieces,
            self.input_type,
            self.lateness_ms,
            self.late_tag,
            raw=self.raw,
        )


@dataclass(frozen=True)
class RunningAggregateFactory(OperatorFactory):
    """`aggregate_columns` without windows."""

    aggregates: Aggregates
    input_type: TypeInformation
    at_end: bool
    keyed: bool = True

    def create(self) -> Operator:
        return RunningAggregateOperator(self.aggregates, self.input_type, at_end=self.at_end)
