"""A pickle in a checkpoint that would run code: nothing of it runs, wherever it lies, and the error has a type.

The program alone allows pickle, see `docs/design/checkpoint-format.md`. `tests/unit/test_unpicklers.py` has every place
of the package that could load one.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import pickle
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from headrace import (
    AsyncDataStream,
    AsyncFunction,
    Configuration,
    Encoder,
    FileSink,
    KeyedProcessFunction,
    ListStateDescriptor,
    RuntimeContext,
    StreamExecutionEnvironment,
    Time,
    Types,
    ValueStateDescriptor,
    WatermarkStrategy,
)
from headrace.checkpoint.handles import HistoryPoint, PreparedItem, SubtaskSnapshot
from headrace.checkpoint.metadata.model import CheckpointMetadata, OperatorRecord
from headrace.checkpoint.storage.filesystem import FileSystemCheckpointStorage
from headrace.checkpoint.storage.memory import JobManagerCheckpointStorage
from headrace.connectors.dataframe.notes import HandOverNotes
from headrace.connectors.dataframe.parts import PartWriter
from headrace.connectors.dataframe.reader import SpoolReader
from headrace.connectors.dataframe.split import SpoolSplit
from headrace.connectors.dataframe.spool import Manifest, Spool, SpoolFile
from headrace.datastream.overrides import Overrides, overriding
from headrace.datastream.streams import DataStream
from headrace.errors import HeadraceError, RecordError, RestoreError, StorageError, TypeMismatchError
from headrace.operators.factories import CollectFactory
from headrace.plan.graph import Edge, JobPlan
from headrace.runtime.job.collected import CollectedResults
from headrace.runtime.job.restoration import Restoration
from headrace.runtime.task.cells import Address, records_header
from headrace.runtime.task.in_flight import admit, frames
from headrace.runtime.task.records import COLUMNS, PICKLED
from headrace.state.object_batches import BatchCodec, RecordPickles
from headrace.testing import JobHarness, JobSnapshot, ManualSource
from headrace.types.information import RowType


class Bomb:
    """Makes a directory when it is unpickled."""

    def __init__(self, proof: Path) -> None:
        self.proof = proof

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.proof),)


@pytest.fixture
def proof(tmp_path: Path) -> Iterator[Path]:
    """What a bomb leaves. First of all, that it would go off."""
    place = tmp_path / "it-ran"
    pickle.loads(pickle.dumps(Bomb(place)))
    place.rmdir()
    yield place
    assert not place.exists(), "code from a checkpoint was run"


@dataclass
class Reading:
    """A record whose class plain values do not know."""

    sensor: str
    value: int


class Silent(AsyncFunction):
    """Never answers: every record stays in flight."""

    async def async_invoke(self, value: Any) -> list[Any]:
        await asyncio.Event().wait()
        return []


class Remembering(KeyedProcessFunction):
    def open(self, runtime_context: RuntimeContext) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))
        self.seen = runtime_context.get_list_state(ListStateDescriptor("seen", Types.LONG()))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Any:
        self.count.update((self.count.value() or 0) + 1)
        self.seen.add(value)
        ctx.timer_service().register_processing_time_timer(1 << 50)
        yield value


def program(folder: Path) -> DataStream:
    """A source with splits, keyed state and timers, records in flight, prepared files, and collected results."""
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(1)
    source = ManualSource(Types.LONG())
    source.emit(1, 2, 3)
    numbers = env.from_source(source, WatermarkStrategy.no_watermarks(), "numbers").uid("numbers")
    AsyncDataStream.unordered_wait(numbers, Silent(), Time.minutes(10), 100, Types.LONG()).uid("silent").print()
    remembered = numbers.key_by(lambda n: n % 2).process(Remembering(), output_type=Types.LONG()).uid("remembering")
    sink = FileSink.for_row_format(str(folder / "out"), Encoder.simple_string_encoder()).build()
    remembered.sink_to(sink).uid("files")
    return remembered


def leaves(tree: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The place of every bytes value."""
    if isinstance(tree, bytes):
        yield path
    elif isinstance(tree, dict):
        for key, value in tree.items():
            yield from leaves(value, (*path, key))
    elif isinstance(tree, list | tuple):
        for index, value in enumerate(tree):
            yield from leaves(value, (*path, index))


