"""A pattern operator by itself: a real backend below, a list for its output, a clock that stands still."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from backend_workshop import FLAVOURS, MAX_PARALLELISM
from local_store import LocalStore

from headrace.cep.functions import PatternProcessFunction, Selecting
from headrace.cep.operator import PatternFactory, PatternOperator
from headrace.cep.pattern import Pattern
from headrace.checkpoint.handles import SubtaskSnapshot
from headrace.operators.base import Attention, Block, OperatorContext, Restored
from headrace.operators.functions import OutputTag
from headrace.state.backend import BackendContext
from headrace.state.key_groups import group_range
from headrace.state.keys import stored_form
from headrace.types.information import TypeInformation, Types

EVENT = Types.STRING()


class ListOutputs:
    """Everything an operator sent, in order."""

    def __init__(self) -> None:
        self.main: list[tuple[Any, int | None]] = []
        self.sides: dict[str, list[tuple[Any, int | None]]] = {}
        self.watermarks: list[int] = []

    def emit(self, value: Any, timestamp: int | None) -> None:
        self.main.append((value, timestamp))

    def emit_columns(self, batch: Any, timestamps: Any) -> None:
        raise AssertionError("patterns emit records one by one")

    def side(self, tag_id: str, value: Any, timestamp: int | None) -> None:
        self.sides.setdefault(tag_id, []).append((value, timestamp))

    def watermark(self, time_ms: int) -> None:
        self.watermarks.append(time_ms)

    def idle(self, is_idle: bool) -> None: ...

    def end(self) -> None: ...


def joined(match: dict[str, list[Any]]) -> str:
    return " ".join(str(event) for events in match.values() for event in events)


@dataclass
class Running:
    """One subtask of a pattern, and what came out of it."""

    operator: PatternOperator
    outputs: ListOutputs
    backend: Any
    now_ms: int = 0

    def feed(self, *records: tuple[Any, Any, int | None]) -> Running:
        """Records as (key, event, timestamp), the way a task hands them over."""
        keys, values, times = zip(*records, strict=True)
        block = Block(list(values), [stored_form(key) for key in keys], list(times))
        self.operator.process_block(block, Attention())
        return self

    def watermark(self, time_ms: int) -> Running:
        self.operator.watermark(time_ms)
        return self

    def clock(self, time_ms: int) -> Running:
        """Let the clock go on, and timers with it."""
        self.now_ms = time_ms
        due = self.operator.next_processing_time()
        if due is not None and due <= time_ms:
            self.operator.processing_time(time_ms)
        return self

    @property
    def results(self) -> list[Any]:
        return [value for value, _ in self.outputs.main]

    def side(self, tag: OutputTag) -> list[Any]:
        return [value for value, _ in self.outputs.sides.get(tag.tag_id, [])]

    def kept(self) -> dict[str, int]:
        """How many keys have something in each state, and how many timers there are."""
        names = ("_pattern-queue", "_pattern-matches", "_pattern-events", "_pattern-links")
        found = {name: len(list(self.backend.keys(name))) for name in names}
        timers = sum(len(self.backend.timers(domain)) for domain in ("event", "processing"))
        return {name: count for name, count in {**found, "timers": timers}.items() if count}


@dataclass
class OperatorBench:
    """Makes subtasks of one pattern on one kind of backend, from nothing or from snapshots."""

    flavour: str
    root: Path
    running: list[Running] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.store = LocalStore(self.root / "store")

    def start(
        self,
        pattern: Pattern,
        function: PatternProcessFunction | None = None,
        *,
        event_type: TypeInformation = EVENT,
        subtask: int = 0,
        parallelism: int = 1,
        restored: list[SubtaskSnapshot] | None = None,
        **settings: Any,
    ) -> Running:
        local = self.root / f"local-{len(self.running)}"
        local.mkdir()
        groups = group_range(subtask, parallelism, MAX_PARALLELISM)
        backend = FLAVOURS[self.flavour](BackendContext("pattern", subtask, groups, MAX_PARALLELISM, local))
        factory = PatternFactory(pattern, function or Selecting(joined, flat=False), event_type, **settings)
        operator = factory.create()
        assert isinstance(operator, PatternOperator)
        outputs = ListOutputs()
        made = Running(operator, outputs, backend)
        context = OperatorContext(
            job_id="job",
            uid="pattern",
            name="pattern",
            declared_at="",
            subtask=subtask,
            parallelism=parallelism,
            max_parallelism=MAX_PARALLELISM,
            attempt=1,
            job_parameters={},
            backend=backend,
            now_ms=lambda: made.now_ms,
            notify=lambda message: None,
            wake=lambda: None,
            checkpointing=True,
            exactly_once_output=True,
        )
        operator.setup(context, outputs)
        if restored is not None:
            keyed = [snapshot.keyed for snapshot in restored if snapshot.keyed is not None]
            operator.restore(Restored(keyed=keyed), self.store)
        operator.open()
        self.running.append(made)
        return made

    def snapshot(self, running: Running, *, canonical: bool = False) -> SubtaskSnapshot:
        running.operator.prepare_snapshot(1)
        return running.operator.snapshot(1, canonical=canonical).finish(self.store)

    def close(self) -> None:
        for running in self.running:
            running.operator.close()
