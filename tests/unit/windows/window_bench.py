"""Window operators driven by hand: records, watermarks, a clock that a test moves, snapshots and restores."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from local_store import LocalStore

from headrace.backends.heap.backend import HeapBackend
from headrace.backends.heap.options import HeapOptions
from headrace.backends.rocksdb.backend import RocksDBBackend
from headrace.backends.rocksdb.options import RocksDBOptions
from headrace.checkpoint.handles import OperatorStateShare, SubtaskSnapshot
from headrace.operators.base import Attention, Block, OperatorContext, Restored
from headrace.operators.windows.assigners import WindowAssigner
from headrace.operators.windows.calls import PassOn, WindowCall
from headrace.operators.windows.operator import LATE_RECORDS, WindowOperator
from headrace.operators.windows.specification import WindowSpec
from headrace.state.backend import BackendContext
from headrace.state.key_groups import group_range, key_group
from headrace.state.keys import raw_key, stored_form
from headrace.types.information import Types

MAX_PARALLELISM = 16

BACKENDS = {
    "heap": lambda context: HeapBackend(context, HeapOptions(asynchronous_snapshots=False)),
    "rocksdb": lambda context: RocksDBBackend(context),
    "rocksdb-cramped": lambda context: RocksDBBackend(context, RocksDBOptions(cache_entries=4, dirty_limit=2)),
}


class Collected:
    """An operator's outputs, kept in lists."""

    def __init__(self) -> None:
        self.records: list[Any] = []
        self.timestamps: list[int | None] = []
        self.sides: list[tuple[str, Any]] = []
        self.watermarks: list[int] = []

    def emit(self, value: Any, timestamp: int | None) -> None:
        self.records.append(value)
        self.timestamps.append(timestamp)

    def emit_columns(self, batch: Any, timestamps: Any) -> None:
        raise AssertionError("window operators emit rows")

    def side(self, tag_id: str, value: Any, timestamp: int | None) -> None:
        self.sides.append((tag_id, value))

    def watermark(self, time_ms: int) -> None:
        self.watermarks.append(time_ms)

    def idle(self, is_idle: bool) -> None: ...

    def end(self) -> None: ...


@dataclass
class Driven:
    """One subtask of a window operator."""

    operator: WindowOperator
    outputs: Collected
    clock: list[int]
    groups: range

    def send(self, *records: tuple[Any, Any, int | None]) -> None:
        """Records as (key, value, timestamp), in blocks as a task has them."""
        if not records:
            return
        times = [time for _, _, time in records]
        block = Block(
            [value for _, value, _ in records],
            [stored_form(key) for key, _, _ in records],
            None if None in times else times,  # type: ignore[arg-type]
        )
        while block.position < len(block.values):
            self.operator.process_block(block, Attention())

    def owns(self, key: Any) -> bool:
        return key_group(stored_form(key), MAX_PARALLELISM) in self.groups

    def watermark(self, time_ms: int) -> None:
        self.operator.watermark(time_ms)

    def tick(self, now_ms: int) -> None:
        """The clock moves, and timers that are due fire."""
        self.clock[0] = now_ms
        due = self.operator.next_processing_time()
        if due is not None and due <= now_ms:
            self.operator.processing_time(now_ms)

    def take(self) -> list[Any]:
        """What came out since the last call."""
        taken = self.outputs.records[:]
        self.outputs.records.clear()
        self.outputs.timestamps.clear()
        return taken

    def take_late(self) -> list[Any]:
        taken = [value for _, value in self.outputs.sides]
        self.outputs.sides.clear()
        return taken

    @property
    def late_records(self) -> int:
        return self.operator.context.metrics[LATE_RECORDS].get_count()  # type: ignore[no-any-return]

    @property
    def timers(self) -> list[tuple[int, Any]]:
        """(time, key) of all timers, event time first."""
        backend = self.operator.context.backend
        assert backend is not None
        return [(time, raw_key(key)) for domain in ("event", "processing") for time, key, _ in backend.timers(domain)]  # type: ignore[attr-defined]

    def entries(self) -> int:
        """How many entries all states hold together, as a snapshot sees them."""
        backend = self.operator.context.backend
        assert backend is not None
        if isinstance(backend, HeapBackend):
            return backend.entry_count()
        assert isinstance(backend, RocksDBBackend)
        keeper = backend._opened()
        keeper.write_all()
        return sum(1 for family in keeper.database.families.values() for _ in family.scan(b"", b"\xff\xff"))


@dataclass
class WindowBench:
    """Makes operators of one kind of backend."""

    backend: str
    root: Path
    made: list[WindowOperator] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.store = LocalStore(self.root / "store")
        self._numbers = count()

    def operator(
        self,
        assigner: WindowAssigner,
        *,
        call: WindowCall | None = None,
        subtask: int = 0,
        parallelism: int = 1,
        restored: Sequence[SubtaskSnapshot] = (),
        backend: str | None = None,
        **options: Any,
    ) -> Driven:
        """An open operator. Untyped elements, the assigner's own trigger, unless `options` say otherwise."""
        options.setdefault("trigger", assigner.get_default_trigger(None))
        options.setdefault("element_type", Types.ANY())
        if options.get("aggregate_function") is not None:
            options.setdefault("accumulator_type", Types.ANY())
        spec = WindowSpec(assigner=assigner, call=PassOn() if call is None else call, **options)
        return self.opened(spec, subtask, parallelism, restored, backend)

    def opened(
        self,
        spec: WindowSpec,
        subtask: int = 0,
        parallelism: int = 1,
        restored: Sequence[SubtaskSnapshot] = (),
        backend: str | None = None,
    ) -> Driven:
        """An open operator for what a program said."""
        operator = spec.operator()
        groups = group_range(subtask, parallelism, MAX_PARALLELISM)
        local = self.root / f"local-{next(self._numbers)}"
        local.mkdir(parents=True)
        made = BACKENDS[backend or self.backend](BackendContext("windows", subtask, groups, MAX_PARALLELISM, local))
        clock = [1_000_000]
        context = OperatorContext(
            job_id="job",
            uid="windows",
            name="windows",
            declared_at="test.py:1",
            subtask=subtask,
            parallelism=parallelism,
            max_parallelism=MAX_PARALLELISM,
            attempt=1,
            job_parameters={},
            backend=made,
            now_ms=lambda: clock[0],
            notify=lambda message: None,
            wake=lambda: None,
            checkpointing=True,
            exactly_once_output=False,
        )
        outputs = Collected()
        operator.setup(context, outputs)  # type: ignore[arg-type]
        self.made.append(operator)
        if restored:
            keyed = [s.keyed for s in restored if s.keyed is not None]
            mine = [k for k in keyed if k.first_group < groups.stop and groups.start <= k.last_group]
            operator.restore(Restored(mine, _united(restored)), self.store)
        operator.open()
        return Driven(operator, outputs, clock, groups)

    def snapshot(self, driven: Driven, checkpoint_id: int = 1, *, canonical: bool = False) -> SubtaskSnapshot:
        return driven.operator.snapshot(checkpoint_id, canonical=canonical).finish(self.store)

    def close(self) -> None:
        for operator in self.made:
            operator.close()


def _united(snapshots: Iterable[SubtaskSnapshot]) -> list[OperatorStateShare]:
    """Union list states as every subtask gets them."""
    shares: dict[str, OperatorStateShare] = {}
    for share in (share for snapshot in snapshots for share in snapshot.operator_state):
        known = shares.get(share.shape.name)
        elements = share.elements if known is None else known.elements + share.elements
        shares[share.shape.name] = OperatorStateShare(share.shape, elements)
    return list(shares.values())
