"""Factories of operators with two inputs, and of the joins."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from headrace.operators.base import Operator
from headrace.operators.broadcast import BroadcastOperator, KeyedBroadcastOperator
from headrace.operators.factory import OperatorFactory
from headrace.operators.functions import OutputTag
from headrace.operators.interval_join import IntervalJoinOperator
from headrace.operators.lookup import LookupJoinOperator, LookupTable
from headrace.operators.temporal_join import TemporalJoinOperator
from headrace.operators.two_input import CoFlatMapOperator, CoMapOperator, CoProcessOperator, KeyedCoProcessOperator
from headrace.state.descriptors import MapStateDescriptor
from headrace.types.information import TypeInformation


@dataclass(frozen=True)
class CoMapFactory(OperatorFactory):
    """`map` of connected streams; keyed if both have keys."""

    function: Any
    keyed: bool = False

    def create(self) -> Operator:
        return CoMapOperator(self.function)

    @property
    def user_function(self) -> Any:
        return self.function


@dataclass(frozen=True)
class CoFlatMapFactory(OperatorFactory):
    """`flat_map` of connected streams; keyed if both have keys."""

    function: Any
    keyed: bool = False

    def create(self) -> Operator:
        return CoFlatMapOperator(self.function)

    @property
    def user_function(self) -> Any:
        return self.function


@dataclass(frozen=True)
class CoProcessFactory(OperatorFactory):
    """`process` of connected streams; keyed if both have keys."""

    function: Any
    keyed: bool = False

    def create(self) -> Operator:
        return KeyedCoProcessOperator(self.function) if self.keyed else CoProcessOperator(self.function)

    @property
    def user_function(self) -> Any:
        return self.function


@dataclass(frozen=True)
class BroadcastFactory(OperatorFactory):
    """`process` of a stream, with keys or without, and a broadcast."""

    function: Any
    descriptors: tuple[MapStateDescriptor, ...]
    keyed: bool = False

    def needs_key(self, input: int) -> bool:
        return self.keyed and input == 0

    def create(self) -> Operator:
        operator = KeyedBroadcastOperator if self.keyed else BroadcastOperator
        return operator(self.function, self.descriptors)

    @property
    def user_function(self) -> Any:
        return self.function


@dataclass(frozen=True)
class IntervalJoinFactory(OperatorFactory):
    """`interval_join`: pairs whose times lie within bounds of each other, both inclusive, in milliseconds."""

    function: Any
    lower: int
    upper: int
    left_type: TypeInformation
    right_type: TypeInformation
    left_late: OutputTag | None = None
    right_late: OutputTag | None = None
    keyed: bool = True

    def create(self) -> Operator:
        return IntervalJoinOperator(
            self.function,
            self.lower,
            self.upper,
            self.left_type,
            self.right_type,
            left_late=self.left_late,
            right_late=self.right_late,
        )

    @property
    def user_function(self) -> Any:
        return self.function


@dataclass(frozen=True)
class TemporalJoinFactory(OperatorFactory):
    """`temporal_join`: each record with the row that was valid at its time."""

    function: Any
    record_type: TypeInformation
    row_type: TypeInformation
    outer: bool = False
    is_deletion: Callable[[Any], bool] | None = None
    late: OutputTag | None = None
    keyed: bool = True

    def create(self) -> Operator:
        return TemporalJoinOperator(
            self.function,
            self.record_type,
            self.row_type,
            outer=self.outer,
            is_deletion=self.is_deletion,
            late=self.late,
        )

    @property
    def user_function(self) -> Any:
        return self.function


@dataclass(frozen=True)
class LookupJoinFactory(OperatorFactory):
    """`lookup_join`: each record with the rows of a table that travels to the tasks."""

    function: Any
    table: LookupTable
    key: Callable[[Any], Any]
    table_key: Callable[[Any], Any]
    outer: bool = False

    def create(self) -> Operator:
        return LookupJoinOperator(self.function, self.table, self.key, self.table_key, outer=self.outer)

    @property
    def user_function(self) -> Any:
        return self.function
