"""Spark DataFrames into a job and out of it, on a real Spark: files, micro-batches, failing queries, recoveries."""

from __future__ import annotations

import os
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from s3 import S3Server, running_s3

from headrace import (
    FileSource,
    RestartStrategies,
    Row,
    StreamExecutionEnvironment,
    Types,
    WatermarkStrategy,
    failpoints,
)
from headrace.checkpoint.storage.s3 import S3CheckpointStorage
from headrace.connectors.dataframe.spool import Spool
from headrace.datastream.overrides import Overrides, overriding
from headrace.errors import CommittedOutputError, ConfigurationError, JobFailedError, UserFunctionError

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]

PAIR = Types.ROW_NAMED(["id", "note"], [Types.LONG(), Types.STRING()])


@pytest.fixture
def spark(spark_slots: Any) -> Any:
    return spark_slots.user_session


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[..., None]]:
    """Plan faults, each of which happens once."""

    def plan(*faults: str) -> None:
        monkeypatch.setenv("HEADRACE_FAULT_LOG", str(tmp_path / "faults"))
        monkeypatch.setenv("HEADRACE_FAILPOINTS", "; ".join(faults))
        failpoints.configure("; ".join(faults), tmp_path / "faults")

    yield plan
    failpoints.configure("", None)


class Kept:
    """A function for `sink_to_dataframe` that remembers every call, and may fail at some."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, str, list[Any]]] = []
        self.fail_at: set[int] = set()

    def __call__(self, frame: Any, checkpoint: Any) -> None:
        rows = [tuple(row) for row in frame.collect()]
        self.calls.append((int(checkpoint), checkpoint.marker, rows))
        if len(self.calls) in self.fail_at:
            raise OSError("the table is locked")

    @property
    def by_id(self) -> dict[int, list[Any]]:
        return {number: rows for number, _, rows in self.calls}

    @property
    def rows(self) -> list[Any]:
        """As a function that skips ids it has seen would have written them."""
        return [row for rows in self.by_id.values() for row in rows]


def env_in(directory: Path, *, interval: int | None = 100, restarts: int = 5, parallelism: int = 2) -> Any:
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(parallelism)
    if interval is not None:
        env.enable_checkpointing(interval)
        env.get_checkpoint_config().set_checkpoint_storage(f"file://{directory}/checkpoints")
    env.set_restart_strategy(RestartStrategies.fixed_delay_restart(restarts, 20))
    return env


def as_pair(row: Any) -> Row:
    return Row(id=row.id, note=row.note)


def parquet_files(spark: Any, place: Path, files: int, rows: int) -> str:
    for n in range(files):
        spark.range(n * rows, (n + 1) * rows, 1, 1).selectExpr("id", "cast(id % 5 as string) as note").write.mode(
            "append"
        ).parquet(str(place))
    return str(place)


def spool_of(directory: Path, job: str) -> Spool:
    (found,) = (directory / "checkpoints" / job / "run-000001" / "spool").iterdir()
    return Spool(found.as_uri())


# Batch


def test_a_batch_frame_that_is_never_the_same_twice_is_computed_once_whatever_fails(
    spark: Any, tmp_path: Path, failing: Callable[..., None]
) -> None:
    """It fails between the files and the manifest, and a worker is killed in the middle of reading."""
    failing("spool_stored=raise@1", "record=kill@2#0.0")
    parquet_files(spark, tmp_path / "in", 2, 2_000)
    frame = spark.read.parquet(str(tmp_path / "in")).selectExpr("id", "concat(note, '-', uuid()) as note")
    env = env_in(tmp_path)
    kept = Kept()
    stream = env.from_dataframe(frame, source_name="numbers").uid("numbers")
    stream.key_by("note").map(as_pair, output_type=PAIR).sink_to_dataframe(kept).uid("out")
    result = env.execute("never-the-same")
    assert sorted(row[0] for row in kept.rows) == list(range(4_000))
    assert len({row[1] for row in kept.rows}) == 4_000
    assert result.restarts >= 1
    assert not list((tmp_path / "checkpoints" / "never-the-same" / "run-000001").glob("spool/*"))


def test_a_frame_of_every_kind_of_column_comes_out_as_it_went_in(spark: Any, tmp_path: Path) -> None:
    frame = spark.range(20).selectExpr(
        "id",
        "cast(id as decimal(10, 2)) as price",
        "timestamp_micros(id * 1000001) as at",
        "array(id, id + 1) as several",
        "map('a', id) as named",
        "named_struct('x', id, 'y', cast(id as string)) as inner",
        "if(id = 3, null, cast(id as string)) as maybe",
    )
    env = env_in(tmp_path, interval=None)
    rows = {row.id: row for row in env.from_dataframe(frame).execute_and_collect("kinds")}
    assert len(rows) == 20
    assert (str(rows[7].price), rows[7].several, rows[7].named) == ("7.00", [7, 8], {"a": 7})
    assert (rows[7].inner.y, rows[3].maybe, rows[7].at.microsecond) == ("7", None, 7)


# Streaming


def test_micro_batches_are_read_once_through_failures_on_both_sides(
    spark: Any, tmp_path: Path, failing: Callable[..., None]
) -> None:
    failing("spool_stored=raise@2", "spool_published=raise@2", "record=kill@3#0.0", "after_publish=raise@2")
    place = parquet_files(spark, tmp_path / "in", 4, 500)
    frame = spark.readStream.schema("id long, note string").option("maxFilesPerTrigger", 1).parquet(place)
    env = env_in(tmp_path)
    kept = Kept()
    stream = env.from_dataframe(frame, trigger={"availableNow": True}).uid("files")
    stream.key_by("note").map(as_pair, output_type=PAIR).sink_to_dataframe(kept).uid("out")
    result = env.execute("micro-batches")
    assert sorted(row[0] for row in kept.rows) == list(range(2_000))
    assert result.restarts >= 2


@pytest.mark.slow
def test_a_stream_without_end_is_suspended_and_goes_on_in_its_own_spool(spark: Any, tmp_path: Path) -> None:
    """A row of Spark's generator is known by its number: none is missing and none comes twice."""
    kept = Kept()
    enough = threading.Event()

    def run(until: int) -> None:
        frame = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 50).load()
        env = env_in(tmp_path)
        stream = env.from_dataframe(frame, trigger={"processingTime": "100 milliseconds"}).uid("rate")

        def function(rows: Any, checkpoint: Any) -> None:
            kept(rows, checkpoint)
            if len(kept.rows) >= until:
                enough.set()

        numbered = stream.map(lambda row: Row(value=row.value), output_type=Types.ROW_NAMED(["value"], [Types.LONG()]))
        numbered.sink_to_dataframe(function).uid("out")
        enough.clear()
        client = env.execute_async("endless")
        assert enough.wait(90)
        client.suspend().result(180)

    run(100)
    run(len(kept.rows) + 100)
    values = [row[0] for row in kept.rows]
    assert Counter(values).most_common(1)[0][1] == 1
    assert sorted(values) == list(range(len(values)))
    spool = spool_of(tmp_path, "endless")
    assert spool.batches()[0] > 0, "what no checkpoint needs any more is removed"


