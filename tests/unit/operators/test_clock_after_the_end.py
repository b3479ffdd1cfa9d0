"""No timer of the clock fires in an operator that has ended, as in Flink: what it emits would be lost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from headrace import (
    DataStream,
    KeyedProcessFunction,
    ProcessWindowFunction,
    StreamExecutionEnvironment,
    Time,
    TumblingProcessingTimeWindows,
    WatermarkGenerator,
    WatermarkStrategy,
)
from headrace.runtime.control.messages import Trigger
from headrace.testing import JobHarness, JobSnapshot, ManualSource, OperatorHarness

NO_TIME = WatermarkStrategy.no_watermarks()
SECOND = 1_000


class Later(KeyedProcessFunction):
    """A timer of the clock a second after each record, and one more for as long as the job goes on."""

    def process_element(self, value: Any, ctx: Any) -> Any:
        ctx.timer_service().register_processing_time_timer(ctx.timer_service().current_processing_time() + SECOND)
        yield ("record", value)

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        ctx.timer_service().register_processing_time_timer(timestamp + SECOND)
        yield ("timer", ctx.get_current_key())


class AtTheEndOfTime(KeyedProcessFunction):
    """The last watermark fires its event-time timer, which sets timers of both kinds."""

    def process_element(self, value: Any, ctx: Any) -> Any:
        ctx.timer_service().register_event_time_timer(10**15)
        return ()

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        timers = ctx.timer_service()
        timers.register_processing_time_timer(timers.current_processing_time() + SECOND)
        if timestamp == 10**15:
            timers.register_event_time_timer(timestamp + 1)
        yield ("timer", timestamp)


FIRED: list[tuple[str, Any]] = []


class Both(KeyedProcessFunction):
    """A timer of each kind, noted when it fires."""

    def process_element(self, value: Any, ctx: Any) -> Any:
        timers = ctx.timer_service()
        timers.register_processing_time_timer(timers.current_processing_time() + SECOND)
        timers.register_event_time_timer(10**15)
        return ()

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        FIRED.append((ctx.time_domain().name, ctx.get_current_key()))
        return ()


class Contents(ProcessWindowFunction):
    def process(self, key: Any, context: Any, elements: Any) -> Any:
        yield ("window", key, len(list(elements)))


def later(words: Any) -> DataStream:
    return words.process(Later()).uid("later")  # type: ignore[no-any-return]


def job(
    source: ManualSource,
    last: Callable[[Any], DataStream],
    more: ManualSource | None = None,
    restored: JobSnapshot | None = None,
) -> JobHarness:
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(2)
    env.enable_checkpointing(1_000)
    words = env.from_source(source, NO_TIME, "words").uid("words").set_parallelism(1)
    if more is not None:
        words = words.union(env.from_source(more, NO_TIME, "more").uid("more").set_parallelism(1))
    # Another level after it, so that what comes after the end would travel.
    results = last(words.key_by(lambda word: word)).rebalance().map(lambda result: result).uid("end")
    return JobHarness(results, restored=restored)


def results_with_a_late_clock(source: ManualSource, running: JobHarness) -> list[Any]:
    """The clock passes every timer between the end of the input and the final checkpoint, and after it."""
    source.emit("a", "b")
    running.run()
    source.end()
    running.run()
    running.clock.advance(10 * SECOND)
    running.run()
    results = sorted(running.run_to_end())
    running.clock.advance(10 * SECOND)
    running.run()
    running.checkpoint()
    assert sorted(running.results) == results, "something was emitted after the final barrier"
    return results


def test_timers_of_the_clock_do_not_fire_after_the_end_of_the_input() -> None:
    source = ManualSource()
    with job(source, later) as running:
        assert results_with_a_late_clock(source, running) == [("record", "a"), ("record", "b")]


def test_before_the_end_they_fire_as_often_as_they_are_due() -> None:
    source = ManualSource()
    with job(source, later) as running:
        source.emit("a")
        running.advance(SECOND)
        running.advance(SECOND)
        source.end()
        assert sorted(running.run_to_end()) == [("record", "a"), ("timer", "a"), ("timer", "a")]


def test_windows_of_the_clock_that_are_open_at_the_end_do_not_fire() -> None:
    source = ManualSource()
    windows = TumblingProcessingTimeWindows.of(Time.seconds(1))
    with job(source, lambda words: words.window(windows).process(Contents()).uid("windows")) as running:
        assert results_with_a_late_clock(source, running) == []


def test_timers_set_by_the_last_watermark_fire_if_they_are_of_event_time() -> None:
    source = ManualSource()
    with job(source, lambda words: words.process(AtTheEndOfTime()).uid("timers")) as running:
        found = results_with_a_late_clock(source, running)
    assert found == sorted(2 * [("timer", 10**15), ("timer", 10**15 + 1)])


def test_timers_that_were_pending_at_the_end_do_not_fire_after_a_restore_either() -> None:
    source = ManualSource()
    with job(source, later) as running:
        source.emit("a", "b")
        running.run()
        source.end()
        running.checkpoint()
        running.crash()
        running.advance(10 * SECOND)
        assert sorted(running.run_to_end()) == [("record", "a"), ("record", "b")]


def test_they_fire_again_if_a_finished_job_goes_on_with_another_source() -> None:
    source, more = ManualSource(), ManualSource()
    with job(source, later) as running:
        source.emit("a")
        source.end()
        running.run_to_end()
        saved = running.checkpoint()
    with job(source, later, more, restored=saved) as running:
        more.emit("b", "c")
        running.advance(SECOND)
        running.advance(SECOND)
        more.end()
        found = running.run_to_end()
    assert sorted(r for r in found if r[1] != "a") == sorted(
        result for word in "bc" for result in (("record", word), ("timer", word), ("timer", word))
    )


@pytest.mark.parametrize("drain", [False, True])
def test_after_the_barrier_of_a_stopping_savepoint_no_timer_fires_and_a_drain_fires_event_time_before_it(
    drain: bool,
) -> None:
    FIRED.clear()
    source = ManualSource()
    with job(source, lambda words: words.process(Both()).uid("both")) as running:
        source.emit("a", "b")
        running.run()
        for task in running._tasks.values():
            task.mailbox.deliver(Trigger(99, stopping=True, drain=drain))
        running.run()
        running.advance(10 * SECOND)
    assert sorted(FIRED) == ([("EVENT_TIME", "a"), ("EVENT_TIME", "b")] if drain else [])


class Steps(WatermarkGenerator):
    """Says more each time it is asked."""

    def __init__(self) -> None:
        self.time = 0

    def on_event(self, value: Any, timestamp: int) -> None:
        self.time = max(self.time, timestamp)

    def on_periodic_emit(self) -> int | None:
        self.time += 1
        return self.time


def test_a_generator_in_the_middle_of_a_stream_says_nothing_after_the_end() -> None:
    source = ManualSource()
    strategy = WatermarkStrategy.for_generator(Steps).with_timestamp_assigner(lambda word, _: 5)

    def timed(words: Any) -> DataStream:
        return words.map(lambda word: word).assign_timestamps_and_watermarks(strategy).uid("timed")

    with job(source, timed) as running:
        source.emit("a", "b")
        running.advance(SECOND)
        source.end()
        running.run()
        running.advance(10 * SECOND)
        marks = {operator.current_watermark for operator in running.operators("timed")}
        assert marks == {2**63 - 1}
        assert {operator.current_watermark for operator in running.operators("end")} == {2**63 - 1}
        assert sorted(running.run_to_end()) == ["a", "b"]


@pytest.mark.parametrize("backend", ["heap", "rocksdb"])
def test_the_operator_harness_does_as_the_engine(backend: str) -> None:
    with OperatorHarness(Later(), key_by=lambda word: word, backend=backend) as harness:
        harness.process("a")
        harness.advance(SECOND)
        harness.end_input()
        harness.advance(10 * SECOND)
        assert harness.take() == [("record", "a"), ("timer", "a")]
