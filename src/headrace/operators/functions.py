"""What users write: functions, the contexts they are handed, and the tags of side outputs.

A function object belongs to one subtask: the runtime copies it to every task, calls `open` once per subtask
and attempt before the first record, then its own method for every record, and `close` at the end. All calls
come from one thread. Where a method emits (`flat_map`, `process_element`, `on_timer`) it is a generator
or returns an iterable; None means nothing. `yield tag, value` sends the value to a side output.

Contexts are interfaces here; the runtime implements them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeAlias

from headrace.errors import JobDefinitionError
from headrace.state.descriptors import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from headrace.state.states import AggregatingState, ListState, MapState, ReducingState, ValueState
from headrace.types.information import TypeInformation, TypeLike, Types, type_of


class TimeDomain(Enum):
    """By which clock a timer fired."""

    EVENT_TIME = 0
    PROCESSING_TIME = 1


@dataclass(frozen=True, slots=True)
class OutputTag:
    """Names a side output. Two tags with one `tag_id` are the same output."""

    tag_id: str
    type_info: TypeLike | list[TypeLike] | None = field(default=None, compare=False)
    """Type of its records; a list stands for a row of these types, None for any Python object."""

    def __post_init__(self) -> None:
        if not isinstance(self.tag_id, str) or not self.tag_id:
            raise JobDefinitionError(f"An OutputTag needs a name that is a non-empty str, not {self.tag_id!r}.")
        if isinstance(self.type_info, list):
            object.__setattr__(self, "type_info", Types.ROW([type_of(t) for t in self.type_info]))
        elif self.type_info is not None:
            object.__setattr__(self, "type_info", type_of(self.type_info))

    @property
    def type(self) -> TypeInformation | None:
        """Type of the side output's records, or None for any Python object."""
        return self.type_info if isinstance(self.type_info, TypeInformation) else None


class Counter(ABC):
    """A number that goes up and down."""

    @abstractmethod
    def inc(self, n: int = 1) -> None: ...

    @abstractmethod
    def dec(self, n: int = 1) -> None: ...

    @abstractmethod
    def get_count(self) -> int: ...


class Meter(ABC):
    """Events per second."""

    @abstractmethod
    def mark_event(self, value: int = 1) -> None: ...

    @abstractmethod
    def get_rate(self) -> float: ...

    @abstractmethod
    def get_count(self) -> int: ...


class Distribution(ABC):
    """Sum, count, smallest and largest of the values it is told."""

    @abstractmethod
    def update(self, value: int) -> None: ...


class MetricGroup(ABC):
    """A named place for metrics. A metric that is asked for twice by one name is the same metric."""

    @abstractmethod
    def add_group(self, name: str, extra: str | None = None) -> MetricGroup:
        """A group below this one; with `extra`, a key and a value."""

    @abstractmethod
    def counter(self, name: str) -> Counter: ...

    @abstractmethod
    def gauge(self, name: str, obj: Callable[[], int]) -> None:
        """`obj` is called whenever someone looks, on the mailbox thread."""

    @abstractmethod
    def meter(self, name: str, time_span_in_seconds: int = 60) -> Meter: ...

    @abstractmethod
    def distribution(self, name: str) -> Distribution: ...


class KeyedStateStore(ABC):
    """Where a function gets its keyed states.

    They may be asked for before the first record and used while a record or timer of a keyed stream is handled.
    """

    @abstractmethod
    def get_state(self, state_descriptor: ValueStateDescriptor) -> ValueState[Any]:
        """The value state of that name; belongs to this operator alone."""

    @abstractmethod
    def get_list_state(self, state_descriptor: ListStateDescriptor) -> ListState[Any]:
        """The list state of that name."""

    @abstractmethod
    def get_map_state(self, state_descriptor: MapStateDescriptor) -> MapState[Any, Any]:
        """The map state of that name."""

    @abstractmethod
    def get_reducing_state(self, state_descriptor: ReducingStateDescriptor) -> ReducingState[Any]:
        """The reducing state of that name."""

    @abstractmethod
    def get_aggregating_state(self, state_descriptor: AggregatingStateDescriptor) -> AggregatingState[Any, Any]:
        """The aggregating state of that name."""


