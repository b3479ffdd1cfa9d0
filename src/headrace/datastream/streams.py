"""Streams: each method adds one operator to the plan, or says how records go to the next one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn, overload

from headrace.connectors.print import PrintSink
from headrace.connectors.sink import Sink
from headrace.datastream.aggregations import FieldMax, FieldMin, FieldReduce, FieldSum, RecordMax, RecordMin
from headrace.datastream.choices import checked_width
from headrace.datastream.collect import CloseableIterator
from headrace.datastream.connected import BroadcastConnectedStream, BroadcastStream, ConnectedStreams
from headrace.datastream.dataframes import ToDataFrames
from headrace.datastream.joined import CoGroupedStreams, JoinedStreams
from headrace.datastream.joins import How, IntervalJoin, lookup_factory, temporal_join
from headrace.datastream.ported import PortedMethods
from headrace.datastream.sink import DataStreamSink, check_sink
from headrace.datastream.vectorised import BatchMethods, KeyedBatchMethods
from headrace.datastream.windowed import AllWindowedStream, WindowedStream, no_key
from headrace.errors import JobDefinitionError, KeyedStateError
from headrace.operators.checkpointed import CheckpointedFunction
from headrace.operators.columns.factories import CombineFactory, MapBatchesFactory, RunningAggregateFactory
from headrace.operators.connected_factories import CoFlatMapFactory, CoMapFactory, LookupJoinFactory
from headrace.operators.factories import (
    CollectFactory,
    FilterFactory,
    FlatMapFactory,
    MapFactory,
    ProcessFactory,
    ReduceFactory,
    SinkFactory,
    SourceFactory,
    TimestampsFactory,
    WithStateFactory,
)
from headrace.operators.factory import OperatorFactory
from headrace.operators.functions import (
    FilterFunction,
    FlatMapFunction,
    Function,
    KeyedProcessFunction,
    MapFunction,
    OutputTag,
    Partitioner,
    ProcessFunction,
    ReduceFunction,
    callable_of,
)
from headrace.operators.watermarks import WatermarkStrategy
from headrace.operators.windows.assigners import (
    CountSlidingWindowAssigner,
    CountTumblingWindowAssigner,
    WindowAssigner,
)
from headrace.plan.builder import Draft, Outlet
from headrace.plan.fields import resolve_field, traced_fields
from headrace.plan.graph import Broadcast, Chaining, Custom, Forward, Hash, Partitioning, Rebalance, Rescale, Shuffle
from headrace.plan.keys import KeyLike, key_spec
from headrace.state.descriptors import MapStateDescriptor
from headrace.types.information import BasicType, TypeInformation, TypeLike, Types, type_of

if TYPE_CHECKING:
    from headrace.datastream.environment import StreamExecutionEnvironment

_NO_SIDE_OUTPUTS = (
    SourceFactory,
    MapFactory,
    FilterFactory,
    ReduceFactory,
    WithStateFactory,
    TimestampsFactory,
    CoMapFactory,
    CoFlatMapFactory,
    LookupJoinFactory,
    MapBatchesFactory,
    CombineFactory,
    RunningAggregateFactory,
)


class DataStream(PortedMethods, BatchMethods, ToDataFrames):
    """A stream of records. Immutable in what it carries; names and sizes of its operator can still be set."""

    def __init__(self, environment: StreamExecutionEnvironment, outlets: tuple[Outlet, ...]) -> None:
        self._environment = environment
        self._outlets = outlets

    # About the operator that makes this stream

    def get_name(self) -> str:
        return self._operator("get_name").name

    def name(self, name: str) -> DataStream:
        """What people call the operator. Part of a generated uid, so give a uid too if the name may change."""
        self._operator("name").name = str(name)
        return self

    def uid(self, uid: str) -> DataStream:
        """Names the operator's state in every checkpoint, so that it is found again in a changed program."""
        self._operator("uid").set_uid(uid)
        return self

    def set_parallelism(self, parallelism: int) -> DataStream:
        """How many subtasks the operator has; without it, as many as the environment says."""
        self._operator("set_parallelism").parallelism = checked_width("parallelism", parallelism)
        return self

    def set_max_parallelism(self, max_parallelism: int) -> DataStream:
        """How many key groups the operator has. State saved before does not follow a change."""
        draft = self._operator("set_max_parallelism")
        draft.max_parallelism = checked_width("max parallelism", max_parallelism)
        return self

    def start_new_chain(self) -> DataStream:
        """Do not run the operator in the task of the one before it; later ones may join it."""
        self._operator("start_new_chain").chaining = Chaining.HEAD
        return self

    def disable_chaining(self) -> DataStream:
        """Run the operator in tasks of its own."""
        self._operator("disable_chaining").chaining = Chaining.NEVER
        return self

    def get_type(self) -> TypeInformation | None:
        """Type of the records, or None for any Python object."""
        first, *others = (outlet.type for outlet in self._outlets)
        return first if all(other == first for other in others) else None

    def get_execution_environment(self) -> StreamExecutionEnvironment:
        return self._environment

    # One record after the other

    def map(self, func: MapFunction | Callable[[Any], Any], output_type: TypeLike | None = None) -> DataStream:
        """One record in, one out."""
        callable_of(func, "map")
        return self._then("map", MapFactory(func, self._may_keep_state(func)), output_type)

    def flat_map(
        self, func: FlatMapFunction | Callable[[Any], Iterable[Any] | None], output_type: TypeLike | None = None
    ) -> DataStream:
        """One record in, any number out: a generator, an iterable or None."""
        callable_of(func, "flat_map")
        return self._then("flat_map", FlatMapFactory(func, self._may_keep_state(func)), output_type)

    def filter(self, func: FilterFunction | Callable[[Any], bool]) -> DataStream:
        """Keep the records for which it is true."""
        callable_of(func, "filter")
        return self._then("filter", FilterFactory(func, self._may_keep_state(func)), self.get_type())

    def process(self, func: ProcessFunction | KeyedProcessFunction, output_type: TypeLike | None = None) -> DataStream:
        """Any number out for each record, with time and side outputs; with state and timers on a keyed stream."""
        if isinstance(func, KeyedProcessFunction):
            raise KeyedStateError(
                f"process() got the KeyedProcessFunction {type(func).__name__} on a stream without keys. "
                "Call key_by() first, or derive it from ProcessFunction."
            )
        _check_kind("process()", func, ProcessFunction)
        return self._then("process", ProcessFactory(func), output_type)

    def assign_timestamps_and_watermarks(self, watermark_strategy: WatermarkStrategy) -> DataStream:
        """Give records timestamps here, and the stream a watermark of its own from here on."""
        strategy = with_timestamp_field(watermark_strategy, self.get_type())
        if strategy.alignment is not None:
            raise JobDefinitionError(
                "assign_timestamps_and_watermarks() got a strategy with_watermark_alignment(), but only sources can be "
                "held back. Give it to from_source()."
            )
        return self._then("timestamps", TimestampsFactory(strategy), self.get_type())

    def union(self, *streams: DataStream) -> DataStream:
        """The records of all these streams, in the order in which they come."""
        for stream in streams:
            if not isinstance(stream, DataStream):
                raise JobDefinitionError(f"union() got {stream!r}, which is no stream.")
            if stream._environment is not self._environment:
                raise JobDefinitionError("union() got a stream of another environment. Build both in one environment.")
        return DataStream(self._environment, sum((stream._outlets for stream in streams), self._outlets))

    @overload
    def connect(self, ds: DataStream) -> ConnectedStreams: ...

    @overload
    def connect(self, ds: BroadcastStream) -> BroadcastConnectedStream: ...

    def connect(self, ds: DataStream | BroadcastStream) -> ConnectedStreams | BroadcastConnectedStream:
        """Read this stream and another, of any type, in one operator."""
        if isinstance(ds, BroadcastStream):
            return BroadcastConnectedStream(self, ds)
        if not isinstance(ds, DataStream):
            raise JobDefinitionError(f"connect() got {ds!r}; wanted a stream, or stream.broadcast(descriptor).")
        return ConnectedStreams(self, ds)

    def lookup_join(
        self,
        table: Any,
        key: KeyLike,
        how: How = "inner",
        *,
        table_key: KeyLike | None = None,
        function: Callable[[Any, Any], Any] | None = None,
        output_type: TypeLike | None = None,
    ) -> DataStream:
        """Join each record with the rows of a table that does not change while the job runs.

        `table` is a list of rows, an Arrow table, or a pandas or Spark DataFrame, which is collected here and travels
        to the tasks once. `key` finds a record's key; the rows' key is `table_key`, or `key` if that names fields.
        `function(record, row)` makes the result, a pair without it; `how="left"` passes None where there is no row.
        """
        factory = lookup_factory(self.get_type(), table, key, how, table_key, function)
        return self._then("lookup_join", factory, output_type)

    def get_side_output(self, output_tag: OutputTag) -> DataStream:
        """What the operator sent with `yield tag, value`."""
        if not isinstance(output_tag, OutputTag):
            raise JobDefinitionError(f"get_side_output() got {output_tag!r}; wanted an OutputTag.")
        draft = self._operator("get_side_output")
        if isinstance(draft.factory, _NO_SIDE_OUTPUTS):
            raise JobDefinitionError(
                f'Operator "{draft.name}" has no side outputs. Use a process function that yields `tag, value`.'
            )
        known = draft.side_types.setdefault(output_tag.tag_id, output_tag.type)
        if known != output_tag.type:
            raise JobDefinitionError(
                f'Side output "{output_tag.tag_id}" of operator "{draft.name}" is asked for as {known or "any object"} '
                f"and as {output_tag.type or 'any object'}. Use one OutputTag for both."
            )
        return DataStream(self._environment, (Outlet(draft, tag=output_tag.tag_id, type=output_tag.type),))

    # How records go to the next operator

    def key_by(self, key_selector: KeyLike, key_type: TypeLike | None = None) -> KeyedStream:
        """Records of one key to one subtask. By a function, a KeySelector, a field, or a tuple or list of fields."""
        spec = key_spec(key_selector, self.get_type(), key_type)
        return KeyedStream(self._environment, self._routed(Hash(spec)))

    def rebalance(self) -> DataStream:
        """Round robin over all subtasks of the next operator."""
        return DataStream(self._environment, self._routed(Rebalance()))

    def rescale(self) -> DataStream:
        """Round robin over the few subtasks of the next operator that stand nearest."""
        return DataStream(self._environment, self._routed(Rescale()))

    def shuffle(self) -> DataStream:
        """Each record to a random subtask."""
        return DataStream(self._environment, self._routed(Shuffle()))

    def forward(self) -> DataStream:
        """Subtask i to subtask i; both operators must have the same parallelism."""
        return DataStream(self._environment, self._routed(Forward()))

    @overload
    def broadcast(self) -> DataStream: ...

    @overload
    def broadcast(
        self, broadcast_state_descriptor: MapStateDescriptor, /, *others: MapStateDescriptor
    ) -> BroadcastStream: ...

    def broadcast(self, *broadcast_state_descriptors: MapStateDescriptor) -> DataStream | BroadcastStream:
        """Every record to every subtask. With descriptors, a broadcast that another stream connects with."""
        routed = DataStream(self._environment, self._routed(Broadcast()))
        return BroadcastStream(routed, broadcast_state_descriptors) if broadcast_state_descriptors else routed

    def partition_custom(
        self, partitioner: Partitioner | Callable[[Any, int], int], key_selector: KeyLike
    ) -> DataStream:
        """To the subtask that `partitioner(key, number of subtasks)` names."""
        spec = key_spec(key_selector, self.get_type(), call="partition_custom()")
        return DataStream(self._environment, self._routed(Custom(callable_of(partitioner, "partition"), spec)))

    # Windows

    def window_all(self, window_assigner: WindowAssigner) -> AllWindowedStream:
        """Windows over all records, in one subtask."""
        return AllWindowedStream(self.key_by(no_key), window_assigner)

    def count_window_all(self, size: int, slide: int = 0) -> AllWindowedStream:
        """Windows of `size` records; with `slide`, one that begins at every `slide`-th record."""
        return self.window_all(_count_windows(size, slide))

    def join(self, other_stream: DataStream) -> JoinedStreams:
        """Join in windows: `a.join(b).where(key).equal_to(key).window(assigner).apply(function)`."""
        return JoinedStreams(self, other_stream)

    def co_group(self, other_stream: DataStream) -> CoGroupedStreams:
        """The same with all records of a key and window at once, of both streams."""
        return CoGroupedStreams(self, other_stream)

    # Where a stream ends

    def sink_to(self, sink: Sink) -> DataStreamSink:
        """Write the records to this sink."""
        check_sink(sink)
        return DataStreamSink(self._declare(type(sink).__name__, SinkFactory(sink), None))

    def add_sink(self, sink: Sink) -> DataStreamSink:
        """Older name of `sink_to`."""
        return self.sink_to(sink)

    def print(self, sink_identifier: str | None = None) -> DataStreamSink:
        """Print each record where its task runs."""
        return DataStreamSink(self._declare("print", SinkFactory(PrintSink(sink_identifier)), None))

    @overload
    def execute_and_collect(self, job_execution_name: str | None = None, limit: None = None) -> CloseableIterator: ...

    @overload
    def execute_and_collect(self, job_execution_name: str | None = None, *, limit: int) -> list[Any]: ...

    @overload
    def execute_and_collect(self, job_execution_name: str | None, limit: int) -> list[Any]: ...

    def execute_and_collect(
        self, job_execution_name: str | None = None, limit: int | None = None
    ) -> CloseableIterator | list[Any]:
        """Run the job and iterate over the records of this stream; with `limit`, get the first so many as a list.

        Close the iterator, or use it in a `with` block: that ends a job that has no end of its own.
        """
        collector = f"collect-{self._environment.declared_count}"
        draft = self._declare("collect", CollectFactory(collector), None)
        # Beside the operator before it where it can be: a collector has no width of its own.
        draft.parallelism = self._outlets[0].source.parallelism
        results = CloseableIterator(self._environment.start_collecting(job_execution_name), collector)
        return results if limit is None else results.take(limit)

    # Only with a key

    def interval_join(self, other_stream: KeyedStream) -> IntervalJoin:
        self._needs_key("interval_join")

    def temporal_join(self, *args: Any, **kwargs: Any) -> DataStream:
        self._needs_key("temporal_join")

    def reduce(self, func: ReduceFunction | Callable[[Any, Any], Any]) -> DataStream:
        self._needs_key("reduce")

    def sum(self, position_to_sum: int | str = 0) -> DataStream:
        self._needs_key("sum")

    def min(self, position_to_min: int | str = 0) -> DataStream:
        self._needs_key("min")

    def max(self, position_to_max: int | str = 0) -> DataStream:
        self._needs_key("max")

    def min_by(self, position_to_min_by: int | str = 0) -> DataStream:
        self._needs_key("min_by")

    def max_by(self, position_to_max_by: int | str = 0) -> DataStream:
        self._needs_key("max_by")

    def map_with_state(
        self,
        func: Callable[[Any, Any], tuple[Any, Any]],
        state_type: TypeLike | None = None,
        output_type: TypeLike | None = None,
    ) -> DataStream:
        self._needs_key("map_with_state")

    def flat_map_with_state(
        self,
        func: Callable[[Any, Any], tuple[Iterable[Any] | None, Any]],
        state_type: TypeLike | None = None,
        output_type: TypeLike | None = None,
    ) -> DataStream:
        self._needs_key("flat_map_with_state")

    # Building

    @property
    def outlets(self) -> tuple[Outlet, ...]:
        """The outputs of operators that this stream is made of."""
        return self._outlets

    def then_with(
        self, second: DataStream, name: str, factory: OperatorFactory, output_type: TypeLike | None
    ) -> DataStream:
        """What an operator makes of this stream, its first input, and of `second`. Called by connected streams."""
        made = None if output_type is None else type_of(output_type)
        inputs = (*((outlet, 0) for outlet in self._outlets), *((outlet, 1) for outlet in second._outlets))
        draft = self._environment.declare(Draft(name, factory, inputs, made))
        return DataStream(self._environment, (Outlet(draft, type=made),))

    def _needs_key(self, call: str) -> NoReturn:
        raise KeyedStateError(
            f"{call}() works per key, but this stream has none. Call key_by() first "
            "(key_by(lambda record: 0) for one result over all records)."
        )

    def _may_keep_state(self, func: Any) -> bool:
        return False

    def _operator(self, call: str) -> Draft:
        """The operator that this stream comes straight out of."""
        if len(self._outlets) != 1 or self._outlets[0].partitioning is not None or self._outlets[0].tag is not None:
            raise JobDefinitionError(
                f"{call}() belongs to an operator, but here is what comes after one: a union, a side output or a way "
                "of partitioning. Call it on the operator before, or on the one that follows."
            )
        return self._outlets[0].source

    def _routed(self, partitioning: Partitioning) -> tuple[Outlet, ...]:
        return tuple(replace(outlet, partitioning=partitioning) for outlet in self._outlets)

    def _declare(self, name: str, factory: OperatorFactory, output_type: TypeInformation | None) -> Draft:
        return self._environment.declare(
            Draft(name, factory, tuple((outlet, 0) for outlet in self._outlets), output_type)
        )

    def _then(self, name: str, factory: OperatorFactory, output_type: TypeLike | None) -> DataStream:
        made = None if output_type is None else type_of(output_type)
        return DataStream(self._environment, (Outlet(self._declare(name, factory, made), type=made),))


