"""A subtask of a chain: its operators, wired so that one calls the next, and its inputs from other tasks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from headrace.errors import TypeMismatchError
from headrace.operators.base import Emit, Operator, OperatorContext, Outputs, failure_in
from headrace.operators.source import SourceOperator
from headrace.operators.watermarks import MAX_WATERMARK, MIN_WATERMARK
from headrace.plan.graph import Chain, Edge, JobPlan, Node
from headrace.runtime.task.cells import Address
from headrace.runtime.task.edges import EdgeWriter
from headrace.runtime.task.records import EdgeCodec
from headrace.runtime.task.routing import producers_of
from headrace.types.columns import batch_to_values, rows_to_batch, schema_of
from headrace.types.conforming import conformer
from headrace.types.information import TypeInformation


class ChainOutputs(Outputs):
    """Where one operator's results go: operators in the same task are called, edges are written to."""

    def __init__(self, output_type: TypeInformation | None, name: str) -> None:
        self._output_type = output_type
        self._schema = None if output_type is None else schema_of(output_type)
        self._columns_from: int | None = None
        """As many records at once are better off as columns; None: none are."""
        self._conform = conformer(output_type, f'output of operator "{name}"')
        self._operators: list[Operator] = []
        self._writers: list[EdgeWriter] = []
        self._side: dict[str, list[Emit]] = {}
        self._side_writers: list[EdgeWriter] = []
        self._side_operators: list[Operator] = []
        self.emit: Emit = _drop

    def add_operator(self, operator: Operator, tag: str | None) -> None:
        if tag is None:
            self._operators.append(operator)
        else:
            self._side.setdefault(tag, []).append(operator.process)
            self._side_operators.append(operator)

    def add_writer(self, writer: EdgeWriter) -> None:
        if writer.tag is None:
            self._writers.append(writer)
        else:
            self._side.setdefault(writer.tag, []).append(writer.append)
            self._side_writers.append(writer)

    def seal(self, operator: Operator) -> None:
        """All targets are known: bind `emit` to the one target, or to a loop over several."""
        targets: list[Emit] = [o.process for o in self._operators] + [w.append for w in self._writers]
        if not targets:
            return
        if self._schema is not None and not self._operators:
            pays = [w.columns_from for w in self._writers]
            self._columns_from = None if None in pays else max(p for p in pays if p is not None)
        only, conform = targets[0], self._conform
        if len(targets) > 1:

            def emit_to_all(value: Any, timestamp: int | None) -> None:
                for target in targets:
                    target(value, timestamp)

            only = emit_to_all
        if conform is None:
            self.emit = only
            return

        def emit_conforming(value: Any, timestamp: int | None) -> None:
            try:
                fitting = conform(value)
            except Exception as error:
                raise failure_in(operator, value, error) from error
            only(fitting, timestamp)

        self.emit = emit_conforming

    def emit_all(self, values: Sequence[Any], timestamps: Sequence[int] | None) -> None:
        # Columns are what they would travel as anyway, and what routes and copies them without a call for each.
        fits = timestamps is None or len(timestamps) == len(values)  # if not, it is told one by one
        batch = self._as_columns(values) if fits else None
        if batch is None:
            super().emit_all(values, timestamps)
        else:
            self.emit_columns(batch, None if timestamps is None else pa.array(timestamps, pa.int64()))

    def _as_columns(self, values: Sequence[Any]) -> pa.RecordBatch | None:
        if self._columns_from is None or len(values) < self._columns_from:
            return None
        assert self._output_type is not None
        assert self._schema is not None
        try:
            return rows_to_batch(self._output_type, values, self._schema)
        except TypeMismatchError:
            return None  # one by one, the record that does not fit is named

    def emit_columns(self, batch: pa.RecordBatch, timestamps: pa.Array | None) -> None:
        for writer in self._writers:
            writer.append_columns(batch, timestamps)
        rest = [o for o in self._operators if not o.process_columns(batch, timestamps)]
        if not rest:
            return
        assert self._output_type is not None
        values = batch_to_values(self._output_type, batch)
        times = [None] * len(values) if timestamps is None else timestamps.to_pylist()
        for operator in rest:
            process = operator.process
            for value, timestamp in zip(values, times, strict=True):
                process(value, timestamp)

    def side(self, tag_id: str, value: Any, timestamp: int | None) -> None:
        for target in self._side.get(tag_id, ()):
            target(value, timestamp)

    def watermark(self, time_ms: int) -> None:
        for operator in (*self._operators, *self._side_operators):
            operator.watermark(time_ms)
        for writer in (*self._writers, *self._side_writers):
            writer.watermark(time_ms)

    def idle(self, is_idle: bool) -> None:
        for operator in (*self._operators, *self._side_operators):
            operator.idle(is_idle)
        for writer in (*self._writers, *self._side_writers):
            writer.idle(is_idle)

    def end(self) -> None:
        for operator in (*self._operators, *self._side_operators):
            operator.end_input()
        for writer in (*self._writers, *self._side_writers):
            writer.end()


def _drop(value: Any, timestamp: int | None) -> None:
    """Results that nobody asked for."""


@dataclass(slots=True)
class _Producer:
    watermark: int = MIN_WATERMARK
    idle: bool = False
    ended: bool = False