class RuntimeContext(KeyedStateStore):
    """What a function may know and use of the subtask it runs in. Handed to `open`, valid until `close`."""

    @abstractmethod
    def get_task_name(self) -> str:
        """Name of the operator."""

    @abstractmethod
    def get_task_name_with_subtasks(self) -> str:
        """Name and subtask, as in `alerts (2/4)#0`: counted from one, and the attempt."""

    @abstractmethod
    def get_number_of_parallel_subtasks(self) -> int:
        """Parallelism of the operator."""

    @abstractmethod
    def get_max_number_of_parallel_subtasks(self) -> int:
        """Maximum parallelism of the operator, which is the number of its key groups."""

    @abstractmethod
    def get_index_of_this_subtask(self) -> int:
        """Which subtask this is, counted from zero."""

    @abstractmethod
    def get_attempt_number(self) -> int:
        """How often the job was started before: 0 in its first life."""

    @abstractmethod
    def get_job_parameter(self, key: str, default_value: str) -> str:
        """A parameter the job was started with, or the default."""

    @abstractmethod
    def get_metrics_group(self) -> MetricGroup:
        """Where this function registers metrics of its own."""


class TimerService(ABC):
    """Clocks and timers. Timers exist per key: registering one needs a keyed stream.

    A timer is unique per key and time, is part of every checkpoint, and fires after all records that came before it.
    """

    @abstractmethod
    def current_processing_time(self) -> int:
        """The task's clock in milliseconds since 1970."""

    @abstractmethod
    def current_watermark(self) -> int:
        """The operator's watermark; `MIN_WATERMARK` until the first one came."""

    @abstractmethod
    def register_processing_time_timer(self, timestamp: int) -> None:
        """Call `on_timer` when the clock has reached `timestamp`."""

    @abstractmethod
    def register_event_time_timer(self, timestamp: int) -> None:
        """Call `on_timer` when the watermark has reached `timestamp`."""

    @abstractmethod
    def delete_processing_time_timer(self, timestamp: int) -> None:
        """Take the current key's timer away, if there is one."""

    @abstractmethod
    def delete_event_time_timer(self, timestamp: int) -> None:
        """Take the current key's timer away, if there is one."""


class ProcessContext(ABC):
    """What `ProcessFunction.process_element` may ask. Valid only during the call."""

    @abstractmethod
    def timestamp(self) -> int | None:
        """Event time of the record in milliseconds, or the timer's time; None if the record has none."""

    @abstractmethod
    def timer_service(self) -> TimerService: ...


class KeyedProcessContext(ProcessContext):
    """The same on a keyed stream."""

    @abstractmethod
    def get_current_key(self) -> Any:
        """Key of the record or timer at hand."""


class OnTimerContext(KeyedProcessContext):
    """What `on_timer` may ask besides."""

    @abstractmethod
    def time_domain(self) -> TimeDomain:
        """Whether the watermark or the clock made the timer fire."""


_OnTimerContext: TypeAlias = OnTimerContext
# KeyedProcessFunction offers it under the same name, as Flink does.


class Subscriptable:
    """Takes type parameters, which PyFlink's programs write: `WindowFunction[tuple, tuple, str, TimeWindow]`."""

    __slots__ = ()

    def __class_getitem__(cls, parameters: Any) -> Any:
        return cls


class Function(Subscriptable, ABC):
    """Base of all user functions."""

    def open(self, runtime_context: RuntimeContext) -> None:
        """Called once per subtask and attempt before the first record. Register state here."""

    def close(self) -> None:
        """Called once at the end, also after a failure. Release what `open` took."""


class MapFunction(Function):
    """One record in, one out."""

    @abstractmethod
    def map(self, value: Any) -> Any: ...


