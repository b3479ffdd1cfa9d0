"""State as a Spark DataFrame and back, by Spark's own tasks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from golden_jobs import (
    BY_ITEM,
    COUNT,
    MAX_PARALLELISM,
    PENDING,
    PROFILE,
    RULES,
    SEEN,
    UID,
    Publisher,
    Shape,
    expected_contents,
    job,
    restored,
)

from headrace import KeyedProcessFunction, StreamExecutionEnvironment
from headrace.checkpoint.location import open_checkpoint
from headrace.checkpoint.metadata.codec import files_of
from headrace.checkpoint.places import find_place
from headrace.checkpoint.storage.filesystem import FileSystemCheckpointStorage
from headrace.checkpoint.verification import verify
from headrace.state_reader import SavepointWriter, StateReader
from headrace.testing import JobHarness
from headrace.testing.job_harness import JobSnapshot
from headrace.types.information import Types
from headrace.types.rows import Row

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module", params=["heap", "rocksdb"])
def saved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A checkpoint of two subtasks."""
    root = tmp_path_factory.mktemp("saved")
    with job(Shape(backend=request.param)) as made:
        Publisher(FileSystemCheckpointStorage(str(root))).publish(made, 3)
    return str(root / "golden")


def test_a_state_is_a_dataframe_that_sql_can_ask(saved: str, spark_slots: Any) -> None:
    spark = spark_slots.user_session
    reader = StateReader(saved)
    frame = reader.dataframe(spark, UID, "profile", key_type=Types.ANY())
    assert frame.schema.simpleString().startswith(
        "struct<key:string,key_group:int,namespace:binary,window_start:bigint"
    )
    frame.createOrReplaceTempView("profile")
    found = spark.sql("select value.name, value.score from profile where key = 'user-7'").collect()
    assert [tuple(row) for row in found] == [("n7", 1.75)]
    wanted = sum(1 for _ in reader.keyed(UID, "profile"))
    assert frame.count() == wanted
    assert frame.rdd.getNumPartitions() >= 2


def test_a_map_state_has_a_row_for_each_of_its_entries(saved: str, spark_slots: Any) -> None:
    frame = StateReader(saved).dataframe(spark_slots.user_session, UID, "by-item", key_type=Types.ANY())
    rows = frame.where("key = 'user-2'").orderBy("map_key").select("map_key", "value").collect()
    assert [tuple(row) for row in rows] == [("i0", 2.0), ("i1", 2.125)]


def test_a_table_becomes_the_first_state_of_a_job(spark_slots: Any, tmp_path: Path) -> None:
    spark = spark_slots.user_session
    frame = spark.range(0, 200, 1, 3).selectExpr(
        "concat('u', id) as user",
        "id as total",
        "named_struct('name', concat('n', id), 'score', id / 2) as profile",
        "array('a', cast(id as string)) as seen",
        "map('x', cast(id as double)) as items",
    )
    writer = SavepointWriter.new("counts")
    operator = writer.with_operator(UID, MAX_PARALLELISM)
    for descriptor, column in ((COUNT, "total"), (PROFILE, "profile"), (SEEN, "seen"), (BY_ITEM, "items")):
        operator.keyed_state_from_dataframe(descriptor, frame, key="user", value=column)
    location = writer.write(str(tmp_path / "first"))
    opened = open_checkpoint(location)
    for backend in ("heap", "rocksdb"):
        found = restored(opened.metadata, opened.storage, tmp_path, backend, 3)
        assert found["count"] == {f"u{n}": n for n in range(200)}
        assert found["profile"]["u7"] == Row(name="n7", score=3.5)
        assert found["seen"]["u7"] == ["a", "7"]
        assert found["by-item"]["u7"] == {"x": 7.0}
    # Written by several tasks, each its own share of the key groups; nothing is left of what was in between.
    (record,) = opened.metadata.operators
    shares = [subtask.keyed for subtask in record.subtasks if subtask.keyed is not None]
    assert len(shares) == record.parallelism == 3
    assert [g for s in shares for g in range(s.first_group, s.last_group + 1)] == list(range(MAX_PARALLELISM))
    assert verify(find_place(location).checkpoints()).findings == ()
    # And round: keys that are all text are a column of text, without being told.
    again = StateReader(location).dataframe(spark, UID, "count")
    assert again.schema["key"].dataType.simpleString() == "string"
    assert again.selectExpr("sum(value) as s").first()["s"] == sum(range(200))


