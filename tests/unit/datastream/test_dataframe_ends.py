"""`from_dataframe` and `sink_to_dataframe` as far as they need no Spark: types, slots, words, refusals, the log."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from frame_examples import FrameStandIn

from headrace import Row, StreamExecutionEnvironment, Types
from headrace.checkpoint.handles import HistoryPoint, PreparedItem
from headrace.checkpoint.storage.filesystem import FileSystemCheckpointStorage
from headrace.connectors.dataframe import DataFrameSink, DataFrameSource, OutputId
from headrace.connectors.dataframe.sink import OutputReader
from headrace.connectors.sink import SinkGuarantee, WriterContext
from headrace.errors import JobDefinitionError, TypeMismatchError
from headrace.plan.explain import explain, explain_json
from headrace.plan.guarantees import Guarantee, guarantees

ORDERS = Types.ROW_NAMED(["id", "user"], [Types.LONG(), Types.STRING()])


def write_orders(frame: Any, checkpoint: OutputId) -> None:
    raise AssertionError("nothing is handed over before a checkpoint")


def job(*, idempotent: bool = False) -> StreamExecutionEnvironment:
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(2)
    env.enable_checkpointing(1_000)
    stream = env.from_dataframe(FrameStandIn(), source_name="orders")
    stream.key_by("user").map(lambda r: r, output_type=ORDERS).sink_to_dataframe(write_orders, idempotent=idempotent)
    return env


def test_the_stream_has_the_type_of_the_frame() -> None:
    env = StreamExecutionEnvironment.get_execution_environment()
    assert str(env.from_dataframe(FrameStandIn()).get_type()) == "ROW<id LONG, user STRING>"


def test_one_more_slot_is_counted_and_explained() -> None:
    plan, settings = job().build("orders")
    assert (plan.total_slots, plan.needed_slots) == (4, 5)
    assert [node.name for node in plan.beside_queries] == ["orders", "dataframe"]
    assert explain_json(plan, settings)["spark"]["slots"] == 5
    assert "5 slots at once: 2 + 2 + 1 for the Spark queries beside orders, dataframe" in explain(plan, settings)


def test_a_job_without_queries_needs_its_own_slots_only() -> None:
    env = StreamExecutionEnvironment.get_execution_environment()
    env.from_collection([1]).print()
    plan, settings = env.build("plain")
    assert plan.needed_slots == plan.total_slots
    assert "for the Spark quer" not in explain(plan, settings)


@pytest.mark.parametrize("idempotent", [False, True])
def test_the_guarantee_is_told_as_it_is(idempotent: bool) -> None:
    plan, settings = job(idempotent=idempotent).build("orders")
    found = guarantees(plan, settings.checkpointing)
    text = explain(plan, settings)
    assert "hands each checkpoint's output to write_orders() (test_dataframe_ends.py:" in text
    if idempotent:
        assert found.guarantee is Guarantee.EXACTLY_ONCE
        assert "which the program says (idempotent=True) changes nothing then" in text
    else:
        assert found.guarantee is Guarantee.AT_LEAST_ONCE
        assert "again after a crash in the middle of it; let the function skip ids it has seen" in text


def test_neither_frame_nor_function_travels_to_tasks() -> None:
    source = DataFrameSource(FrameStandIn())
    assert pickle.loads(pickle.dumps(source)).frame is None
    sink = DataFrameSink(write_orders, ORDERS)
    assert pickle.loads(pickle.dumps(sink)).function is None
    assert pickle.loads(pickle.dumps(sink)).guarantee is SinkGuarantee.WRITE_AHEAD_UNMARKED


@pytest.mark.parametrize("frame", [None, 7, "orders", [1, 2]])
def test_what_is_no_frame_is_refused(frame: Any) -> None:
    with pytest.raises(JobDefinitionError, match="wanted a Spark DataFrame"):
        StreamExecutionEnvironment.get_execution_environment().from_dataframe(frame)


def test_a_stream_without_columns_cannot_become_a_frame() -> None:
    env = StreamExecutionEnvironment.get_execution_environment()
    stream = env.from_collection([1]).map(lambda n: n)
    with pytest.raises(JobDefinitionError, match="the stream has no type"):
        stream.sink_to_dataframe(write_orders)
    with pytest.raises(JobDefinitionError, match="some part of which has no column type"):
        stream.sink_to_dataframe(write_orders, Types.ROW_NAMED(["x"], [Types.ANY()]))
    with pytest.raises(JobDefinitionError, match="wanted a function"):
        stream.sink_to_dataframe("orders", ORDERS)  # type: ignore[arg-type]


def test_an_id_is_a_number_with_a_marker() -> None:
    output = OutputId.of("orders", "out", HistoryPoint("ab12", 2, 7))
    assert (output, output + 1, f"{output}", output.marker) == (7, 8, "7", "orders/out/ab12/2/7")
    assert OutputId.of("orders", "out", HistoryPoint("", 2, 7)).marker == "orders/out/2/7"


# What is sealed at a barrier


def sealed(*values: Any) -> list[bytes]:
    writer = DataFrameSink(write_orders, ORDERS).create_writer(WriterContext("job", "out", 0, 1, 1))
    for value in values:
        writer.write(value, None)
    return list(writer.prepare_commit(1))


def test_what_came_since_the_last_barrier_is_one_item_and_nothing_is_none() -> None:
    assert sealed() == []
    (item,) = sealed(Row(id=1, user="a"), Row(id=2, user=None))
    assert pa.ipc.open_stream(item).read_all().to_pylist() == [{"id": 1, "user": "a"}, {"id": 2, "user": None}]


def test_a_record_of_another_type_is_refused_when_it_is_sealed() -> None:
    with pytest.raises(TypeMismatchError, match='field "id"'):
        sealed(Row(id="one", user="a"))


def test_output_is_read_from_the_metadata_and_from_files(tmp_path: Path) -> None:
    storage = FileSystemCheckpointStorage(str(tmp_path), file_state_size_threshold=0)
    (item,) = sealed(Row(id=1, user="a"))
    stored = storage.file_store("job/run-000001/chk-000001/attempt-000001").write("prepared", [item])
    for prepared in (PreparedItem(1, item), PreparedItem(1, b"", stored)):
        (batch,) = OutputReader(storage)(msgspec.msgpack.encode(prepared))
        assert batch.to_pylist() == [{"id": 1, "user": "a"}]
