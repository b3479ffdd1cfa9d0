"""Whole jobs in one thread: records, both clocks, checkpoints, crashes, savepoints, failures."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import (
    EmbeddedRocksDBStateBackend,
    Encoder,
    FileSink,
    HashMapStateBackend,
    KeyedProcessFunction,
    MapFunction,
    StreamExecutionEnvironment,
    Types,
    ValueStateDescriptor,
    WatermarkStrategy,
)
from headrace.datastream.async_stream import AsyncDataStream
from headrace.errors import JobDefinitionError, UserFunctionError
from headrace.operators.async_functions import AsyncFunction
from headrace.testing import CRASH, JobHarness, ManualSource, TestSource

NO_TIME = WatermarkStrategy.no_watermarks()
BACKENDS = {"heap": HashMapStateBackend, "rocksdb": EmbeddedRocksDBStateBackend}


def environment(parallelism: int = 2, backend: str = "heap", unaligned: bool = False) -> StreamExecutionEnvironment:
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(parallelism)
    env.set_state_backend(BACKENDS[backend]())
    if unaligned:
        env.enable_checkpointing(1_000)
        env.get_checkpoint_config().enable_unaligned_checkpoints()
    return env


def counts(env: StreamExecutionEnvironment, source: ManualSource) -> Any:
    """(word, how often it came so far), by two levels: words are read by one subtask and counted by all."""
    words = env.from_source(source, NO_TIME, "words").uid("words").set_parallelism(1)
    counted = words.key_by(lambda word: word).map_with_state(
        lambda word, n: ((word, (n or 0) + 1), (n or 0) + 1), state_type=int
    )
    return counted.uid("counts")


@pytest.mark.parametrize("backend", list(BACKENDS))
def test_a_job_runs_through_a_crash_and_counts_every_record_once(backend: str) -> None:
    source = ManualSource(str)
    with JobHarness(counts(environment(backend=backend), source)) as job:
        source.emit("a", "b", "a")
        job.run()
        assert job.results == [], "output is seen when a checkpoint holds it"
        job.checkpoint()
        assert sorted(job.results) == [("a", 1), ("a", 2), ("b", 1)]
        source.emit("a", "c")
        job.run()
        job.checkpoint(complete=False)
        job.crash()
        source.emit("b")
        source.end()
        assert sorted(job.run_to_end()) == [("a", 1), ("a", 2), ("a", 3), ("b", 1), ("b", 2), ("c", 1)]
        assert job.finished


def test_a_bounded_program_runs_as_it_is() -> None:
    env = environment(3)
    stream = env.from_collection(range(100), int).rebalance().map(lambda n: n * 2, output_type=int)
    with JobHarness(stream.filter(lambda n: n % 3 == 0)) as job:
        assert sorted(job.run_to_end()) == [n * 2 for n in range(100) if n * 2 % 3 == 0]


@pytest.mark.parametrize("width", [1, 3])
def test_a_checkpoint_restores_at_another_parallelism(width: int) -> None:
    source = ManualSource(str)
    words = [f"word-{i % 10}" for i in range(40)]
    with JobHarness(counts(environment(2), source)) as job:
        source.emit(*words)
        job.run(turns=7)
        saved = job.checkpoint(in_flight=True)
        before = job.results
    with JobHarness(counts(environment(width), source), restored=saved) as job:
        source.end()
        assert Counter(before + job.run_to_end()) == Counter((f"word-{i}", n) for i in range(10) for n in (1, 2, 3, 4))


@pytest.mark.parametrize(("first", "second"), [("heap", "rocksdb"), ("rocksdb", "heap")])
def test_a_savepoint_restores_in_the_other_backend(first: str, second: str) -> None:
    source = ManualSource(str)
    with JobHarness(counts(environment(2, first), source)) as job:
        source.emit("a", "b")
        job.run()
        saved = job.savepoint()
        assert job.results == [], "a savepoint commits nothing by itself"
    with JobHarness(counts(environment(3, second), source), restored=saved) as job:
        source.emit("a")
        source.end()
        assert sorted(job.run_to_end()) == [("a", 1), ("a", 2), ("b", 1)]


class Deadline(KeyedProcessFunction):
    """Tells ten seconds after a record, by both clocks."""

    def process_element(self, value: Any, ctx: Any) -> None:
        timers = ctx.timer_service()
        timers.register_processing_time_timer(timers.current_processing_time() + 10_000)
        if ctx.timestamp() is not None:
            timers.register_event_time_timer(ctx.timestamp() + 10_000)

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        yield ctx.get_current_key(), ctx.time_domain().name, timestamp


def test_both_clocks_stand_still_until_the_test_moves_them() -> None:
    source = ManualSource(str)
    env = environment()
    event_time = WatermarkStrategy.for_monotonous_timestamps()
    stream = env.from_source(source, event_time, "words").key_by(lambda w: w).process(Deadline())
    with JobHarness(stream) as job:
        source.emit("a", timestamp=500)
        source.emit("b", timestamp=900)
        job.watermark(10_600)
        job.checkpoint()
        assert job.results == [("a", "EVENT_TIME", 10_500)]
        job.crash()
        job.advance(9_999)
        job.checkpoint()
        assert len(job.results) == 1
        job.advance(1)
        job.checkpoint()
        assert sorted(job.results)[1:] == [("a", "PROCESSING_TIME", 10_000), ("b", "PROCESSING_TIME", 10_000)]
        source.end()
        assert ("b", "EVENT_TIME", 10_900) in job.run_to_end()


def test_a_sink_writes_each_record_once_through_a_crash(tmp_path: Path) -> None:
    source = ManualSource(str)
    env = environment(1)
    env.from_source(source, NO_TIME, "words").sink_to(
        FileSink.for_row_format(str(tmp_path), Encoder.simple_string_encoder()).build()
    )
    with JobHarness(env) as job:
        source.emit("a", "b")
        job.checkpoint()
        source.emit("c")
        job.run()
        job.crash()
        source.end()
        job.run_to_end()
    files = [
        file
        for file in tmp_path.rglob("part-*")
        if not any(p.startswith(("_", ".")) for p in file.relative_to(tmp_path).parts)
    ]
    lines = [line for file in files for line in file.read_text().split()]
    assert sorted(lines) == ["a", "b", "c"]


class Fragile(MapFunction):
    def map(self, value: str) -> int:
        return int(value)


def test_what_a_function_raises_comes_out_of_run() -> None:
    source = ManualSource(str)
    with JobHarness(environment().from_source(source, NO_TIME, "words").rebalance().map(Fragile())) as job:
        source.emit("1", "two")
        with pytest.raises(UserFunctionError, match=r"record 'two'.*ValueError"):
            job.run()


def test_subtasks_do_not_share_a_function_object() -> None:
    class Numbering(MapFunction):
        count = 0

        def map(self, value: Any) -> int:
            self.count += 1
            return self.count

    stream = environment(2).from_collection(range(4)).rebalance().map(Numbering())
    with JobHarness(stream) as job:
        assert sorted(job.run_to_end()) == [1, 1, 2, 2]


class Slowly(AsyncFunction):
    async def async_invoke(self, value: int) -> list[int]:
        for _ in range(value % 4):
            await asyncio.sleep(0)
        return [value * 10]


@pytest.mark.parametrize("unaligned", [False, True])
def test_an_async_operator_takes_part_in_checkpoints_back_pressure_and_the_end(unaligned: bool) -> None:
    source = ManualSource(int)
    env = environment(2, unaligned=unaligned)
    numbers = env.from_source(source, NO_TIME, "numbers").rebalance()
    with JobHarness(AsyncDataStream.unordered_wait(numbers, Slowly(), 60_000, capacity=3)) as job:
        source.emit(*range(50))
        job.run(turns=30)
        job.checkpoint(in_flight=True)
        source.emit(*range(50, 100))
        job.run(turns=30)
        job.crash()
        source.end()
        assert sorted(job.run_to_end()) == [n * 10 for n in range(100)]


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("emit"), st.lists(st.sampled_from("abc"), min_size=1, max_size=5)),
        st.tuples(st.just("run"), st.integers(1, 12)),
        st.just("checkpoint"),
        st.just("crash"),
    ),
    max_size=15,
)


@pytest.mark.parametrize("unaligned", [False, True])
@given(steps=STEPS)
@settings(max_examples=30)
def test_any_order_of_records_checkpoints_and_crashes_counts_every_record_once(
    unaligned: bool, steps: list[Any]
) -> None:
    source = ManualSource(str)
    with JobHarness(counts(environment(2, unaligned=unaligned), source)) as job:
        for step in steps:
            match step:
                case ("emit", words):
                    source.emit(*words)
                case ("run", turns):
                    job.run(turns)
                case "checkpoint":
                    job.checkpoint(in_flight=True)
                case "crash":
                    job.crash()
        source.end()
        results = job.run_to_end()
    how_often = Counter(source.values)
    assert Counter(results) == Counter((word, n + 1) for word, times in how_often.items() for n in range(times))


def test_state_can_be_looked_at() -> None:
    source = ManualSource(str)
    with JobHarness(counts(environment(1), source)) as job:
        source.emit("a", "a")
        job.run()
        [operator] = job.operators("counts")
        backend = operator.context.backend
        assert backend is not None
        assert list(backend.keys("_state")) == ["a"]
        with pytest.raises(JobDefinitionError, match=r'uid "count"\. There are: words, counts'):
            job.operators("count")


def test_a_script_that_kills_its_process_is_refused() -> None:
    env = environment()
    with pytest.raises(JobDefinitionError, match=r"CRASH.*ManualSource"):
        JobHarness(env.from_source(TestSource([1, CRASH, 2]), NO_TIME, "script"))


def test_timers_and_typed_rows_cross_levels() -> None:
    source = ManualSource(Types.ROW_NAMED(["id", "n"], [str, int]))

    class Largest(KeyedProcessFunction):
        def open(self, runtime_context: Any) -> None:
            self.largest = runtime_context.get_state(ValueStateDescriptor("largest", int))

        def process_element(self, row: Any, ctx: Any) -> Iterator[Any]:
            if self.largest.value() is None or row.n > self.largest.value():
                self.largest.update(row.n)
                yield row.id, row.n

    stream = environment(2).from_source(source, NO_TIME, "rows").key_by("id").process(Largest())
    with JobHarness(stream) as job:
        source.emit(("a", 1), ("b", 5), ("a", 3), ("a", 2))
        source.end()
        assert sorted(job.run_to_end()) == [("a", 1), ("a", 3), ("b", 5)]
