"""Broadcast records in flight: each subtask has its own copy, which belongs to its own state."""

from __future__ import annotations

from typing import Any

import pytest
from edge_examples import block_of, edge_of

from headrace import BroadcastProcessFunction, MapStateDescriptor, StreamExecutionEnvironment, Types
from headrace.checkpoint.handles import ChannelSnapshot, RestoredEdge, StateFile, SubtaskSnapshot
from headrace.checkpoint.metadata.model import CheckpointMetadata, OperatorRecord
from headrace.errors import RestoreError
from headrace.plan.graph import Broadcast, JobPlan
from headrace.runtime.job.restoration import Restoration
from headrace.runtime.task.cells import Address, end_cell, records_header, watermark_cell
from headrace.runtime.task.in_flight import Inlet, edges_with_records, frames, read_frames, restored_cells
from headrace.runtime.task.records import EdgeCodec

RULES = MapStateDescriptor("rules", Types.STRING(), Types.LONG())


def cell(edge: Any, values: list[Any], at: Address) -> bytes:
    flags, parts = EdgeCodec(edge).encode(values, None, None)
    return b"".join((records_header(at, flags, 0, len(values)), *parts))


def test_each_subtask_gets_back_the_copy_that_was_on_its_way_to_it() -> None:
    edge = edge_of(partitioning=Broadcast())
    cells = [
        (0, cell(edge, ["a", "b"], Address(3, 0, 0))),
        (1, cell(edge, ["c"], Address(3, 1, 2))),
        (0, cell(edge, ["b"], Address(3, 0, 2))),
    ]
    kept = list(read_frames(b"".join(frames(cells, {3: edge})), "channel state"))
    found = [
        [
            v
            for _, data in restored_cells(kept, [RestoredEdge(3, 3)], {3: Inlet(edge, (subtask,), 3, 128)})
            for v in block_of(EdgeCodec(edge), data).values
        ]
        for subtask in range(3)
    ]
    assert found == [["a", "b"], [], ["c", "b"]]


def test_a_snapshot_names_the_edges_that_have_records_in_flight() -> None:
    here = Address(3, 0, 0)
    cells = [(0, end_cell(Address(7, 0, 0))), (0, cell(edge_of(), [1], here)), (1, watermark_cell(Address(8, 0, 0), 5))]
    assert edges_with_records(cells) == (3,)


class Rules(BroadcastProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Any: ...

    def process_broadcast_element(self, value: Any, ctx: Any) -> Any: ...


def planned(parallelism: int) -> JobPlan:
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(parallelism)
    events, rules = env.from_collection([1]), env.from_collection([2])
    joined = events.rebalance().connect(rules.broadcast(RULES)).process(Rules()).name("judge").uid("judge")
    joined.print()
    return env.build("rules")[0]


def checkpoint(plan: JobPlan, in_flight: tuple[int, ...]) -> CheckpointMetadata:
    records = tuple(
        OperatorRecord(
            node.uid,
            node.name,
            node.parallelism,
            128,
            tuple(SubtaskSnapshot(node.uid, i, node.parallelism, 128) for i in range(node.parallelism)),
        )
        for node in plan.graph.nodes
    )
    return CheckpointMetadata(
        job_id="job",
        job_name="job",
        run=1,
        attempt=1,
        checkpoint_id=7,
        kind="checkpoint",
        mode="unaligned",
        created_ms=0,
        duration_ms=0,
        operators=records,
        channels=(ChannelSnapshot(1, 0, StateFile(0, "", inline=b""), 1, in_flight),),
    )


def edge_id(plan: JobPlan, broadcast: bool) -> int:
    return next(e.id for e in plan.graph.edges if isinstance(e.partitioning, Broadcast) is broadcast)


def test_a_broadcast_in_flight_restores_at_the_same_width_and_is_refused_by_name_at_another() -> None:
    before = planned(2)
    saved = checkpoint(before, (edge_id(before, True),))
    assert Restoration.of(planned(2), saved, allow_non_restored=False).restore is not None
    with pytest.raises(RestoreError, match=r'broadcast edge to "judge" \(uid judge\).* is 2, not 3'):
        Restoration.of(planned(3), saved, allow_non_restored=False)


def test_other_records_in_flight_beside_a_broadcast_do_not_stand_in_the_way() -> None:
    before = planned(2)
    saved = checkpoint(before, (edge_id(before, False),))
    assert Restoration.of(planned(3), saved, allow_non_restored=False).restore is not None
