"""Histories of rows, watermarks and restores, and what an operator or a job on columns makes of them beside a model."""

from __future__ import annotations

from collections import Counter
from itertools import groupby
from typing import Any, Protocol

import pyarrow as pa
from column_examples import SALE, batch_of, sale
from hypothesis import strategies as st

from headrace import (
    EmbeddedRocksDBStateBackend,
    HashMapStateBackend,
    OutputTag,
    Row,
    StreamExecutionEnvironment,
    WatermarkStrategy,
)
from headrace.operators.base import Attention, ColumnBlock
from headrace.state.key_groups import key_group
from headrace.testing import JobHarness, ManualSource, OperatorHarness

BACKENDS = {"heap": HashMapStateBackend, "rocksdb": EmbeddedRocksDBStateBackend}
EXAMPLES = {"heap": 15, "rocksdb": 4}
"""Histories for each; a database is opened at every restore."""
LATE = OutputTag("late", SALE)
NO_TIME = WatermarkStrategy.no_watermarks()
GROUPS = 16

SALES = st.builds(
    sale,
    st.sampled_from("abcde"),
    st.one_of(st.none(), st.integers(-100, 100)),
    st.one_of(st.none(), st.integers(-40, 40).map(lambda n: n / 4)),
)
RECORD = st.tuples(st.just("record"), SALES, st.integers(0, 60))
STEPS = st.lists(
    st.one_of(
        RECORD,
        RECORD,
        RECORD,
        st.tuples(st.just("watermark"), st.integers(0, 70)),
        st.tuples(st.just("restore"), st.integers(1, 3)),
    ),
    min_size=1,
    max_size=40,
)


class Model(Protocol):
    """Windows in plain Python."""

    fired: list[tuple[Any, ...]]
    late: list[Row]

    def take(self, batch: list[tuple[Row, int]]) -> None:
        """Rows that come together, each with its time."""

    def advance(self, time: int) -> None:
        """The watermark."""


def compare_operator(build: Any, model: Model, backend: str, steps: list[Any], as_columns: bool) -> None:
    """The operator gives what the model gives, late rows too, and leaves nothing behind."""
    with OperatorHarness.of(build, SALE, backend=backend, max_parallelism=GROUPS) as harness:
        for kind, group in groupby([*steps, ("watermark", 10_000)], key=lambda step: step[0]):
            found = list(group)
            if kind == "record":
                records = [(row, time) for _, row, time in found]
                for batch in [records] if as_columns else [[record] for record in records]:
                    model.take(batch)
                feed(harness, records, as_columns)
                continue
            for _, argument in found:
                if kind == "watermark":
                    model.advance(argument)
                    harness.watermark(argument)
                else:
                    harness.snapshot()
                    harness.crash(parallelism=argument)
        results = [tuple(row) for row in harness.take()]
        late = harness.side_output(LATE)
        left = harness.timers()
        states = [operator.context.backend for operator in harness.operators]
        kept = sum(state.entry_count() for state in states if state is not None)
    assert Counter(results) == Counter(model.fired)
    assert Counter(map(tuple, late)) == Counter(map(tuple, model.late))
    assert left == []
    # RocksDB only estimates how much it has.
    assert backend != "heap" or kept == 0


def feed(harness: OperatorHarness, records: list[tuple[Row, int]], as_columns: bool) -> None:
    """Rows one by one, or what each subtask gets of them as one batch of columns."""
    if not as_columns:
        for row, time in records:
            harness.process(row, time)
        return
    for subtask, operator in enumerate(harness.operators):
        own = [(r, t) for r, t in records if key_group(r.shop, GROUPS) * harness.parallelism // GROUPS == subtask]
        if own:
            block = ColumnBlock(batch_of([r for r, _ in own]), pa.array([t for _, t in own], pa.int64()))
            operator.process_block(block, Attention())


def program(source: ManualSource, width: int, backend: str, build: Any, *, unaligned: bool = False) -> Any:
    """A source in one subtask, and behind an exchange what `build` makes of it, in `width` of them."""
    env = StreamExecutionEnvironment()
    env.set_parallelism(width)
    env.set_state_backend(BACKENDS[backend]())
    if unaligned:
        env.enable_checkpointing(1_000)
        env.get_checkpoint_config().enable_unaligned_checkpoints()
    return build(env.from_source(source, NO_TIME, "sales").uid("sales").set_parallelism(1)).uid("windows")


def results_of_job(build: Any, model: Model, backend: str, steps: list[Any]) -> list[tuple[Any, ...]]:
    """What a job gives through the history, in order; the model sees each row by itself."""
    source = ManualSource(SALE)

    def launch(width: int, restored: Any = None) -> JobHarness:
        return JobHarness(program(source, width, backend, build), restored=restored)

    results: list[Any] = []
    job = launch(2)
    for step in steps:
        if step[0] == "record":
            source.emit(step[1], timestamp=step[2])
            model.take([step[1:]])
        elif step[0] == "watermark":
            job.watermark(step[1])
            model.advance(step[1])
        else:
            taken = job.checkpoint()
            results += job.results
            job.close()
            job = launch(step[1], taken)
    source.end()
    model.advance(10_000)
    with job:
        results += job.run_to_end()
    return [tuple(row) for row in results]


def driven(job: JobHarness, source: ManualSource, steps: list[Any], *, crash: bool) -> list[Any]:
    """What the job gives through the history, at one width; with a crash after each checkpoint if asked for."""
    for step in steps:
        if step[0] == "record":
            source.emit(step[1], timestamp=step[2])
        elif step[0] == "watermark":
            job.watermark(step[1])
        else:
            job.checkpoint()
            if crash:
                job.crash()
    source.end()
    return job.run_to_end()
