"""State as a Spark DataFrame and back, by Spark's own tasks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from golden_jobs import BY_ITEM, COUNT, MAX_PARALLELISM, PROFILE, SEEN, UID, Publisher, Shape, job, restored

from headrace.checkpoint.location import open_checkpoint
from headrace.checkpoint.storage.filesystem import FileSystemCheckpointStorage
from headrace.state_reader import SavepointWriter, StateReader
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
    frame = spark.range(200).selectExpr(
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
    # And round: keys that are all text are a column of text, without being told.
    again = StateReader(location).dataframe(spark, UID, "count")
    assert again.schema["key"].dataType.simpleString() == "string"
    assert again.selectExpr("sum(value) as s").first()["s"] == sum(range(200))