def replaced(tree: Any, path: tuple[Any, ...], bad: bytes) -> Any:
    """The tree with `bad` at that place; the size and hash of a file are made to fit."""
    if not path:
        return bad
    if isinstance(tree, dict):
        return {k: replaced(v, path[1:], bad) if k == path[0] else v for k, v in tree.items()}
    made = [replaced(v, path[1:], bad) if i == path[0] else v for i, v in enumerate(tree)]
    if len(path) == 1 and path[0] == 3 and len(made) == 7 and isinstance(made[1], str):
        made[:2] = [len(bad), hashlib.sha256(bad).hexdigest()]
    return made


def test_a_pickle_in_place_of_any_bytes_of_a_checkpoint_is_never_loaded(proof: Path, tmp_path: Path) -> None:
    with JobHarness(program(tmp_path)) as job:
        taken = job.checkpoint(complete=False)
    tree = msgspec.to_builtins(taken.metadata, builtin_types=(bytes,))
    places = list(leaves(tree))
    found = {str(part) for place in places for part in place}
    assert {"operator_state", "prepared", "splits", "enumerators", "keyed", "details"} <= found, found
    bomb = pickle.dumps(Bomb(proof))
    refused = 0
    for place in places:
        for tag in (b"", b"\x00", b"\x01", b"\x02"):
            metadata = msgspec.convert(replaced(tree, place, tag + bomb), CheckpointMetadata)
            try:
                with JobHarness(program(tmp_path), restored=JobSnapshot(metadata)) as job:
                    job.run()
            except HeadraceError:
                refused += 1
            assert not proof.exists(), place
    assert refused >= len(places)