def test_a_time_column_drives_windows(spark: Any, tmp_path: Path) -> None:
    from headrace import TumblingEventTimeWindows
    from headrace.durations import Time

    frame = spark.range(100).selectExpr("id", "timestamp_millis(id * 100) as at", "'k' as key")
    env = env_in(tmp_path, interval=None, parallelism=1)
    strategy = WatermarkStrategy.for_monotonous_timestamps()
    stream = env.from_dataframe(frame.coalesce(1), strategy, event_time="at").key_by("key")
    sums = stream.window(TumblingEventTimeWindows.of(Time.seconds(5))).reduce(
        lambda a, b: Row(id=a.id + b.id, at=b.at, key="k")
    )
    assert sorted(row.id for row in sums.execute_and_collect("windows")) == [sum(range(50)), sum(range(50, 100))]


# What goes wrong


def test_a_failing_query_fails_the_job_with_its_own_error(spark: Any, tmp_path: Path) -> None:
    frame = spark.range(10).selectExpr("if(id = 7, raise_error('order 7 is broken'), id) as id")
    env = env_in(tmp_path, restarts=0)
    env.from_dataframe(frame, source_name="orders").uid("orders-in").print()
    with pytest.raises(JobFailedError, match=r'feeds "orders" \(uid orders-in\) failed: (?s:.*)order 7 is broken'):
        env.execute("broken-query")


