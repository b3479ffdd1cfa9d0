"""Small graphs and connectors for tests of the plan. Nothing here runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headrace.connectors.collection import CollectionSource
from headrace.connectors.sink import Sink, SinkGuarantee, SinkWriter, WriterContext
from headrace.operators.factories import FilterFactory, MapFactory, ProcessFactory, SinkFactory, SourceFactory
from headrace.operators.factory import OperatorFactory
from headrace.operators.functions import KeyedProcessFunction
from headrace.operators.watermarks import WatermarkStrategy
from headrace.plan.builder import Draft, Outlet, build_graph
from headrace.plan.chaining import plan_job
from headrace.plan.graph import Hash, JobPlan, KeySpec, Partitioning, StreamGraph


class ForgetfulSource(CollectionSource):
    """Cannot go back to a saved position."""

    replayable = False


class SilentWriter(SinkWriter):
    """Takes records and does nothing with them."""

    def write(self, value: Any, timestamp: int | None) -> None:
        pass


class PromisingSink(Sink):
    """Promises whatever it is told to."""

    def __init__(self, guarantee: SinkGuarantee) -> None:
        self.guarantee = guarantee

    def create_writer(self, context: WriterContext) -> SinkWriter:
        return SilentWriter()


class Remember(KeyedProcessFunction):
    """Works per key."""

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> list[Any]:
        return [value]


def by_key() -> Hash:
    return Hash(KeySpec(str))


class Program:
    """Declares operators as a user's program does, with as little typing as possible."""

    def __init__(self, parallelism: int = 2) -> None:
        self.parallelism = parallelism
        self.drafts: list[Draft] = []

    def add(
        self,
        name: str,
        factory: OperatorFactory,
        *inputs: Draft | tuple[Draft, Partitioning | None],
        parallelism: int | None = None,
        uid: str | None = None,
        **more: Any,
    ) -> Draft:
        outlets = tuple((Outlet(*i) if isinstance(i, tuple) else Outlet(i), 0) for i in inputs)
        draft = Draft(name, factory, outlets, parallelism=parallelism, uid=uid, **more)
        self.drafts.append(draft)
        return draft

    def source(self, name: str = "source", *, replayable: bool = True, **more: Any) -> Draft:
        source = CollectionSource([1]) if replayable else ForgetfulSource([1])
        return self.add(name, SourceFactory(source, WatermarkStrategy.no_watermarks()), **more)

    def map(self, name: str, *inputs: Any, **more: Any) -> Draft:
        return self.add(name, MapFactory(str), *inputs, **more)

    def filter(self, name: str, *inputs: Any, **more: Any) -> Draft:
        return self.add(name, FilterFactory(bool), *inputs, **more)

    def keyed(self, name: str, *inputs: Draft, **more: Any) -> Draft:
        return self.add(name, ProcessFactory(Remember(), keyed=True), *((i, by_key()) for i in inputs), **more)

    def sink(self, name: str, *inputs: Any, guarantee: SinkGuarantee = SinkGuarantee.TWO_PHASE, **more: Any) -> Draft:
        return self.add(name, SinkFactory(PromisingSink(guarantee)), *inputs, **more)

    def graph(self, **settings: Any) -> StreamGraph:
        return build_graph("job", self.drafts, parallelism=self.parallelism, **settings)

    def plan(self, **settings: Any) -> JobPlan:
        return plan_job(self.graph(**settings))


def chain_names(plan: JobPlan) -> list[tuple[int, list[str]]]:
    """Each chain as its level and the names of its operators."""
    return [(chain.level, [plan.graph.node(n).name for n in chain.nodes]) for chain in plan.chains]


def slots_of(plan: JobPlan, name: str) -> tuple[int, ...]:
    """The slots of the chain that has this operator."""
    return next(c.slots for c in plan.chains if name in [plan.graph.node(n).name for n in c.nodes])


def names(nodes: Sequence[Any]) -> list[str]:
    return [node.name for node in nodes]