class FlatMapFunction(Function):
    """One record in, any number out."""

    @abstractmethod
    def flat_map(self, value: Any) -> Iterable[Any] | None: ...


class FilterFunction(Function):
    """Keeps the records for which it is true."""

    @abstractmethod
    def filter(self, value: Any) -> bool: ...


class ReduceFunction(Function):
    """Folds two values of one type into one."""

    @abstractmethod
    def reduce(self, value1: Any, value2: Any) -> Any:
        """`value1` is what was folded so far, `value2` the new value. Must be associative."""


class AggregateFunction(Function):
    """Folds values into an accumulator and turns that into a result."""

    @abstractmethod
    def create_accumulator(self) -> Any:
        """A fresh accumulator."""

    @abstractmethod
    def add(self, value: Any, accumulator: Any) -> Any:
        """The accumulator with `value` in it. It must be returned, even if it was changed in place."""

    @abstractmethod
    def get_result(self, accumulator: Any) -> Any:
        """The result so far."""

    @abstractmethod
    def merge(self, acc1: Any, acc2: Any) -> Any:
        """Both accumulators as one. Called only where windows merge."""


class KeySelector(Function):
    """Finds the key of a record. Must give the same key for the same record, always and everywhere."""

    @abstractmethod
    def get_key(self, value: Any) -> Any: ...


class Partitioner(Function):
    """Chooses the subtask for a key."""

    @abstractmethod
    def partition(self, key: Any, num_partitions: int) -> int:
        """An index from 0 to `num_partitions - 1`."""


class ProcessFunction(Function):
    """Any number out per record, with time and side outputs. On a stream without keys."""

    Context: TypeAlias = ProcessContext

    @abstractmethod
    def process_element(self, value: Any, ctx: ProcessContext) -> Iterable[Any] | None: ...


class KeyedProcessFunction(Function):
    """Any number out per record or timer, with keyed state, timers and side outputs."""

    Context: TypeAlias = KeyedProcessContext
    OnTimerContext: TypeAlias = _OnTimerContext

    @abstractmethod
    def process_element(self, value: Any, ctx: KeyedProcessContext) -> Iterable[Any] | None: ...

    def on_timer(self, timestamp: int, ctx: OnTimerContext) -> Iterable[Any] | None:
        """Called for every timer that is due, with the key it was registered under."""
        return None


RichMapFunction: TypeAlias = MapFunction
RichFlatMapFunction: TypeAlias = FlatMapFunction
RichFilterFunction: TypeAlias = FilterFunction
RichReduceFunction: TypeAlias = ReduceFunction
RichAggregateFunction: TypeAlias = AggregateFunction
RichFunction: TypeAlias = Function


class CheckpointListener(ABC):
    """Mix into a function that wants to hear of checkpoints."""

    @abstractmethod
    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """The checkpoint is durable. May come late, and not at all if the job fails before."""

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:  # noqa: B027 - optional for implementers
        """The checkpoint was given up."""


def callable_of(function: Any, method: str) -> Callable[..., Any]:
    """What to call for every record: the named method of a function object, or the plain callable itself.

    Called while the program is built (to refuse what cannot work) and again in every task.
    """
    if isinstance(function, type) and issubclass(function, Function):
        raise JobDefinitionError(
            f"{function.__name__} is a class where an object is wanted. Write {function.__name__}(...)."
        )
    bound = getattr(function, method, None)
    if isinstance(function, Function):
        if not callable(bound):
            raise JobDefinitionError(
                f"{type(function).__name__} has no method {method}(), which is what is called here. "
                f"Give a function object that has it, or a plain callable."
            )
        return bound  # type: ignore[no-any-return]
    if callable(function):
        return function  # type: ignore[no-any-return]
    if callable(bound):
        return bound  # type: ignore[no-any-return]
    raise JobDefinitionError(
        f"{function!r} cannot be called. Give a plain callable, or an object with a method {method}()."
    )
