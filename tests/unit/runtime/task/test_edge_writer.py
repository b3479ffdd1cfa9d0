"""Edge writers: who gets a record, and when a cell leaves."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from edge_examples import SENSOR, block_of, by_field, plan_with

from headrace.errors import InvalidKeyError, JobDefinitionError, TypeMismatchError
from headrace.operators.base import Attention
from headrace.plan.graph import (
    Broadcast,
    Custom,
    Edge,
    Forward,
    Hash,
    KeySpec,
    Partitioning,
    Rebalance,
    Rescale,
    Shuffle,
)
from headrace.runtime.task.cells import END, IDLE, RECORDS, WATERMARK, address_of, read_records_header
from headrace.runtime.task.edges import CELL_BYTES, MOST_RECORDS, Clock, EdgeWriter
from headrace.runtime.task.output import OutputQueue
from headrace.runtime.task.records import COLUMNS, EdgeCodec
from headrace.runtime.task.routing import Router
from headrace.state.key_groups import key_group
from headrace.state.keys import stored_form
from headrace.types.information import TypeInformation, Types
from headrace.types.rows import Row

KEYED = Types.ROW_NAMED(["key", "n"], [Types.LONG(), Types.LONG()])


class Wires:
    """A writer between a producer and `targets` subtasks, and what it put on the way."""

    def __init__(
        self,
        partitioning: Partitioning,
        type_info: TypeInformation | None = None,
        *,
        targets: int = 3,
        producer: int = 0,
        producers: int = 2,
    ) -> None:
        self.edge = Edge(0, 0, 1, partitioning=partitioning, type=type_info)
        plan = plan_with([self.edge], {0: producers, 1: targets}, {0: 0, 1: 1})
        self.queue = OutputQueue(producer, targets, Attention())
        self.clock = Clock()
        self.writer = EdgeWriter(
            self.edge,
            level=0,
            producer=producer,
            producers=producers,
            target_parallelism=targets,
            target_max_parallelism=128,
            router=Router(plan),
            queue=self.queue,
            clock=self.clock,
        )
        self.codec = EdgeCodec(self.edge)

    def cells(self) -> list[tuple[int, bytes]]:
        cells = list(self.queue._cells)
        self.queue._cells.clear()
        self.queue._bytes = 0
        return cells

    def received(self) -> dict[int, list[Any]]:
        """Flush, and say what each subtask would get; keys are checked on the way."""
        self.writer.flush()
        by_target: dict[int, list[Any]] = defaultdict(list)
        for slot, data in self.cells():
            assert address_of(data).target == slot
            block = block_of(self.codec, data)
            if isinstance(self.edge.partitioning, Hash):
                select = self.edge.partitioning.key.selector
                assert block.keys == [stored_form(select(v)) for v in block.values]
            by_target[slot].extend(block.values)
        return by_target


def columns(rows: list[Row]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"key": [r.key for r in rows], "n": [r.n for r in rows]})


@pytest.mark.parametrize("count", [5, 200])
@pytest.mark.parametrize("targets", [1, 3])
@pytest.mark.parametrize("as_columns", [False, True])
def test_a_record_goes_to_the_owner_of_its_key_group_as_a_value_and_as_a_column(
    count: int, targets: int, as_columns: bool
) -> None:
    wires = Wires(by_field("key"), KEYED, targets=targets)
    rows = [Row(key=n % 17 - 8, n=n) for n in range(count)]
    if as_columns:
        wires.writer.append_columns(columns(rows), None)
    else:
        for row in rows:
            wires.writer.append(row, None)
    received = wires.received()
    assert sum(map(len, received.values())) == count
    for target, values in received.items():
        assert all(key_group(row.key, 128) * targets // 128 == target for row in values)
        assert [row.n for row in values] == sorted(row.n for row in values)


@pytest.mark.parametrize("as_columns", [False, True])
def test_string_keys_are_routed_alike(as_columns: bool) -> None:
    wires = Wires(by_field("id"), SENSOR)
    rows = [Row(id=f"sensor-{n % 20}é", reading=1.0) for n in range(60)]
    if as_columns:
        batch = pa.RecordBatch.from_pydict({"id": [r.id for r in rows], "reading": [r.reading for r in rows]})
        wires.writer.append_columns(batch, None)
    else:
        for row in rows:
            wires.writer.append(row, None)
    for target, values in wires.received().items():
        assert all(key_group(row.id, 128) * 3 // 128 == target for row in values)


@pytest.mark.parametrize("kind", [Types.DOUBLE(), Types.BOOLEAN(), Types.FLOAT()])
def test_keys_that_are_no_plain_column_are_routed_row_by_row(kind: TypeInformation) -> None:
    row_type = Types.ROW_NAMED(["key", "n"], [kind, Types.LONG()])
    wires = Wires(by_field("key"), row_type)
    values = [True, False] * 20 if str(kind) == "BOOLEAN" else [float(n % 7) for n in range(40)]
    batch = pa.RecordBatch.from_arrays(
        [pa.array(values, kind.arrow_type), pa.array(range(40), pa.int64())], names=["key", "n"]
    )
    wires.writer.append_columns(batch, None)
    received = wires.received()
    assert sum(map(len, received.values())) == 40
    for target, rows in received.items():
        assert all(key_group(stored_form(row.key), 128) * 3 // 128 == target for row in rows)


def test_a_null_key_in_a_column_is_refused_by_field() -> None:
    with pytest.raises(InvalidKeyError, match='"key"'):
        Wires(by_field("key"), KEYED).writer.append_columns(columns([Row(key=None, n=1), Row(key=2, n=1)]), None)


@pytest.mark.parametrize("as_columns", [False, True])
@pytest.mark.parametrize(
    ("partitioning", "expected"),
    [
        (Rebalance(), {0: 4, 1: 4, 2: 4}),
        (Broadcast(), {0: 12, 1: 12, 2: 12}),
        (Forward(), {1: 12}),
        (Rescale(), {1: 6, 2: 6}),
    ],
    ids=lambda p: type(p).__name__,
)
def test_every_partitioning_deals_out_values_and_columns_alike(
    partitioning: Partitioning, expected: dict[int, int], as_columns: bool
) -> None:
    targets = 2 if isinstance(partitioning, Forward) else 3
    wires = Wires(partitioning, KEYED, producer=1, targets=targets)
    rows = [Row(key=n, n=n) for n in range(12)]
    if as_columns:
        wires.writer.append_columns(columns(rows[:5]), None)
        wires.writer.append_columns(columns(rows[5:]), None)
    else:
        for row in rows:
            wires.writer.append(row, None)
    assert {t: len(v) for t, v in wires.received().items()} == expected


def test_shuffle_loses_nothing() -> None:
    wires = Wires(Shuffle())
    for n in range(300):
        wires.writer.append(n, None)
    received = wires.received()
    assert sorted(v for values in received.values() for v in values) == list(range(300))
    assert len(received) == 3


def test_a_partitioner_that_points_nowhere_is_named() -> None:
    custom = Wires(Custom(lambda key, n: key, KeySpec(lambda v: v)))
    custom.writer.append(2, None)
    assert custom.received() == {2: [2]}
    with pytest.raises(JobDefinitionError, match="subtask 3, but there are 3"):
        custom.writer.append(3, None)


def test_a_value_that_does_not_fit_the_type_fails_when_its_cell_leaves() -> None:
    wires = Wires(Rebalance(), KEYED)
    wires.writer.append("no row", None)
    with pytest.raises(TypeMismatchError):
        wires.writer.flush()


# -- when cells leave


def test_records_wait_for_company_until_the_flush() -> None:
    wires = Wires(Forward(), targets=2)
    wires.clock.now = 5.0
    for n in range(10):
        wires.writer.append(n, None)
    assert wires.writer.unflushed_since == 5.0
    assert wires.cells() == []
    wires.writer.flush()
    ((_, data),) = wires.cells()
    assert block_of(wires.codec, data).values == list(range(10))
    assert wires.writer.unflushed_since is None
    wires.writer.flush()
    assert wires.cells() == []
    assert wires.writer.records == 10


def test_cells_aim_at_their_size_whatever_the_records_weigh() -> None:
    wires = Wires(Forward(), targets=2)
    for n in range(3_000):
        wires.writer.append((str(n).zfill(1_000), n), None)
    sizes = [len(data) for _, data in wires.cells()]
    assert all(size < 2 * CELL_BYTES for size in sizes[3:])
    assert np.median(sizes) > CELL_BYTES / 2


def test_columns_are_coalesced_and_cut() -> None:
    wires = Wires(Forward(), KEYED, targets=2)
    for n in range(10):
        wires.writer.append_columns(columns([Row(key=n, n=n)]), pa.array([n], pa.int64()))
    wires.writer.flush()
    ((_, data),) = wires.cells()
    assert read_records_header(data)[1] & COLUMNS
    assert block_of(wires.codec, data).timestamps == list(range(10))
    many = MOST_RECORDS + 5
    batch = pa.RecordBatch.from_arrays([pa.array(range(many), pa.int64())] * 2, names=["key", "n"])
    wires.writer.append_columns(batch, None)
    blocks = [block_of(wires.codec, data) for _, data in wires.cells()]
    assert len(blocks) > 1
    assert all(len(b.values) <= MOST_RECORDS for b in blocks)
    assert [row.n for b in blocks for row in b.values] == list(range(many))


def test_records_with_and_without_timestamps_and_columns_keep_their_order_in_cells_of_their_own() -> None:
    wires = Wires(by_field("key"), KEYED, targets=1)
    times: list[int | None] = [None, None, 5, 6, None, 7]
    for n, time in enumerate(times):
        wires.writer.append(Row(key=n, n=n), time)
    wires.writer.append_columns(columns([Row(key=6, n=6)]), pa.array([8], pa.int64()))
    wires.writer.append_columns(columns([Row(key=7, n=7)]), None)
    wires.writer.append(Row(key=8, n=8), 9)
    wires.writer.flush()
    seen = []
    for _, data in wires.cells():
        block = block_of(wires.codec, data)
        assert block.keys == [row.key for row in block.values]
        seen += list(zip([r.n for r in block.values], block.timestamps or [None] * len(block.values), strict=True))
    assert seen == list(enumerate([*times, 8, None, 9]))


def test_watermark_idle_and_end_come_after_the_records_before_them_on_every_channel() -> None:
    wires = Wires(Rebalance())
    for n in range(4):
        wires.writer.append(n, None)
    wires.writer.watermark(7)
    wires.writer.append(4, None)
    wires.writer.idle(True)
    wires.writer.end()
    kinds: dict[int, list[int]] = defaultdict(list)
    for slot, data in wires.cells():
        kinds[slot].append(data[0])
    assert [k for k in kinds[0] if k != RECORDS] == [WATERMARK, IDLE, END]
    assert all(k[0] == RECORDS and k[1] == WATERMARK and k[-1] == END for k in kinds.values())
    assert len(kinds) == 3


def test_the_oldest_record_of_a_cell_gives_its_birth() -> None:
    wires = Wires(Forward(), targets=2)
    wires.clock.born_us = 11
    wires.writer.append(1, None)
    wires.clock.born_us = 22
    wires.writer.append(2, None)
    wires.writer.flush()
    ((_, data),) = wires.cells()
    assert read_records_header(data)[2] == 11
