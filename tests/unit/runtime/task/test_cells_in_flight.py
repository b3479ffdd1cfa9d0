"""Channel state: cells in flight as a checkpoint keeps them."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pytest
from edge_examples import SENSOR, block_of, by_field, edge_of

from headrace.checkpoint.handles import RestoredEdge
from headrace.errors import DamagedCheckpointError, RestoreError
from headrace.plan.graph import Edge, Hash, KeySpec, Rebalance
from headrace.runtime.task.cells import (
    RECORDS,
    Address,
    end_cell,
    read_records_header,
    records_header,
    watermark_cell,
)
from headrace.runtime.task.in_flight import Inlet, admit, frames, read_frames, restored_cells
from headrace.runtime.task.records import COLUMNS, COLUMNS_FROM, PICKLED, PLAIN, TYPED, EdgeCodec
from headrace.state.keys import stored_form
from headrace.types.information import Types, type_of
from headrace.types.rows import Row

HERE = Address(3, 1, 0)


@dataclass
class Reading:
    sensor: str
    value: float


class Opaque:
    """Only pickle can hold it."""


def cell_of(edge: Edge, values: list[Any], keys: list[Any] | None = None, at: Address = HERE) -> bytes:
    flags, parts = EdgeCodec(edge).encode(values, keys, None)
    return b"".join((records_header(at, flags, 77, len(values)), *parts))


def sealed(data: bytes, edge: Edge | None = None) -> bytes:
    edges = {HERE.edge: edge_of() if edge is None else edge}
    ((channel, back),) = read_frames(b"".join(frames([(1, data)], edges)), "channel state")
    assert channel == 1
    return back


def test_frames_keep_channels_and_order() -> None:
    cells = [(2, end_cell(HERE)), (-1, watermark_cell(HERE, 5)), (0, end_cell(HERE))]
    assert list(read_frames(b"".join(frames(cells, {})), "x")) == cells


@pytest.mark.parametrize("cut", [1, 5, 9])
def test_a_file_that_ends_early_is_damaged_not_read(cut: int) -> None:
    whole = b"".join(frames([(0, end_cell(HERE)), (1, end_cell(HERE))], {}))
    with pytest.raises(DamagedCheckpointError, match=r"channel state of task 1\.2"):
        list(read_frames(whole[:-cut], "channel state of task 1.2"))


@pytest.mark.parametrize(
    ("type_info", "value"),
    [
        (Types.LIST(type_of(Reading)), [Reading("a", 1.5), Reading("b", 2.5)]),
        (Types.TUPLE([Types.STRING(), type_of(Reading)]), ("x", Reading("a", 1.5))),
        (Types.MAP(Types.STRING(), type_of(Reading)), {"x": Reading("a", 1.5)}),
    ],
    ids=["list", "tuple", "map"],
)
@pytest.mark.parametrize("dealt", [False, True], ids=["same subtask", "dealt out again"])
def test_objects_inside_a_typed_record_come_back_without_pickle(type_info: Any, value: Any, dealt: bool) -> None:
    edge = edge_of(type_info)
    back = sealed(cell_of(edge, [value, value]), edge)
    assert read_records_header(back)[1] == PLAIN | TYPED
    assert sealed(back, edge) == back, "a cell that comes from a checkpoint may go into the next"

    restored = restored_cells([(0, back)], [RestoredEdge(3, 3, dealt)], {3: Inlet(edge, (0,), 1, 128)})
    found = [v for _, data in restored for v in block_of(EdgeCodec(edge), data).values]
    assert found == [value, value]


def test_records_encoded_by_a_type_are_refused_where_the_program_has_none() -> None:
    edge = edge_of(Types.LIST(type_of(Reading)))
    back = sealed(cell_of(edge, [[Reading("a", 1.5)]]), edge)
    with pytest.raises(DamagedCheckpointError, match="leaves it untyped"):
        admit(back, edge_of())


def test_a_length_that_promises_too_much_is_not_believed() -> None:
    with pytest.raises(DamagedCheckpointError):
        list(read_frames(b"\0\0\0\0\xff\xff\xff\xff" + b"x" * 20, "x"))
    with pytest.raises(DamagedCheckpointError):
        list(read_frames(b"\0\0\0\0\0\0\0\0", "x"))


@pytest.mark.parametrize(
    "values",
    [
        [1, "a", 2.5, None, True, b"x"],
        [(1, [2, {"a": (3,)}]), {1, 2}, frozenset("a"), 1 + 2j, 10**30],
        [dt.datetime(2026, 1, 2, tzinfo=dt.UTC), dt.date(2026, 1, 1), bytearray(b"x")],
    ],
    ids=["scalars", "nested", "dates"],
)
def test_plain_values_are_rewritten_in_the_safe_encoding(values: list[Any]) -> None:
    edge = edge_of()
    back = sealed(cell_of(edge, values))
    address, flags, born_us, count = read_records_header(back)
    assert (address, born_us, count) == (HERE, 77, len(values))
    assert flags & PLAIN
    assert not flags & PICKLED
    admit(back, edge)
    assert repr(block_of(EdgeCodec(edge), back).values) == repr(values)
    assert sealed(back) == back, "a cell that comes from a checkpoint may go into the next"


@pytest.mark.parametrize("count", [2, COLUMNS_FROM])
@pytest.mark.parametrize("keyed", [None, by_field("id"), Hash(KeySpec(lambda r: (r.id, 1)))])
def test_typed_rows_with_and_without_keys_come_back(count: int, keyed: Any) -> None:
    edge = edge_of(SENSOR, keyed)
    rows = [Row(id=f"s{n}", reading=float(n)) for n in range(count)]
    keys = None if keyed is None else [stored_form(keyed.key.selector(row)) for row in rows]
    back = sealed(cell_of(edge, rows, keys))
    admit(back, edge)
    block = block_of(EdgeCodec(edge), back)
    assert block.values == rows
    assert block.keys == keys


def test_few_rows_with_dates_of_a_typed_edge_are_restored_and_not_refused() -> None:
    edge = edge_of(Types.ROW_NAMED(["at"], [Types.INSTANT()]))
    rows = [Row(at=dt.datetime(2026, 1, 2, tzinfo=dt.UTC))]
    back = sealed(cell_of(edge, rows))
    admit(back, edge)
    assert block_of(EdgeCodec(edge), back).values == rows


def test_decimals_of_a_typed_edge_are_restored_and_not_refused() -> None:
    edge = edge_of(Types.BIG_DEC())
    back = sealed(cell_of(edge, [Decimal("1.50")]))
    admit(back, edge)
    assert block_of(EdgeCodec(edge), back).values == [Decimal("1.50")]


def test_what_only_pickle_can_hold_stays_pickled_and_is_taken_back_where_the_program_allows_it() -> None:
    back = sealed(cell_of(edge_of(), [Opaque()]))
    assert read_records_header(back)[1] & PICKLED
    admit(back, edge_of())
    admit(back, edge_of(Types.PICKLED_BYTE_ARRAY()))
    with pytest.raises(RestoreError, match=r"pickled records on edge 3.*STRING"):
        admit(back, edge_of(Types.STRING()))


def test_marshal_in_a_checkpoint_is_refused() -> None:
    with pytest.raises(DamagedCheckpointError, match="edge 3"):
        admit(cell_of(edge_of(), [1]), edge_of())


def test_records_on_an_edge_that_the_metadata_does_not_name_are_damage() -> None:
    with pytest.raises(DamagedCheckpointError, match="edge 3"):
        list(restored_cells([(0, sealed(cell_of(edge_of(), [1])))], [], {}))


def test_records_of_an_edge_whose_target_is_gone_are_left_behind() -> None:
    assert list(restored_cells([(0, sealed(cell_of(edge_of(), [1])))], [RestoredEdge(3, None)], {})) == []


def test_records_go_on_under_the_number_that_the_edge_has_now_to_the_subtask_they_were_sent_to() -> None:
    edge = edge_of(edge_id=8)
    cells = [(0, sealed(cell_of(edge_of(), [n], at=Address(3, 1, n)))) for n in range(4)]
    found = list(restored_cells(cells, [RestoredEdge(3, 8)], {8: Inlet(edge, (1, 3), 4, 128)}))
    assert [read_records_header(data)[0] for _, data in found] == [Address(8, 1, 1), Address(8, 1, 3)]
    assert [block_of(EdgeCodec(edge), data).values for _, data in found] == [[1], [3]]


def test_a_record_for_a_subtask_that_never_was_is_damage_and_not_dropped() -> None:
    edge = edge_of()
    cells = [(0, sealed(cell_of(edge, [1], at=Address(3, 0, 2))))]
    with pytest.raises(DamagedCheckpointError, match="subtask 2 on edge 3"):
        list(restored_cells(cells, [RestoredEdge(3, 3)], {3: Inlet(edge, (0,), 2, 128)}))


@pytest.mark.parametrize("parallelism", [1, 2, 3, 5])
@pytest.mark.parametrize("keyed", [True, False])
@pytest.mark.parametrize("count", [1, 7, COLUMNS_FROM + 3])
def test_rerouting_deals_every_record_to_exactly_one_subtask(parallelism: int, keyed: bool, count: int) -> None:
    edge = edge_of(SENSOR, by_field("id") if keyed else Rebalance())
    cells = []
    for producer in range(2):
        rows = [Row(id=f"s{producer}-{n % 4}", reading=float(n)) for n in range(count)]
        keys = [row.id for row in rows] if keyed else None
        cells.append((producer, sealed(cell_of(edge, rows, keys, Address(3, producer, 0)))))
    cells.append((0, watermark_cell(HERE, 9)))
    dealt: Counter[Any] = Counter()
    for subtask in range(parallelism):
        seen: dict[str, float] = {}
        inlet = Inlet(edge, (subtask,), parallelism, 128)
        for _, data in restored_cells(cells, [RestoredEdge(3, 3, dealt=True)], {3: inlet}):
            address, flags, _, _ = read_records_header(data)
            assert data[0] == RECORDS
            assert address == Address(3, 0, subtask)
            assert not flags & PICKLED
            for row in block_of(EdgeCodec(edge), data).values:
                dealt[row] += 1
                assert row.reading > seen.get(row.id, -1.0), "order within a key is kept"
                if keyed:
                    seen[row.id] = row.reading
    assert sum(dealt.values()) == 2 * count
    assert set(dealt.values()) == {1} or not keyed


def test_a_task_without_the_target_gets_nothing() -> None:
    edge = edge_of()
    cells = [(0, sealed(cell_of(edge, [1, 2])))]
    for dealt in (False, True):
        assert list(restored_cells(cells, [RestoredEdge(3, 3, dealt)], {3: Inlet(edge, (), 2, 128)})) == []


def test_large_cells_of_columns_without_keys_are_kept_as_they_are() -> None:
    edge = edge_of(SENSOR)
    data = cell_of(edge, [Row(id="a", reading=1.0)] * COLUMNS_FROM)
    assert read_records_header(data)[1] == COLUMNS
    assert sealed(data) == data
    admit(data, edge)