class _Input:
    """Event time of one input of an operator: the least of its producers' watermarks, idle ones left out.

    When the last of them goes idle, none of them will move time any more: then it is the greatest, as in Flink. A
    producer at the end of time counts as ended, and as neither: if the others are merely idle, they may wake up, and
    their timers must not fire before their records.
    """

    def __init__(self, producers: Sequence[_Producer]) -> None:
        self._producers = producers
        self.watermark = MIN_WATERMARK
        self.idle = False
        self.over = False
        """All producers are at the end of time."""

    def update(self) -> None:
        live = [p for p in self._producers if not p.ended and p.watermark < MAX_WATERMARK]
        awake = [p.watermark for p in live if not p.idle]
        self.over = not live
        self.idle = bool(live) and not awake
        reached = min(awake) if awake else max((p.watermark for p in live), default=MAX_WATERMARK)
        self.watermark = max(self.watermark, reached)


class ChainInput:
    """Watermarks, idleness and ends of all producers of a chain's head.

    Each edge and producer counts alone. The head's event time is the least of its inputs', idle ones left out;
    `input_of` says which input an edge feeds, if there are several.
    """

    def __init__(
        self, head: Operator, producers: Sequence[tuple[int, int]], input_of: Mapping[int, int] | None = None
    ) -> None:
        self._head = head
        self._producers = {key: _Producer() for key in producers}
        by_input: dict[int, list[_Producer]] = defaultdict(list)
        for (edge, _), producer in self._producers.items():
            by_input[0 if input_of is None else input_of[edge]].append(producer)
        self._inputs = [_Input(each) for each in by_input.values()]
        self._watermark = MIN_WATERMARK
        self._idle = False
        self.ended = False

    def watermark(self, address: Address, time_ms: int) -> None:
        producer = self._producers[address.edge, address.producer]
        producer.watermark = max(producer.watermark, time_ms)
        producer.idle = False
        self._update()

    def idle(self, address: Address, is_idle: bool) -> None:
        self._producers[address.edge, address.producer].idle = is_idle
        self._update()

    def end(self, address: Address) -> None:
        producer = self._producers[address.edge, address.producer]
        if producer.ended:
            # It was in flight when the restored checkpoint was taken, and the producer has said it again.
            return
        producer.ended = True
        if all(p.ended for p in self._producers.values()):
            self.ended = True
            self._head.end_input()
        else:
            self._update()

    def _update(self) -> None:
        counted = [i for i in self._inputs if not i.idle]
        for one in self._inputs:
            one.update()
        live = [i for i in self._inputs if not i.over]
        awake = [i for i in live if not i.idle]
        if self._idle and (awake or not live):
            self._idle = False
            self._head.idle(False)
        # An input that goes idle now counts once more, with all that its producers have reached.
        reached = min((i.watermark for i in live if i in counted or not i.idle), default=None)
        self._advance(reached if live else MAX_WATERMARK)
        if live and not awake and not self._idle:
            self._idle = True
            self._head.idle(True)

    def _advance(self, reached: int | None) -> None:
        if reached is not None and reached > self._watermark:
            self._watermark = reached
            self._head.watermark(reached)


class ChainSubtask:
    """One subtask of one chain in this task."""

    def __init__(self, chain: Chain, subtask: int, operators: dict[int, Operator], input: ChainInput | None) -> None:
        self.chain = chain
        self.subtask = subtask
        self.operators = operators
        """By node id, in topological order."""
        self.input = input
        """None for a chain that begins with a source."""
        self.head = operators[chain.nodes[0]]

    @property
    def source(self) -> SourceOperator | None:
        return self.head if isinstance(self.head, SourceOperator) else None

    @property
    def ended(self) -> bool:
        return self.input.ended if self.input is not None else self._source_ended

    _source_ended = False

    def end_source(self) -> None:
        """The reader has read its last split: event time ends here."""
        self._source_ended = True
        self.head.end_input()


def build_subtask(
    plan: JobPlan,
    chain: Chain,
    subtask: int,
    make_context: Callable[[Node, int], OperatorContext],
    make_writer: Callable[[Edge, Node, int], EdgeWriter],
) -> tuple[ChainSubtask, list[EdgeWriter], dict[int, EdgeCodec]]:
    """Create and wire the operators of a chain; also its edge writers and the codecs of its in-edges."""
    graph = plan.graph
    nodes = [graph.node(n) for n in chain.nodes]
    operators = {node.id: node.factory.create() for node in nodes}
    writers: list[EdgeWriter] = []
    outputs: dict[int, ChainOutputs] = {}
    # From the last to the first, so that every operator's targets exist when it is set up.
    for node in reversed(nodes):
        out = outputs[node.id] = ChainOutputs(node.output_type, node.name)
        for edge in graph.outputs(node.id):
            if edge.id in plan.exchanged:
                writer = make_writer(edge, node, subtask)
                writer.operator = operators[node.id]
                writers.append(writer)
                out.add_writer(writer)
            else:
                out.add_operator(operators[edge.target], edge.tag)
        out.seal(operators[node.id])
        operators[node.id].setup(make_context(node, subtask), out)
    in_edges = graph.inputs(chain.nodes[0])
    codecs = {edge.id: EdgeCodec(edge) for edge in in_edges}
    chain_input = None
    if in_edges:
        producers = [
            (edge.id, producer)
            for edge in in_edges
            for producer in producers_of(edge, subtask, graph.node(edge.source).parallelism, chain.parallelism)
        ]
        chain_input = ChainInput(operators[chain.nodes[0]], producers, {edge.id: edge.input for edge in in_edges})
        if not producers:
            # A rescale edge from fewer producers may leave a subtask without any: its input is over at once.
            chain_input.ended = True
    return ChainSubtask(chain, subtask, operators, chain_input), writers, codecs