def test_a_large_table_is_written_by_all_tasks_and_read_back_equal(spark_slots: Any, tmp_path: Path) -> None:
    spark = spark_slots.user_session
    frame = spark.range(0, 12_000, 1, 7).selectExpr("id as key", "id * 3 as value")
    assert frame.rdd.getNumPartitions() == 7
    writer = SavepointWriter.new("counts")
    # What the driver puts under other states, and timers, goes to the same shares.
    operator = writer.with_operator(UID, MAX_PARALLELISM).keyed_state(SEEN, [(n, [str(n)]) for n in range(50)])
    operator.timer("event", 60_000, 17).keyed_state_from_dataframe(COUNT, frame)
    operator.list_state(PENDING, [1, 2, 3]).broadcast_state(RULES, {"limit": 5})
    location = writer.write(str(tmp_path / "large"))
    opened = open_checkpoint(location)
    on_disk = {path.relative_to(tmp_path / "large").as_posix() for path in (tmp_path / "large").rglob("*")}
    assert {path for path in on_disk if (tmp_path / "large" / path).is_file()} == {
        "_metadata",
        *files_of(opened.metadata),
    }
    found = restored(opened.metadata, opened.storage, tmp_path, "rocksdb", 5)
    assert found["count"] == {n: 3 * n for n in range(12_000)}
    assert found["seen"] == {n: [str(n)] for n in range(50)}
    assert found["event"] == {17: (60_000, b"")}
    again = StateReader(location).dataframe(spark, UID, "count").select("key", "value")
    assert sorted(map(tuple, again.collect())) == [(n, 3 * n) for n in range(12_000)]


def test_a_dataframe_replaces_keys_of_a_saved_state_and_what_comes_after_it_replaces_them_again(
    saved: str, spark_slots: Any, tmp_path: Path
) -> None:
    spark = spark_slots.user_session
    frame = spark.createDataFrame([("user-1", 1_001), ("user-2", 1_002), ("new", 1_003)], "key string, value long")
    writer = SavepointWriter.from_existing(saved)
    operator = writer.with_operator(UID).keyed_state_from_dataframe(COUNT, frame)
    location = writer.write(str(tmp_path / "repaired"))
    opened = open_checkpoint(location)
    wanted = expected_contents()
    wanted["count"] |= {"user-1": 1_001, "user-2": 1_002, "new": 1_003}
    assert restored(opened.metadata, opened.storage, tmp_path / "a", "heap", 3) == wanted
    (record,) = (r for r in opened.metadata.operators if r.uid == UID)
    assert record.parallelism == 2, "operator state belongs to single subtasks, so their number stays"

    writer = SavepointWriter.from_existing(location)
    operator = writer.with_operator(UID).keyed_state_from_dataframe(COUNT, frame.selectExpr("key", "-value as value"))
    operator.keyed_state(COUNT, [("new", 7)]).remove_key(COUNT, "user-2")
    opened = open_checkpoint(writer.write(str(tmp_path / "again")))
    wanted["count"] |= {"user-1": -1_001, "new": 7}
    del wanted["count"]["user-2"]
    assert restored(opened.metadata, opened.storage, tmp_path / "b", "rocksdb", 1) == wanted


class Counted(KeyedProcessFunction):
    def open(self, runtime_context: Any) -> None:
        self.count = runtime_context.get_state(COUNT)

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        self.count.update((self.count.value() or 0) + 1)
        yield value, self.count.value()


def test_a_job_begins_with_the_contents_of_a_table(spark_slots: Any, tmp_path: Path) -> None:
    spark = spark_slots.user_session
    writer = SavepointWriter.new("counts")
    table = spark.range(0, 1_000, 1, 3).selectExpr("concat('u', id) as key", "id as value")
    writer.with_operator("counts").keyed_state_from_dataframe(COUNT, table)
    location = writer.write(str(tmp_path / "from-a-table"))
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(2)
    words = env.from_collection([f"u{n}" for n in range(0, 1_000, 100)], Types.STRING())
    counted = words.key_by(lambda word: word, key_type=Types.STRING()).process(Counted()).uid("counts")
    opened = open_checkpoint(location)
    with JobHarness(counted, restored=JobSnapshot(opened.metadata, opened.storage)) as begun:
        assert sorted(begun.run_to_end()) == sorted((f"u{n}", n + 1) for n in range(0, 1_000, 100))
