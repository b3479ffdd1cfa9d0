"""Outputs of a chain: many records at once arrive as they would one by one, whichever way they travel."""

from __future__ import annotations

from typing import Any

import pytest
from edge_examples import by_field, plan_with

from headrace.errors import UserFunctionError
from headrace.operators.base import Attention, OperatorContext
from headrace.operators.stateless import MapOperator
from headrace.plan.graph import Edge, Hash, KeySpec, Partitioning, Rebalance
from headrace.runtime.task.cells import RECORDS_HEADER, read_records_header
from headrace.runtime.task.chain import ChainOutputs
from headrace.runtime.task.edges import COLUMNS_FROM, Clock, EdgeWriter
from headrace.runtime.task.output import OutputQueue
from headrace.runtime.task.records import EdgeCodec
from headrace.runtime.task.routing import Router
from headrace.types.information import Types
from headrace.types.rows import Row

PAYMENT = Types.ROW_NAMED(["account", "amount"], [Types.STRING(), Types.LONG()])
TARGETS = 2
MANY = 3 * COLUMNS_FROM * TARGETS


class Exit:
    """Outputs that lead to one edge, and what came out there."""

    def __init__(self, partitioning: Partitioning) -> None:
        edge = Edge(0, 0, 1, partitioning=partitioning, type=PAYMENT)
        self._codec = EdgeCodec(edge)
        self._queue = OutputQueue(0, TARGETS, Attention())
        self._writer = EdgeWriter(
            edge,
            level=0,
            producer=0,
            producers=1,
            target_parallelism=TARGETS,
            target_max_parallelism=128,
            router=Router(plan_with([edge], {0: 1, 1: TARGETS}, {0: 0, 1: 1})),
            queue=self._queue,
            clock=Clock(),
        )
        self._writer.operator = operator = MapOperator(lambda value: value)
        operator.context = OperatorContext(
            job_id="job",
            uid="payments",
            name="payments",
            declared_at="",
            subtask=0,
            parallelism=1,
            max_parallelism=128,
            attempt=1,
            job_parameters={},
            backend=None,
            now_ms=lambda: 0,
            notify=lambda message: None,
            wake=lambda: None,
            checkpointing=True,
            exactly_once_output=True,
        )
        self.outputs = ChainOutputs(PAYMENT, "payments")
        self.outputs.add_writer(self._writer)
        self.outputs.seal(operator)

    def received(self) -> dict[int, list[tuple[Any, Any, int | None]]]:
        """(key, value, timestamp) of every record, by target."""
        self._writer.flush()
        found: dict[int, list[tuple[Any, Any, int | None]]] = {}
        for slot, data in self._queue._cells:
            _, flags, _, _ = read_records_header(data)
            block = self._codec.decode(flags, memoryview(data)[RECORDS_HEADER:])
            nothing = [None] * len(block.values)
            records = zip(block.keys or nothing, block.values, block.timestamps or nothing, strict=True)
            found.setdefault(slot, []).extend(records)
        return found


def payments(count: int) -> list[Any]:
    return [Row(account=f"a{n * 7 % 31}é", amount=n) for n in range(count)]


@pytest.mark.parametrize("timed", [False, True])
@pytest.mark.parametrize("counts", [(3,), (MANY,), (3, MANY, 3, MANY, MANY)])
@pytest.mark.parametrize(
    "partitioning",
    [by_field("account"), Hash(KeySpec(lambda row: row.account[:2])), Rebalance()],
    ids=["by field", "by function", "rebalance"],
)
def test_records_given_all_at_once_arrive_as_those_given_one_by_one(
    partitioning: Partitioning, counts: tuple[int, ...], timed: bool
) -> None:
    together, singly = Exit(partitioning), Exit(partitioning)
    for count in counts:
        rows, times = payments(count), list(range(1_000, 1_000 + count)) if timed else None
        together.outputs.emit_all(rows, times)
        for place, row in enumerate(rows):
            singly.outputs.emit(row, None if times is None else times[place])
    assert together.received() == singly.received()


@pytest.mark.parametrize("count", [3, MANY])
def test_tuples_arrive_as_rows_of_the_declared_type(count: int) -> None:
    exit = Exit(by_field("account"))
    exit.outputs.emit_all([tuple(row) for row in payments(count)], None)
    found = [value for records in exit.received().values() for _, value, _ in records]
    assert sorted(found, key=lambda row: row.amount) == payments(count)


@pytest.mark.parametrize("count", [3, MANY])
def test_the_one_record_of_many_that_does_not_fit_is_named(count: int) -> None:
    exit = Exit(by_field("account"))
    with pytest.raises(UserFunctionError, match=r'"payments".*much') as failure:
        exit.outputs.emit_all([*payments(count), ("ann", "much")], None)
    assert failure.value.record == "('ann', 'much')"


@pytest.mark.parametrize("count", [3, MANY])
def test_the_one_record_of_many_that_has_no_key_is_named(count: int) -> None:
    exit = Exit(by_field("account"))
    keyless = Row(account=None, amount=5)
    with pytest.raises(UserFunctionError, match=r'"payments".*None (is no|cannot be a) key') as failure:
        exit.outputs.emit_all([*payments(count), keyless], None)
    assert failure.value.record == repr(keyless)


@pytest.mark.parametrize("count", [3, MANY])
def test_timestamps_that_are_not_as_many_as_the_records_are_refused(count: int) -> None:
    exit = Exit(by_field("account"))
    with pytest.raises(ValueError, match="shorter"):
        exit.outputs.emit_all(payments(count), list(range(count - 1)))