def test_a_spark_checkpoint_that_was_removed_is_noticed(spark: Any, tmp_path: Path) -> None:
    """A query that counts its batches anew would have some taken for those that are there."""
    place = parquet_files(spark, tmp_path / "in", 2, 10)

    def run() -> None:
        frame = spark.readStream.schema("id long, note string").option("maxFilesPerTrigger", 1).parquet(place)
        env = env_in(tmp_path, restarts=0)
        stream = env.from_dataframe(frame, spark_checkpoint=f"file://{tmp_path}/spark").uid("files")
        client = stream.map(lambda row: row).execute_and_collect("removed")
        assert len({row.id for _, row in zip(range(20), client, strict=False)}) == 20
        client._client.suspend().result(180)

    run()
    shutil.rmtree(tmp_path / "spark")
    with pytest.raises(JobFailedError, match="was written by query"):
        run()


# Output


def test_a_function_that_fails_gets_the_same_rows_under_the_same_id_again(spark: Any, tmp_path: Path) -> None:
    kept = Kept()
    kept.fail_at = {1, 3}
    env = env_in(tmp_path)
    frame = spark.range(3_000).selectExpr("id", "cast(id % 5 as string) as note")
    stream = env.from_dataframe(frame).rebalance().map(as_pair, output_type=PAIR)
    stream.sink_to_dataframe(kept).name("table").uid("out")
    result = env.execute("locked-table")
    assert result.restarts >= 1
    for number, _, rows in kept.calls:
        assert sorted(rows) == sorted(kept.by_id[number])
    assert sorted(row[0] for row in kept.rows) == list(range(3_000))
    numbers = [number for number, _, _ in kept.calls]
    assert numbers == sorted(numbers)
    assert len({(number, marker) for number, marker, _ in kept.calls}) == len(kept.by_id)
    assert all(marker.startswith("locked-table/out/") for _, marker, _ in kept.calls)


def test_the_error_of_a_function_that_always_fails_names_it(spark: Any, tmp_path: Path) -> None:
    kept = Kept()
    kept.fail_at = {1}
    env = env_in(tmp_path, restarts=0)
    env.from_dataframe(spark.range(10)).sink_to_dataframe(kept).name("table").uid("out")
    with pytest.raises(UserFunctionError, match=r'"table" \(uid out\) failed on the output of checkpoint \d+.*locked'):
        env.execute("always-locked")


def test_spark_writes_what_it_is_handed_and_a_new_run_has_markers_of_its_own(spark: Any, tmp_path: Path) -> None:
    out = tmp_path / "out"

    def write(frame: Any, checkpoint: Any) -> None:
        frame.write.mode("overwrite").parquet(str(out / checkpoint.marker.replace("/", "-")))

    for _ in range(2):
        env = env_in(tmp_path)
        stream = env.from_dataframe(spark.range(500)).key_by(lambda row: row.id % 3)
        stream.map(lambda row: row.id, output_type=Types.LONG()).sink_to_dataframe(write, idempotent=True).uid("out")
        env.execute("parquet")
    runs = sorted(path.name.split("-")[3] for path in out.iterdir())
    assert set(runs) == {"1", "2"}, "the attempts that made it"
    found = spark.read.parquet(*[str(path) for path in out.iterdir()]).groupBy("value").count()
    assert found.count() == 500
    assert found.where("count = 2").count() == 500


def test_output_without_checkpoints_is_refused(spark: Any, tmp_path: Path) -> None:
    env = env_in(tmp_path, interval=None)
    env.from_dataframe(spark.range(5)).sink_to_dataframe(Kept()).name("table")
    with pytest.raises(ConfigurationError, match=r'Sink "table" hands its output over .* checkpointing is off'):
        env.execute("unchecked")


# Savepoints


