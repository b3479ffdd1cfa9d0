"""Cells of columns on their way to an operator that takes columns: undecoded, aligned, and processed as a whole."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pyarrow as pa
import pytest
from column_examples import SALE, batch_of, sale

from headrace import StreamExecutionEnvironment, WatermarkStrategy
from headrace.operators.base import Block, ColumnBlock
from headrace.plan.graph import Edge, Forward, Hash
from headrace.plan.keys import key_spec
from headrace.runtime.task.records import COLUMNS_FROM, EdgeCodec
from headrace.testing import JobHarness, ManualSource

ROWS = [sale(f"shop-{n % 7}", n) for n in range(COLUMNS_FROM)]
TIMES = list(range(COLUMNS_FROM))


def decoded(codec: EdgeCodec, rows: list[Any], keys: list[Any] | None) -> Block:
    flags, parts = codec.encode(rows, keys, TIMES[: len(rows)])
    return codec.decode_undivided(flags, memoryview(b"".join((b"\0" * 20, *parts)))[20:])


@pytest.mark.parametrize("keyed_by", ["nothing", "a column", "a function"])
def test_a_cell_of_columns_comes_as_the_batch_that_was_sent(keyed_by: str) -> None:
    partitioning: Any = {
        "nothing": Forward(),
        "a column": Hash(key_spec("shop", SALE)),
        "a function": Hash(key_spec(lambda row: row.shop.upper(), SALE)),
    }[keyed_by]
    codec = EdgeCodec(Edge(0, 0, 1, partitioning=partitioning, type=SALE))
    keys = None if keyed_by == "nothing" else [row.shop.upper() for row in ROWS]
    block = decoded(codec, ROWS, keys)
    assert isinstance(block, ColumnBlock)
    assert block.batch.equals(batch_of(ROWS))
    assert block.times is not None
    assert block.times.to_pylist() == TIMES
    assert len(block.values) == 0, "no row was made of any record"
    for array in (*block.batch.columns, block.times):
        # Keys beside the columns must not move them off the places that Arrow's kernels read from.
        assert all(buffer.address % 8 == 0 for buffer in array.buffers() if buffer is not None)


def test_a_cell_of_few_records_comes_as_rows() -> None:
    block = decoded(EdgeCodec(Edge(0, 0, 1, type=SALE)), ROWS[:3], None)
    assert not isinstance(block, ColumnBlock)
    assert block.values == ROWS[:3]


@pytest.mark.parametrize("unaligned", [False, True])
def test_a_batch_that_is_begun_is_finished_before_the_task_does_anything_else(unaligned: bool) -> None:
    """Whatever asks for the mailbox during a batch, a barrier too, comes before the batch or after it."""
    source = ManualSource(SALE)
    job: JobHarness
    begun: list[int] = []
    finished: list[int] = []

    def wake(batch: pa.RecordBatch) -> Any:
        assert begun == finished
        begun.append(batch.num_rows)
        for part in (batch.slice(0, 1), batch.slice(1)):
            job.operators("woken")[0].context.wake()
            yield part
        finished.append(batch.num_rows)

    env = StreamExecutionEnvironment()
    env.set_parallelism(1)
    if unaligned:
        env.enable_checkpointing(1_000)
        env.get_checkpoint_config().enable_unaligned_checkpoints()
    stream = env.from_source(source, WatermarkStrategy.no_watermarks(), "sales").rebalance().map_batches(wake)
    with JobHarness(stream.uid("woken")) as job:
        source.emit(*[sale("a", n) for n in range(3_000)])
        while not begun:
            job.run(turns=4)
        assert begun == finished
        job.checkpoint(in_flight=True)
        job.crash()
        source.end()
        results = job.run_to_end()
    assert max(begun) > 1
    assert Counter(row.amount for row in results) == Counter(range(3_000))
