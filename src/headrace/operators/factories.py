"""One factory for each kind of operator; the datastream layer makes these and nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from headrace.connectors.sink import Sink
from headrace.connectors.source import Source
from headrace.operators.base import Operator
from headrace.operators.collect import CollectOperator
from headrace.operators.factory import OperatorFactory
from headrace.operators.process import KeyedProcessOperator, ProcessOperator
from headrace.operators.reduce import ReduceOperator
from headrace.operators.sink import SinkOperator
from headrace.operators.source import SourceOperator
from headrace.operators.stateless import FilterOperator, FlatMapOperator, MapOperator
from headrace.operators.timestamps import TimestampsOperator
from headrace.operators.watermarks import WatermarkStrategy
from headrace.operators.windows.specification import WindowSpec
from headrace.operators.with_state import WithStateOperator
from headrace.types.information import TypeInformation


@dataclass(frozen=True)
class SourceFactory(OperatorFactory):
    """Reads a source; assigns timestamps and watermarks per split."""

    source: Source[Any]
    strategy: WatermarkStrategy

    def create(self) -> Operator:
        return SourceOperator(self.source, self.strategy)

    def __getstate__(self) -> dict[str, Any]:
        _forget_decoding_of(getattr(self.source, "split_type", None))
        return self.__dict__

    @property
    def user_function(self) -> Any:
        return self.source


@dataclass(frozen=True)
class MapFactory(OperatorFactory):
    """`map`; on a keyed stream its function may use keyed state."""

    function: Any
    keyed: bool = False

    def create(self) -> Operator:
        return MapOperator(self.function)

    @property
    def user_function(self) -> Any:
        return self.function


@dataclass(frozen=True)
class FlatMapFactory(OperatorFactory):
    """`flat_map`: a generator, an iterable or None for every record."""

    function: Any
    keyed: bool = False

    def create(self) -> Operator:
        return FlatMapOperator(self.function)

    @property
    def user_function(self) -> Any:
        return self.function


@dataclass(frozen=True)
class FilterFactory(OperatorFactory):
    """`filter`."""

    function: Any
    keyed: bool = False

    def create(self) -> Operator:
        return FilterOperator(self.function)

    @property
    def user_function(self) -> Any:
        return self.function


@dataclass(frozen=True)
class ProcessFactory(OperatorFactory):
    """`process` with a `ProcessFunction` (not keyed) or a `KeyedProcessFunction` (keyed)."""

    function: Any
    keyed: bool = False

    def create(self) -> Operator:
        return KeyedProcessOperator(self.function) if self.keyed else ProcessOperator(self.function)

    @property
    def user_function(self) -> Any:
        return self.function


@dataclass(frozen=True)
class ReduceFactory(OperatorFactory):
    """Keyed running `reduce`: emits the folded value at every record."""

    function: Any
    value_type: TypeInformation
    keyed: bool = True

    def create(self) -> Operator:
        return ReduceOperator(self.function, self.value_type)

    @property
    def user_function(self) -> Any:
        return self.function


@dataclass(frozen=True)
class WithStateFactory(OperatorFactory):
    """`map_with_state` / `flat_map_with_state`: `(value, state) -> (result or results, new state)`."""

    function: Any
    state_type: TypeInformation
    flat: bool
    keyed: bool = True

    def create(self) -> Operator:
        return WithStateOperator(self.function, self.state_type, self.flat)

    @property
    def user_function(self) -> Any:
        return self.function


@dataclass(frozen=True)
class WindowFactory(OperatorFactory):
    """Windows of a keyed stream, or of a stream whose records were given one key."""

    spec: WindowSpec
    keyed: bool = True

    def create(self) -> Operator:
        return self.spec.operator()

    @property
    def user_function(self) -> Any:
        return self.spec.fold_function if self.spec.call.function is None else self.spec.call.function


@dataclass(frozen=True)
class TimestampsFactory(OperatorFactory):
    """`assign_timestamps_and_watermarks` in the middle of a stream."""

    strategy: WatermarkStrategy

    def create(self) -> Operator:
        return TimestampsOperator(self.strategy)


@dataclass(frozen=True)
class SinkFactory(OperatorFactory):
    """Writes to a sink and carries its prepared items through checkpoints."""

    sink: Sink

    def create(self) -> Operator:
        return SinkOperator(self.sink)

    def __getstate__(self) -> dict[str, Any]:
        _forget_decoding_of(getattr(self.sink, "transaction_type", None))
        return self.__dict__

    @property
    def user_function(self) -> Any:
        return self.sink


@dataclass(frozen=True)
class CollectFactory(OperatorFactory):
    """`execute_and_collect`: hands records to the driver, once per completed checkpoint."""

    collector: str
    """Names the iterator in the driver that the records are for."""

    def create(self) -> Operator:
        return CollectOperator(self.collector)


def _forget_decoding_of(saved_type: Any) -> None:
    """Take away what msgspec noted on a dataclass when the driver decoded one, or the class could not travel.

    A class that the program itself defines goes to the tasks by value, with all its attributes, and that note cannot
    be pickled. Msgspec makes it again where it is needed.
    """
    if "__msgspec_cache__" in getattr(saved_type, "__dict__", {}):
        del saved_type.__msgspec_cache__