def test_a_job_stopped_with_a_savepoint_goes_on_from_it_in_the_old_spool(spark: Any, tmp_path: Path) -> None:
    """And with the old checkpoint of Spark's query, wherever that lies."""
    place = parquet_files(spark, tmp_path / "in", 3, 100)
    handed: dict[str, list[Any]] = {}
    arrived = threading.Condition()

    def function(rows: Any, checkpoint: Any) -> None:
        with arrived:
            handed[checkpoint.marker] = rows.collect()
            arrived.notify_all()

    def ids() -> list[int]:
        return sorted(row.id for rows in handed.values() for row in rows)

    def start() -> Any:
        frame = spark.readStream.schema("id long, note string").option("maxFilesPerTrigger", 1).parquet(place)
        env = env_in(tmp_path)
        stream = env.from_dataframe(frame, spark_checkpoint=f"file://{tmp_path}/spark").uid("files")
        stream.map(as_pair, output_type=PAIR).sink_to_dataframe(function).uid("out")
        return env.execute_async("stopped")

    client = start()
    with arrived:
        assert arrived.wait_for(lambda: len(ids()) >= 300, 180)
    savepoint = client.stop_with_savepoint(False, str(tmp_path / "savepoints")).result(180)
    assert spool_of(tmp_path, "stopped").pinned() is not None
    spark.range(300, 350, 1, 1).selectExpr("id", "'x' as note").write.mode("append").parquet(place)
    with overriding(Overrides(restore_from=savepoint)):
        client = start()
        with arrived:
            assert arrived.wait_for(lambda: len(ids()) >= 350, 180)
    client.cancel().result(180)
    assert ids() == list(range(350))


def test_a_start_from_behind_output_that_was_handed_over_is_refused(spark: Any, tmp_path: Path) -> None:
    handed: list[str] = []
    arrived = threading.Condition()

    def function(rows: Any, checkpoint: Any) -> None:
        with arrived:
            handed.extend(row[0] for row in rows.collect())
            arrived.notify_all()

    def start(**asked: Any) -> Any:
        env = env_in(tmp_path, parallelism=1)
        lines = FileSource.text(tmp_path / "in").monitor_continuously(50)
        stream = env.from_source(lines, WatermarkStrategy.no_watermarks(), "lines").uid("lines")
        stream.sink_to_dataframe(function, Types.STRING()).uid("out").name("table")
        with overriding(Overrides(**asked)):
            return env.execute_async("going-back")

    def add(line: str) -> None:
        (tmp_path / f"{line}.tmp").write_text(f"{line}\n")
        (tmp_path / f"{line}.tmp").rename(tmp_path / "in" / line)
        with arrived:
            assert arrived.wait_for(lambda: line in handed, 180)

    (tmp_path / "in").mkdir()
    client = start()
    add("first")
    savepoint = client.trigger_savepoint(str(tmp_path / "savepoints")).result(180)
    add("second")
    client.suspend().result(180)

    refused = start(restore_from=savepoint).get_job_execution_result()
    with pytest.raises(CommittedOutputError, match=r"\(uid out\) .* handed over as going-back/out/.*--allow-dup"):
        refused.result(180)
    assert handed == ["first", "second"]


# In a bucket


@pytest.fixture(scope="module")
def s3_server() -> Iterator[S3Server]:
    with running_s3() as server:
        yield server


def test_a_streaming_frame_goes_through_a_bucket_with_spark_s_own_checkpoint_elsewhere(
    spark: Any, tmp_path: Path, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every process has credentials; the endpoint travels with the storage. Spark's JVM has no client of S3."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in s3_server.environment.items():
        if name != "AWS_ENDPOINT_URL":
            monkeypatch.setenv(name, value)
            monkeypatch.setitem(spark.sparkContext.environment, name, value)
    storage = S3CheckpointStorage(f"{s3_server.create_bucket('frames')}/jobs", endpoint_url=s3_server.endpoint_url)
    place = parquet_files(spark, tmp_path / "in", 1, 3_000)
    kept = Kept()

    def run(**more: Any) -> Any:
        frame = spark.readStream.schema("id long, note string").parquet(place)
        env = env_in(tmp_path, interval=500, parallelism=1)
        env.get_checkpoint_config().set_checkpoint_storage(storage)
        stream = env.from_dataframe(frame, source_name="orders", trigger={"availableNow": True}, **more).uid("files")
        stream.key_by("note").map(as_pair, output_type=PAIR).sink_to_dataframe(kept).uid("out")
        return env.execute("bucket")

    with pytest.raises(ConfigurationError, match=r'"orders" \(uid files\) .* s3a://frames/jobs.*spark_checkpoint=uri'):
        run()
    assert [name for name in storage.list("") if "/run-" in name] == [], "refused before anything began"

    run(spark_checkpoint=f"file://{tmp_path}/spark")
    assert sorted(row[0] for row in kept.rows) == list(range(3_000))
    assert [name for name in storage.list("bucket/") if "/spool/" in name or "/chk-" in name] == []
