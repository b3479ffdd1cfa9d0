"""The spool between a Spark query and a job, without Spark: manifests, tries that died, splits, positions, removal."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import StreamExecutionEnvironment, TumblingEventTimeWindows, WatermarkStrategy
from headrace.connectors.dataframe.backlog import Backlog
from headrace.connectors.dataframe.enumerator import decode_state
from headrace.connectors.dataframe.parts import PartWriter
from headrace.connectors.dataframe.schema import row_type_of_spark
from headrace.connectors.dataframe.source import DataFrameSource
from headrace.connectors.dataframe.spool import DamagedSpoolError, Manifest, Spool, SpoolFile
from headrace.connectors.source import Boundedness
from headrace.errors import ConfigurationError, JobDefinitionError, RecordError, RestoreError
from headrace.testing import JobHarness
from headrace.testing.source_driver import SourceDriver
from headrace.types.information import RowType, Types
from headrace.types.rows import Row

ORDERS = RowType(("id", "amount"), (Types.LONG(), Types.DOUBLE()))


class FrameStandIn:
    """What `from_dataframe` asks a DataFrame before anything runs."""

    sparkSession = None

    def __init__(self, *fields: tuple[str, Any], streaming: bool = False) -> None:
        self.isStreaming = streaming
        self._fields = [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in fields]

    @property
    def schema(self) -> FrameStandIn:
        return self

    def jsonValue(self) -> dict[str, Any]:
        return {"type": "struct", "fields": self._fields}


@pytest.fixture
def spool(tmp_path: Path) -> Spool:
    return Spool((tmp_path / "spool").as_uri())


def orders_source(spool: Spool, *, streaming: bool = True, **more: Any) -> DataFrameSource:
    source = DataFrameSource(FrameStandIn(("id", "long"), ("amount", "double"), streaming=streaming), **more)
    source.bind(spool)
    return source


def orders(first: int, count: int) -> pa.RecordBatch:
    ids = range(first, first + count)
    return pa.RecordBatch.from_pydict({"id": pa.array(ids, pa.int64()), "amount": [n / 2 for n in ids]})


def store(
    spool: Spool, batch: int, partitions: list[list[pa.RecordBatch]], *, this_try: str = "1", file_bytes: int = 1 << 20
) -> list[SpoolFile]:
    """One try of a batch, up to the moment before its manifest."""
    write = PartWriter(spool, batch, this_try, ORDERS, file_bytes)
    told = [file for n, batches in enumerate(partitions) for file in write(n, iter(batches))]
    return [msgspec.msgpack.decode(file, type=SpoolFile) for file in told]


def publish(spool: Spool, batch: int, *partitions: list[pa.RecordBatch], **more: Any) -> bool:
    return spool.publish(Manifest(batch, str(ORDERS), tuple(store(spool, batch, list(partitions), **more))))


def ids(driver: SourceDriver) -> list[int]:
    return [value.id for value in driver.values]


# What counts


def test_rows_come_as_typed_rows_in_the_order_of_batches_and_partitions(spool: Spool) -> None:
    publish(spool, 0, [orders(0, 5), orders(5, 5)], [orders(10, 3)])
    publish(spool, 1, [orders(13, 2)])
    driver = SourceDriver(orders_source(spool))
    driver.run()
    assert ids(driver) == list(range(15))
    assert driver.values[3] == Row(id=3, amount=1.5)
    assert not driver.ended


def test_files_without_a_manifest_are_seen_by_nobody(spool: Spool) -> None:
    store(spool, 0, [[orders(100, 50)]], this_try="died")
    driver = SourceDriver(orders_source(spool))
    assert driver.run() == []
    publish(spool, 0, [orders(0, 4)], this_try="second")
    driver.discover()
    driver.run()
    assert ids(driver) == [0, 1, 2, 3]


def test_of_two_tries_of_a_batch_the_first_manifest_counts_for_ever(spool: Spool) -> None:
    slow = store(spool, 0, [[orders(100, 5)]], this_try="slow")
    assert publish(spool, 0, [orders(0, 5)], this_try="quick")
    assert not spool.publish(Manifest(0, str(ORDERS), tuple(slow)))
    driver = SourceDriver(orders_source(spool))
    driver.run()
    assert ids(driver) == [0, 1, 2, 3, 4]


def test_a_manifest_published_twice_by_the_same_try_is_the_same_manifest(spool: Spool) -> None:
    manifest = Manifest(0, str(ORDERS), tuple(store(spool, 0, [[orders(0, 5)]])))
    assert spool.publish(manifest)
    assert spool.publish(manifest)


def test_a_later_batch_waits_for_the_one_before_it(spool: Spool) -> None:
    driver = SourceDriver(orders_source(spool))
    publish(spool, 1, [orders(5, 5)])
    driver.discover()
    assert driver.run() == []
    publish(spool, 0, [orders(0, 5)])
    driver.discover()
    driver.run()
    assert ids(driver) == list(range(10))


def test_the_source_ends_behind_the_last_batch(spool: Spool) -> None:
    source = orders_source(spool, streaming=False)
    assert source.boundedness is Boundedness.BOUNDED
    driver = SourceDriver(source, parallelism=2)
    publish(spool, 0, [orders(0, 5)])
    driver.discover()
    driver.run()
    assert not driver.ended
    spool.end(1)
    driver.discover()
    driver.run()
    assert driver.ended
    assert sorted(ids(driver)) == [0, 1, 2, 3, 4]


def test_a_frame_without_rows_has_a_batch_without_files(spool: Spool) -> None:
    publish(spool, 0, [], [])
    spool.end(1)
    driver = SourceDriver(orders_source(spool, streaming=False))
    driver.run()
    assert driver.ended
    assert driver.values == []


# Positions


@settings(max_examples=25)
@given(
    sizes=st.lists(st.integers(0, 40), min_size=1, max_size=6),
    cuts=st.lists(st.integers(0, 60), max_size=3),
    parallelism=st.integers(1, 3),
)
def test_every_row_is_read_once_through_any_restores(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], cuts: list[int], parallelism: int
) -> None:
    spool = Spool(tmp_path_factory.mktemp("spool").as_uri())
    first = 0
    for batch, size in enumerate(sizes):
        parts = [[orders(first, size // 2)], [orders(first + size // 2, size - size // 2)]]
        publish(spool, batch, *parts, file_bytes=200)
        first += size
    spool.end(len(sizes))
    source = orders_source(spool)
    seen: list[int] = []
    snapshot = None
    for cut in cuts:
        driver = SourceDriver(source, parallelism=parallelism, restored=snapshot)
        driver.run(records=cut, limit=7)
        seen += ids(driver)
        snapshot = driver.snapshot()
        driver.close()
    driver = SourceDriver(source, parallelism=3 - parallelism % 2, restored=snapshot)
    driver.run()
    assert sorted(seen + ids(driver)) == list(range(first))
    assert driver.ended


def test_a_partition_is_cut_into_files_that_several_subtasks_read(spool: Spool) -> None:
    files = store(spool, 0, [[orders(n * 100, 100) for n in range(10)]], file_bytes=4_000)
    assert len(files) > 3
    assert sum(file.rows for file in files) == 1_000
    assert [file.file.path.rpartition("-")[0].rpartition("-")[2] for file in files][:2] == ["000", "001"]


def test_small_files_are_dealt_several_at_a_time_and_fairly(spool: Spool) -> None:
    publish(spool, 0, *[[orders(n, 1)] for n in range(12)])
    driver = SourceDriver(orders_source(spool), parallelism=3)
    driver.poll(0)
    assert len(driver.readers[0].snapshot()) == 4
    driver.run()
    assert sorted(ids(driver)) == list(range(12))


# What must not be taken for the same


def test_another_schema_than_the_spool_has_is_refused(spool: Spool) -> None:
    publish(spool, 0, [orders(0, 1)])
    source = DataFrameSource(FrameStandIn(("id", "long"), streaming=True))
    source.bind(spool)
    with pytest.raises(RestoreError, match=r"Batch 0 .* has rows of ROW<id LONG, amount DOUBLE>, but .* ROW<id LONG>"):
        SourceDriver(source)


def test_a_batch_that_is_needed_and_gone_is_an_error_with_its_number(spool: Spool) -> None:
    for batch in range(4):
        publish(spool, batch, [orders(batch, 1)])
    source = orders_source(spool)
    snapshot = SourceDriver(source).snapshot()
    spool.collect(3)
    with pytest.raises(RestoreError, match=r"needs batch 0 of the spool .*, which begins with batch 3"):
        SourceDriver(source, restored=snapshot)


def test_a_file_that_lost_its_end_fails_by_name(spool: Spool, tmp_path: Path) -> None:
    publish(spool, 0, [orders(0, 1_000)])
    (path,) = (tmp_path / "spool" / "data").rglob("part-*")
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(Exception, match=path.name):
        SourceDriver(orders_source(spool)).run()


# Removal


def test_batches_before_the_needed_one_are_removed_and_the_newest_manifest_stays(spool: Spool, tmp_path: Path) -> None:
    store(spool, 0, [[orders(50, 5)]], this_try="died")
    for batch in range(3):
        publish(spool, batch, [orders(batch * 5, 5)])
    assert spool.collect(2) == [0, 1]
    assert spool.batches() == [2]
    spool.collect(3)
    assert spool.batches() == [2]
    assert not list((tmp_path / "spool" / "data").rglob("part-*"))


def test_what_a_savepoint_needs_stays(spool: Spool) -> None:
    for batch in range(4):
        publish(spool, batch, [orders(batch, 1)])
    spool.pin("savepoint-7", 1)
    spool.pin("savepoint-9", 3)
    assert spool.collect(4) == [0]
    assert spool.batches() == [1, 2, 3]
    spool.unpin("savepoint-7")
    assert spool.collect(4) == [1, 2]


def test_the_state_says_which_batch_it_needs_first(spool: Spool) -> None:
    for batch in range(3):
        publish(spool, batch, [orders(batch * 5, 5)], [orders(100 + batch, 1)])
    driver = SourceDriver(orders_source(spool))
    state = decode_state(driver.snapshot().enumerator)
    assert (state.next_batch, state.first_needed, state.spool) == (3, 0, spool.location)
    driver.run()
    assert decode_state(driver.snapshot().enumerator).first_needed == 3


# Running ahead


def test_a_query_waits_while_too_much_is_unread_and_is_let_go_at_the_end() -> None:
    backlog = Backlog(100)
    assert backlog.wait_for_room()
    backlog.waiting(101)
    backlog.close()
    assert not backlog.wait_for_room()


def test_the_enumerator_tells_how_much_is_unread(spool: Spool) -> None:
    publish(spool, 0, [orders(0, 100)])
    source = orders_source(spool, ahead_bytes=0)
    driver = SourceDriver(source)
    assert source.backlog._bytes > 800
    driver.run()
    assert source.backlog._bytes == 0
    assert source.backlog.wait_for_room()


# Types and settings


def test_every_spark_type_with_a_counterpart_is_translated() -> None:
    struct = {"type": "struct", "fields": [{"name": "x", "type": "integer", "nullable": True, "metadata": {}}]}
    found = row_type_of_spark(
        FrameStandIn(
            ("s", "string"),
            ("v", "varchar(10)"),
            ("b", "boolean"),
            ("i8", "byte"),
            ("i16", "short"),
            ("i32", "integer"),
            ("f", "float"),
            ("bytes", "binary"),
            ("d", "date"),
            ("t", "timestamp"),
            ("n", "timestamp_ntz"),
            ("m", "decimal(10,2)"),
            ("l", {"type": "array", "elementType": "long", "containsNull": True}),
            ("k", {"type": "map", "keyType": "string", "valueType": "double", "valueContainsNull": True}),
            ("r", struct),
        ).jsonValue()
    )
    assert str(found) == (
        "ROW<s STRING, v STRING, b BOOLEAN, i8 BYTE, i16 SHORT, i32 INT, f FLOAT, bytes PRIMITIVE_ARRAY<BYTE>, "
        "d SQL_DATE, t INSTANT, n SQL_TIMESTAMP, m BIG_DEC, l LIST<LONG>, k MAP<STRING, DOUBLE>, r ROW<x INT>>"
    )


@pytest.mark.parametrize("kind", ["void", "interval day to second", "variant", {"type": "udt", "class": "x"}])
def test_a_type_without_counterpart_is_refused_with_its_column(kind: Any) -> None:
    fields = [{"name": "inner", "type": kind, "nullable": True, "metadata": {}}]
    with pytest.raises(JobDefinitionError, match=r'Column "outer\.inner" of the DataFrame is of Spark\'s type'):
        row_type_of_spark(FrameStandIn(("outer", {"type": "struct", "fields": fields})).jsonValue())


def spooled(spool: Spool, row_type: RowType, batch: pa.RecordBatch) -> None:
    told = PartWriter(spool, 0, "1", row_type)(0, iter([batch]))
    files = tuple(msgspec.msgpack.decode(file, type=SpoolFile) for file in told)
    spool.publish(Manifest(0, str(row_type), files))


def test_decimals_are_read_row_by_row(spool: Spool) -> None:
    source = DataFrameSource(FrameStandIn(("price", "decimal(10,2)"), streaming=True))
    source.bind(spool)
    prices = pa.array([Decimal("1.50"), None], pa.decimal128(10, 2))
    spooled(spool, source.row_type, pa.RecordBatch.from_arrays([prices], ["price"]))
    driver = SourceDriver(source)
    driver.run()
    assert driver.values == [Row(price=Decimal("1.50")), Row(price=None)]


def nested() -> Iterator[tuple[Any, pa.DataType, Any, Any]]:
    """Spark's type, the Arrow type in which Spark gives it, a value, and what a row holds then."""
    element = pa.field("element", pa.int64())
    yield {"type": "array", "elementType": "long", "containsNull": True}, pa.list_(element), [1, 2], [1, 2]
    yield (
        {"type": "map", "keyType": "string", "valueType": "long", "valueContainsNull": True},
        pa.map_(pa.string(), pa.field("value", pa.int64())),
        [("a", 1)],
        {"a": 1},
    )
    inner = {"type": "struct", "fields": [{"name": "x", "type": "long", "nullable": True, "metadata": {}}]}
    yield inner, pa.struct([("x", pa.int64())]), {"x": 4}, Row(x=4)
    moment = dt.datetime(2024, 5, 1, 12, tzinfo=dt.UTC)
    yield "timestamp", pa.timestamp("us", "Europe/Berlin"), moment, moment