def test_the_check_notices_a_program_that_loads_what_it_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it was: the first byte of the file decides."""
    monkeypatch.setattr(RecordPickles, "reads", lambda self, record_type: True)
    proof = tmp_path / "it-ran"
    with JobHarness(program(tmp_path)) as job:
        taken = job.checkpoint(complete=False)
    with pytest.raises((HeadraceError, TypeError)):
        JobHarness(program(tmp_path), restored=JobSnapshot(with_in_flight(taken.metadata, Bomb(proof))))
    assert proof.exists()


def with_in_flight(metadata: CheckpointMetadata, *values: Any) -> CheckpointMetadata:
    """The asynchronous operator has one record in flight, pickled."""
    element = b"\x01" + pickle.dumps(list(values))

    def changed(subtask: Any) -> Any:
        shares = tuple(msgspec.structs.replace(share, elements=(element,)) for share in subtask.operator_state)
        return msgspec.structs.replace(subtask, operator_state=shares)

    operators = tuple(
        msgspec.structs.replace(o, subtasks=tuple(map(changed, o.subtasks))) if o.uid == "silent" else o
        for o in metadata.operators
    )
    return msgspec.structs.replace(metadata, operators=operators)


def asking(type_info: Any, configure: Callable[[StreamExecutionEnvironment], Any] = lambda env: None) -> DataStream:
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(1)
    configure(env)
    readings = env.from_collection([Reading("a", 1), Reading("b", 2)], type_info)
    return AsyncDataStream.unordered_wait(readings, Silent(), Time.minutes(10), 100, Types.LONG()).uid("silent")


def in_flight(job: JobHarness) -> list[Any]:
    (operator,) = job.operators("silent")
    return sorted((record.value for record in operator._queue.records()), key=lambda r: r.value)  # type: ignore[attr-defined]


@pytest.mark.parametrize("type_info", [Reading, None, Types.PICKLED_BYTE_ARRAY()], ids=["typed", "untyped", "pickled"])
def test_records_in_flight_come_back_with_their_class(type_info: Any) -> None:
    with JobHarness(asking(type_info)) as job:
        taken = job.checkpoint()
    (share,) = [
        share for o in taken.metadata.operators for s in o.subtasks for share in s.operator_state if o.uid == "silent"
    ]
    kinds = {element[:1] for element in share.elements}
    assert kinds == ({b"\x01"} if type_info is None else {b"\x02"}), "only an untyped stream needs pickle here"
    with JobHarness(asking(type_info), restored=taken) as job:
        job.run()
        assert in_flight(job)[:2] == [Reading("a", 1), Reading("b", 2)]


def test_a_program_without_generic_types_writes_and_loads_no_pickled_records() -> None:
    def forbid(env: StreamExecutionEnvironment) -> None:
        env.get_config().disable_generic_types()

    with JobHarness(asking(None)) as job:
        taken = job.checkpoint()
    with pytest.raises(RestoreError, match=r'in-flight state of ".*" \(uid silent\).*not loaded.*--allow-pickle'):
        JobHarness(asking(None, forbid), restored=taken)
    with JobHarness(asking(None, forbid)) as job, pytest.raises(TypeMismatchError, match="Only pickle could keep"):
        job.checkpoint()
    # A stream that says so itself is no generic type.
    with JobHarness(asking(Types.PICKLED_BYTE_ARRAY(), forbid)) as job:
        again = job.checkpoint()
    with JobHarness(asking(Types.PICKLED_BYTE_ARRAY(), forbid), restored=again) as job:
        assert len(in_flight(job)) == 2


def test_results_that_a_checkpoint_holds_are_loaded_only_as_the_program_says(proof: Path) -> None:
    payload = b"\x01" + pickle.dumps([Bomb(proof)])
    for codec in (BatchCodec([Types.LONG()]), BatchCodec([None], RecordPickles(restored=False))):
        with pytest.raises(RestoreError, match="pickled records in the results"):
            codec.decode(payload, "the results")


def edge(type_info: Any) -> Edge:
    return Edge(3, 0, 1, type=type_info)


def cell(flags: int, payload: bytes) -> bytes:
    return records_header(Address(3, 0, 0), flags, 0, 1) + payload


def test_pickled_cells_in_flight_are_admitted_only_as_the_program_says(proof: Path) -> None:
    hostile = cell(PICKLED, pickle.dumps(Bomb(proof)))
    for types, pickles in (
        (edge(Types.LONG()), RecordPickles()),
        (edge(None), RecordPickles(restored=False)),
        (edge(Types.ANY()), RecordPickles()),
    ):
        with pytest.raises(RestoreError, match="pickled records on edge 3") as refused:
            admit(hostile, types, pickles)
        assert ("--allow-pickle" in str(refused.value)) == (types.type is None), "it helps untyped streams only"
    admit(hostile, edge(None))
    admit(hostile, edge(Types.PICKLED_BYTE_ARRAY()), RecordPickles(restored=False))


def test_marshalled_cells_are_refused_also_behind_columns() -> None:
    for hostile in (cell(0, b"\xe3" * 40), cell(COLUMNS, b"\x04\x00\x00\x00\xe3\xe3\xe3\xe3")):
        with pytest.raises(RestoreError, match="no encoding a checkpoint holds"):
            admit(hostile, edge(Types.LONG()))
    admit(cell(COLUMNS, b"\x00\x00\x00\x00arrow"), edge(Types.LONG()))


def test_pickled_cells_are_not_written_where_the_program_forbids_them() -> None:
    pickled = cell(PICKLED, pickle.dumps((None, [Reading("a", 1)], None)))
    assert list(frames([(0, pickled)], {3: edge(None)}))
    with pytest.raises(TypeMismatchError, match="edge 3"):
        list(frames([(0, pickled)], {3: edge(None)}, RecordPickles(written=False)))


def test_files_of_a_spool_are_arrow_msgpack_and_json_and_nothing_else(proof: Path, tmp_path: Path) -> None:
    bomb = pickle.dumps(Bomb(proof))
    spool = Spool((tmp_path / "spool").as_uri())
    rows = RowType(("id",), (Types.LONG(),))
    write = PartWriter(spool, 0, "1", rows)
    told = list(write(0, iter([pa.RecordBatch.from_pydict({"id": pa.array([1, 2], pa.int64())})])))
    (part,) = [msgspec.msgpack.decode(file, type=SpoolFile) for file in told]
    spool.storage.replace(part.file.path, bomb)
    fits = msgspec.structs.replace(part.file, size=len(bomb), sha256=hashlib.sha256(bomb).hexdigest())
    spool.publish(Manifest(0, str(rows), (msgspec.structs.replace(part, file=fits),)))
    reader = SpoolReader(spool, rows, None)
    reader.add_splits([SpoolSplit(0, 0, 2)])
    with pytest.raises(RecordError, match="The spool is damaged"):
        reader.poll(10)
    for name, read in (
        ("batch-0000000001", lambda: spool.manifest(1)),
        ("_end", spool.ended),
        ("_elsewhere", spool.elsewhere),
        ("_query", lambda: spool.query("q")),
        ("pin-savepoint", spool.pinned),
    ):
        spool.storage.replace(name, bomb)
        with pytest.raises(StorageError, match=name):
            read()


def test_notes_of_what_was_handed_over_are_json_and_nothing_else(proof: Path, tmp_path: Path) -> None:
    storage = FileSystemCheckpointStorage(str(tmp_path / "checkpoints"))
    notes = HandOverNotes(storage)
    notes.add("job", "out", 1, HistoryPoint("h", 1, 1))
    (path,) = storage.list("job/run-000001/handed-over/")
    storage.replace(path, pickle.dumps(Bomb(proof)))
    with pytest.raises(StorageError, match="does not say what was handed over"):
        HandOverNotes(storage).knows("job", "out", 1, HistoryPoint("h", 1, 1))


def collecting(configure: Callable[[StreamExecutionEnvironment], Any] = lambda env: None, **given: Any) -> Any:
    """Plan and settings of a job whose untyped results are collected, as `headrace run` with these options has them."""
    env = StreamExecutionEnvironment.get_execution_environment()
    configure(env)
    stream = env.from_collection([1])
    stream._declare("collect", CollectFactory("c"), None)
    with overriding(Overrides(**given)):
        return env.build("job")


def restore_results(plan: JobPlan, pickles: RecordPickles, value: Any) -> list[Any]:
    """A recovery from a checkpoint that holds one collected result, pickled."""
    item = PreparedItem(1, b"\x01" + pickle.dumps([value]))
    uid = next(node.uid for node in plan.graph.nodes if isinstance(node.factory, CollectFactory))
    subtask = SubtaskSnapshot(uid, 0, 1, 128, prepared=(item,))
    metadata = CheckpointMetadata(
        job_id="job",
        job_name="job",
        run=1,
        attempt=1,
        checkpoint_id=1,
        kind="savepoint",
        mode="aligned",
        created_ms=0,
        duration_ms=0,
        operators=(OperatorRecord(uid, "collect", 1, 128, (subtask,)),),
    )
    collected = CollectedResults(plan)
    restoration = Restoration.of(plan, metadata, allow_non_restored=True, pickles=pickles)
    restoration.commit_sinks("job", 2, collected, JobManagerCheckpointStorage())
    collected.end()
    return list(collected.iterate("c"))


def test_untyped_results_are_loaded_from_own_checkpoints_and_from_others_only_on_request(proof: Path) -> None:
    plan, settings = collecting()
    assert restore_results(plan, settings.pickles(chosen=False), Reading("a", 1)) == [Reading("a", 1)]
    with pytest.raises(RestoreError, match="--allow-pickle"):
        restore_results(plan, settings.pickles(chosen=True), Bomb(proof))
    plan, settings = collecting(restore_from="elsewhere", allow_pickle=True)
    assert restore_results(plan, settings.pickles(chosen=True), Reading("a", 1)) == [Reading("a", 1)]

    def forbid(env: StreamExecutionEnvironment) -> None:
        env.configure(Configuration().set_string("pipeline.generic-types", "false"))

    plan, settings = collecting(forbid, restore_from="elsewhere", allow_pickle=True)
    for chosen in (True, False):
        with pytest.raises(RestoreError, match="not loaded"):
            restore_results(plan, settings.pickles(chosen=chosen), Bomb(proof))