class KeyedStream(KeyedBatchMethods, DataStream):
    """A stream in which every record has a key. State and timers of the operators after it belong to that key."""

    def process(self, func: ProcessFunction | KeyedProcessFunction, output_type: TypeLike | None = None) -> DataStream:
        """Any number out for each record or timer, with keyed state and side outputs."""
        if isinstance(func, ProcessFunction):
            raise JobDefinitionError(
                f"process() on a keyed stream got the ProcessFunction {type(func).__name__}, which knows no key. "
                "Derive it from KeyedProcessFunction, or call process() before key_by()."
            )
        _check_kind("process()", func, KeyedProcessFunction)
        return self._then("process", ProcessFactory(func, keyed=True), output_type)

    def interval_join(self, other_stream: KeyedStream) -> IntervalJoin:
        """Join with the records of the same key in another stream whose times lie within bounds: `.between(...)`."""
        self._needs_keyed("interval_join", other_stream)
        return IntervalJoin(self, other_stream)

    def temporal_join(
        self,
        table: KeyedStream,
        function: Callable[[Any, Any], Any] | None = None,
        how: How = "inner",
        *,
        is_deletion: Callable[[Any], bool] | None = None,
        late_data: OutputTag | None = None,
        output_type: TypeLike | None = None,
    ) -> DataStream:
        """Join each record with the row of its key that was valid at its time in a changing table.

        `table` is a stream of rows, each valid from its timestamp until the next row of its key, or until one for
        which `is_deletion(row)` is true. A record is joined when the watermark has reached its time.
        `function(record, row)` makes the result, a pair without it; `how="left"` passes None where there is no row.
        A record whose row is gone because it came too late goes to the side output `late_data`, if given.
        """
        self._needs_keyed("temporal_join", table)
        return temporal_join(self, table, function, how, is_deletion, late_data, output_type)

    def _needs_keyed(self, call: str, other: Any) -> None:
        if not isinstance(other, KeyedStream):
            raise KeyedStateError(f"{call}() got {other!r}; wanted another keyed stream. Call key_by() on it first.")

    def reduce(self, func: ReduceFunction | Callable[[Any, Any], Any]) -> DataStream:
        """Fold each record into its key's value, and emit the new value each time."""
        callable_of(func, "reduce")
        return self._reduced("reduce", func)

    def sum(self, position_to_sum: int | str = 0) -> DataStream:
        """The running sum of a field; the other fields are those of the key's first record."""
        return self._aggregated("sum", FieldSum(position_to_sum))

    def min(self, position_to_min: int | str = 0) -> DataStream:
        """The running minimum of a field; the other fields are those of the key's first record."""
        return self._aggregated("min", FieldMin(position_to_min))

    def max(self, position_to_max: int | str = 0) -> DataStream:
        """The running maximum of a field; the other fields are those of the key's first record."""
        return self._aggregated("max", FieldMax(position_to_max))

    def min_by(self, position_to_min_by: int | str = 0) -> DataStream:
        """The record with the smallest value of a field so far; the first among equals."""
        return self._aggregated("min_by", RecordMin(position_to_min_by))

    def max_by(self, position_to_max_by: int | str = 0) -> DataStream:
        """The record with the largest value of a field so far; the first among equals."""
        return self._aggregated("max_by", RecordMax(position_to_max_by))

    def map_with_state(
        self,
        func: Callable[[Any, Any], tuple[Any, Any]],
        state_type: TypeLike | None = None,
        output_type: TypeLike | None = None,
    ) -> DataStream:
        """`func(value, state) -> (result, new state)`. The state is None the first time; a returned None clears it."""
        return self._with_state("map_with_state", func, state_type, output_type, flat=False)

    def flat_map_with_state(
        self,
        func: Callable[[Any, Any], tuple[Iterable[Any] | None, Any]],
        state_type: TypeLike | None = None,
        output_type: TypeLike | None = None,
    ) -> DataStream:
        """`func(value, state) -> (results, new state)`: the same with any number of results."""
        return self._with_state("flat_map_with_state", func, state_type, output_type, flat=True)

    def window(self, window_assigner: WindowAssigner) -> WindowedStream:
        """Cut the records of each key into windows."""
        return WindowedStream(self, window_assigner)

    def count_window(self, size: int, slide: int = 0) -> WindowedStream:
        """Windows of `size` records of a key; with `slide`, one that begins at every `slide`-th record."""
        return self.window(_count_windows(size, slide))

    def rebalance(self) -> DataStream:
        self._keeps_its_key("rebalance")

    def rescale(self) -> DataStream:
        self._keeps_its_key("rescale")

    def shuffle(self) -> DataStream:
        self._keeps_its_key("shuffle")

    def forward(self) -> DataStream:
        self._keeps_its_key("forward")

    def broadcast(self, *broadcast_state_descriptors: MapStateDescriptor) -> NoReturn:
        self._keeps_its_key("broadcast")

    def partition_custom(
        self, partitioner: Partitioner | Callable[[Any, int], int], key_selector: KeyLike
    ) -> DataStream:
        self._keeps_its_key("partition_custom")

    def _keeps_its_key(self, call: str) -> NoReturn:
        raise JobDefinitionError(
            f"{call}() on a keyed stream would tear records from their keys. Call it before key_by(), "
            "or after the operator that works per key."
        )

    def _may_keep_state(self, func: Any) -> bool:
        # State is had from the context that open() or initialize_state() gets; a plain callable never sees one.
        opens = isinstance(func, Function) and type(func).open is not Function.open
        return opens or isinstance(func, CheckpointedFunction)

    def _reduced(self, name: str, func: Any) -> DataStream:
        kept = self.get_type()
        return self._then(name, ReduceFactory(func, Types.ANY() if kept is None else kept), kept)

    def _aggregated(self, name: str, func: FieldReduce) -> DataStream:
        kept = self.get_type()
        is_the_value = func.field == 0 and isinstance(kept, BasicType)
        if not is_the_value:
            resolve_field(kept, func.field, f"{name}()")
        return self._reduced(name, func)

    def _with_state(
        self, name: str, func: Any, state_type: TypeLike | None, output_type: TypeLike | None, flat: bool
    ) -> DataStream:
        if not callable(func) or isinstance(func, Function):
            raise JobDefinitionError(
                f"{name}() got {func!r}; wanted a function (value, state) -> (result, new state). "
                "For a function object with state of its own use map(), flat_map() or process()."
            )
        state = Types.ANY() if state_type is None else type_of(state_type)
        return self._then(name, WithStateFactory(func, state, flat), output_type)