@pytest.mark.parametrize(("kind", "arrow", "value", "wanted"), list(nested()))
def test_what_spark_gives_is_brought_to_the_declared_columns(
    spool: Spool, kind: Any, arrow: pa.DataType, value: Any, wanted: Any
) -> None:
    source = DataFrameSource(FrameStandIn(("c", kind), streaming=True))
    source.bind(spool)
    spooled(spool, source.row_type, pa.RecordBatch.from_arrays([pa.array([value, None], arrow)], ["c"]))
    driver = SourceDriver(source)
    driver.run()
    assert driver.values == [Row(c=wanted), Row(c=None)]


def test_a_column_gives_the_time_of_each_row(spool: Spool) -> None:
    source = DataFrameSource(FrameStandIn(("t", "timestamp"), streaming=True), event_time="t")
    source.bind(spool)
    times = pa.array([1_500_999, -1], pa.timestamp("us", "UTC"))
    spooled(spool, source.row_type, pa.RecordBatch.from_arrays([times], ["t"]))
    driver = SourceDriver(source)
    driver.run()
    assert [record.timestamp for record in driver.records] == [1_500, -1]


def test_a_row_without_its_time_fails_by_name(spool: Spool) -> None:
    source = orders_source(spool, event_time="id")
    spooled(spool, ORDERS, pa.RecordBatch.from_pydict({"id": pa.array([None], pa.int64()), "amount": [1.0]}))
    with pytest.raises(RecordError, match='has no value in "id", which is its event time'):
        SourceDriver(source).run()


@pytest.mark.parametrize(
    ("settings_", "message"),
    [
        ({"trigger": {"processingTime": "1 second"}}, "has a trigger, but the DataFrame is no streaming one"),
        ({"spark_checkpoint": "/x"}, "its query keeps no checkpoint"),
        ({"ahead_bytes": -1}, "has ahead_bytes=-1"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings_: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        DataFrameSource(FrameStandIn(("id", "long")), **settings_)


def test_an_unknown_trigger_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="has trigger="):
        DataFrameSource(FrameStandIn(("id", "long"), streaming=True), trigger={"continuous": "1 second"})


@pytest.mark.parametrize(("column", "message"), [("when", "the columns are id, name"), ("name", "which is STRING")])
def test_a_time_column_must_be_one(column: str, message: str) -> None:
    with pytest.raises(JobDefinitionError, match=message):
        DataFrameSource(FrameStandIn(("id", "long"), ("name", "string")), event_time=column)


def test_a_stream_of_what_is_available_now_has_an_end() -> None:
    frame = FrameStandIn(("id", "long"), streaming=True)
    assert DataFrameSource(frame).boundedness is Boundedness.UNBOUNDED
    assert DataFrameSource(frame, trigger={"availableNow": True}).boundedness is Boundedness.BOUNDED


def test_outside_of_a_job_on_spark_there_is_nothing_to_read() -> None:
    with pytest.raises(JobDefinitionError, match="only there is its query run"):
        SourceDriver(DataFrameSource(FrameStandIn(("id", "long"))))


def test_time_goes_on_though_files_are_shorter_than_the_interval_of_watermarks(spool: Spool) -> None:
    source = orders_source(spool, event_time="id")
    publish(spool, 0, [orders(0, 11)])
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(1)
    strategy = WatermarkStrategy.for_monotonous_timestamps()
    windows = env.from_source(source, strategy, "orders").key_by(lambda row: 0).window(TumblingEventTimeWindows.of(10))
    with JobHarness(windows.reduce(lambda a, b: Row(id=a.id + b.id, amount=b.amount))) as job:
        job.run()
        job.checkpoint()
        assert [row.id for row in job.results] == [sum(range(10))]


# One file is lost or damaged


def damaged(path: Path, how: str, other: Path) -> None:
    data = path.read_bytes()
    match how:
        case "deleted":
            path.unlink()
        case "emptied":
            path.write_bytes(b"")
        case "halved":
            path.write_bytes(data[: len(data) // 2])
        case "swapped":
            path.write_bytes(other.read_bytes())
            other.write_bytes(data)
        case "one bit flipped":
            flipped = bytearray(data)
            flipped[len(data) // 2] ^= 1
            path.write_bytes(flipped)


@pytest.mark.parametrize("batch", [1, 2], ids=["the next one", "a later one"])
@pytest.mark.parametrize("how", ["deleted", "emptied", "halved", "swapped", "one bit flipped"])
def test_a_lost_or_damaged_manifest_is_refused_by_name_and_for_good(
    spool: Spool, tmp_path: Path, how: str, batch: int
) -> None:
    publish(spool, 0, [orders(0, 3)])
    before = SourceDriver(orders_source(spool))
    before.run()
    snapshot = before.snapshot()
    for n in range(1, 4):
        publish(spool, n, [orders(3 * n, 3)])
    names = [tmp_path / "spool" / f"batch-{n:010d}" for n in range(4)]
    damaged(names[batch], how, names[3])

    with pytest.raises(RestoreError, match=rf"batch-000000000{batch}|needs batch {batch}") as refused:
        SourceDriver(orders_source(spool), restored=snapshot).run()
    assert not refused.value.retryable


def test_a_manifest_that_is_lost_while_the_job_runs_does_not_make_it_wait_for_good(
    spool: Spool, tmp_path: Path
) -> None:
    publish(spool, 0, [orders(0, 3)])
    driver = SourceDriver(orders_source(spool))
    publish(spool, 1, [orders(3, 3)])
    (tmp_path / "spool" / "batch-0000000001").unlink()
    driver.discover()
    publish(spool, 2, [orders(6, 3)])
    driver.discover()

    with pytest.raises(DamagedSpoolError, match="batch-0000000001 is damaged: it is missing, although batch 2"):
        driver.discover()


@pytest.mark.parametrize("how", ["emptied", "halved", "one bit flipped"])
@pytest.mark.parametrize("name", ["_end", "_query", "_elsewhere", "pin-savepoint"])
def test_a_damaged_small_file_of_a_spool_is_refused_by_name(spool: Spool, tmp_path: Path, name: str, how: str) -> None:
    spool.query("a-query")
    spool.end(1)
    spool.point_to("file:///somewhere")
    spool.pin("savepoint", 0)
    read = {"_end": spool.ended, "_query": lambda: spool.query("a-query"), "_elsewhere": spool.elsewhere}
    damaged(tmp_path / "spool" / name, how, tmp_path)

    with pytest.raises(DamagedSpoolError, match=name):
        read.get(name, spool.pinned)()


def test_files_of_a_spool_that_have_no_checksum_yet_are_read(spool: Spool) -> None:
    files = tuple(store(spool, 0, [[orders(0, 3)]]))
    old = {"batch": 0, "type": str(ORDERS), "files": files, "version": 1}
    spool.storage.create_exclusive("batch-0000000000", msgspec.msgpack.encode(old))
    spool.storage.create_exclusive("_end", b'{"batches": 1}')
    driver = SourceDriver(orders_source(spool))
    driver.run()
    assert ids(driver) == [0, 1, 2]
    assert driver.ended