def _count_windows(size: int, slide: int) -> WindowAssigner:
    return CountSlidingWindowAssigner.of(size, slide) if slide else CountTumblingWindowAssigner.of(size)


def with_timestamp_field(strategy: WatermarkStrategy, type_info: TypeInformation | None) -> WatermarkStrategy:
    """The strategy, knowing the row field that its assigner merely returns, if that is so."""
    if not isinstance(strategy, WatermarkStrategy):
        raise JobDefinitionError(
            f"{strategy!r} is no WatermarkStrategy. Give WatermarkStrategy.for_monotonous_timestamps(), or "
            "no_watermarks() for a stream without event time."
        )
    if strategy.assigner is None:
        return strategy
    traced = traced_fields(strategy.assigner, type_info, further_arguments=1)
    return replace(strategy, timestamp_field=traced[0][0]) if traced is not None and traced[1] else strategy


def _check_kind(call: str, func: Any, wanted: type[Function]) -> None:
    if isinstance(func, type) and issubclass(func, Function):
        raise JobDefinitionError(f"{call} got the class {func.__name__}. Write {func.__name__}(...).")
    if not isinstance(func, wanted):
        raise JobDefinitionError(
            f"{call} got {func!r}; wanted a {wanted.__name__}. For a plain function use flat_map()."
        )
