"""One operator driven by hand: records, both clocks, barriers, crashes; output, state and timers looked at."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from headrace import (
    FlatMapFunction,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapFunction,
    MapStateDescriptor,
    OutputTag,
    ReduceFunction,
    RuntimeContext,
    Types,
    ValueStateDescriptor,
)
from headrace.errors import JobDefinitionError, KeyedStateError, StateConflictError, UserFunctionError
from headrace.testing import ManualClock, OperatorHarness

LATE = OutputTag("late", Types.STRING())
BACKENDS = ("heap", "rocksdb")


class Visits(KeyedProcessFunction):
    """Counts visits per user, remembers the pages, and says good-bye ten seconds of either clock after a visit."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", int))
        self.pages = runtime_context.get_list_state(ListStateDescriptor("pages", str))
        self.times = runtime_context.get_map_state(MapStateDescriptor("times", str, int))

    def process_element(self, value: tuple[str, str], ctx: Any) -> Iterator[Any]:
        user, page = value
        timers = ctx.timer_service()
        if ctx.timestamp() is not None and ctx.timestamp() < timers.current_watermark():
            yield LATE, page
            return
        self.count.update((self.count.value() or 0) + 1)
        self.pages.add(page)
        self.times[page] = timers.current_processing_time()
        timers.register_processing_time_timer(timers.current_processing_time() + 10_000)
        if ctx.timestamp() is not None:
            timers.register_event_time_timer(ctx.timestamp() + 10_000)
        yield user, self.count.value()

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        yield "bye", ctx.get_current_key(), timestamp, ctx.time_domain().name


def visits(**settings: Any) -> OperatorHarness:
    return OperatorHarness(Visits(), key_by=lambda visit: visit[0], **settings)


@pytest.mark.parametrize("backend", BACKENDS)
def test_records_give_output_and_leave_state_under_their_key(backend: str) -> None:
    with visits(backend=backend, clock=ManualClock(500)) as harness:
        harness.process(("ann", "home"))
        harness.process_all([("bob", "home"), ("ann", "cart")])
        assert harness.take() == [("ann", 1), ("bob", 1), ("ann", 2)]
        assert harness.take() == []
        assert harness.state("count", "ann") == 2
        assert harness.state("pages", "ann") == ["home", "cart"]
        assert harness.state("times", "bob") == {"home": 500}
        assert harness.state("count", "nobody") is None
        assert sorted(harness.keys("count")) == ["ann", "bob"]


def test_the_clock_stands_still_until_the_test_moves_it_and_then_timers_fire() -> None:
    with visits() as harness:
        harness.process(("ann", "home"))
        harness.advance(9_999)
        assert harness.take() == [("ann", 1)]
        assert [timer.time for timer in harness.timers("processing")] == [10_000]
        harness.advance(1)
        assert harness.take() == [("bye", "ann", 10_000, "PROCESSING_TIME")]
        assert harness.timers("processing") == []


def test_watermarks_fire_event_time_timers_and_pass_on() -> None:
    with visits() as harness:
        harness.process(("ann", "home"), timestamp=1_000)
        assert harness.timers() == [(11_000, "ann", b"")]
        harness.watermark(11_000)
        assert harness.output.records[-1] == (("bye", "ann", 11_000, "EVENT_TIME"), 11_000, 0)
        assert harness.current_watermark == 11_000
        assert harness.output.watermarks == [(0, 11_000)]
        harness.process(("ann", "cart"), timestamp=5_000)
        assert harness.side_output(LATE) == ["cart"]


def test_the_end_of_input_fires_what_is_left_and_ends_the_output() -> None:
    with visits() as harness:
        harness.process(("ann", "home"), timestamp=1_000)
        harness.end_input()
        assert ("bye", "ann", 11_000, "EVENT_TIME") in harness.output.values
        assert harness.output.ended == {0}


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_snapshot_restores_into_a_new_harness_at_another_parallelism_and_in_the_other_backend(backend: str) -> None:
    users = [f"user-{i}" for i in range(20)]
    with visits(backend=backend, parallelism=2) as harness:
        harness.process_all((user, "home") for user in users)
        assert {record.subtask for record in harness.output.records} == {0, 1}
        native, canonical = harness.snapshot(), harness.snapshot(canonical=True)
    other = "heap" if backend == "rocksdb" else "rocksdb"
    for snapshot, where, width in ((native, backend, 3), (canonical, other, 1), (canonical, other, 4)):
        with visits(backend=where, parallelism=width, restored=snapshot, clock=ManualClock(5_000)) as harness:
            assert {harness.state("count", user) for user in users} == {1}
            assert len(harness.timers("processing")) == len(users)
            harness.process(("user-7", "cart"))
            assert harness.take() == [("user-7", 2)]
            assert harness.state("pages", "user-7") == ["home", "cart"]
            harness.set_time(10_000)
            assert sorted(value[1] for value in harness.take()) == sorted(users)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_crash_goes_back_to_the_last_complete_snapshot_and_takes_output_back(backend: str) -> None:
    with visits(backend=backend) as harness:
        harness.process(("ann", "home"))
        harness.snapshot()
        harness.process(("ann", "cart"))
        harness.snapshot(complete=False)
        harness.crash()
        assert harness.state("count", "ann") == 1
        assert harness.output.values == [("ann", 1)]
        harness.process(("ann", "cart"))
        harness.crash(parallelism=3)
        harness.process(("ann", "cart"))
        assert harness.output.values == [("ann", 1), ("ann", 2)]


def test_a_crash_without_a_snapshot_begins_anew() -> None:
    with visits() as harness:
        harness.process(("ann", "home"))
        harness.crash()
        assert harness.output.values == []
        assert harness.keys("count") == []


class Forgetful(MapFunction):
    """Keeps its count where no checkpoint sees it."""

    seen = 0

    def map(self, value: Any) -> int:
        self.seen += 1
        return self.seen


def test_what_a_function_keeps_in_its_attributes_does_not_outlive_a_crash_and_is_not_shared_by_subtasks() -> None:
    function = Forgetful()
    with OperatorHarness(function) as harness:
        harness.process_all("abc")
        harness.snapshot()
        harness.crash()
        harness.process("d")
        assert harness.output.values == [1, 2, 3, 1]
    assert function.seen == 0
    with OperatorHarness(function, parallelism=2) as harness:
        harness.process_all("abcd")
        assert harness.output.values == [1, 1, 2, 2]
        harness.process("e", subtask=1)
        assert harness.output.records[-1] == (3, None, 1)


class Sum(ReduceFunction):
    def reduce(self, value1: Any, value2: Any) -> Any:
        return value1[0], value1[1] + value2[1]


class Twice(FlatMapFunction):
    def flat_map(self, value: Any) -> list[Any]:
        return [value, value]


def test_functions_of_every_kind_are_known_by_their_base() -> None:
    with OperatorHarness(Sum(), key_by=0) as harness:
        harness.process_all([("a", 1), ("b", 5), ("a", 2)])
        assert harness.take() == [("a", 1), ("b", 5), ("a", 3)]
    with OperatorHarness(Twice()) as harness:
        harness.process(1)
        assert harness.take() == [1, 1]


def test_any_operator_of_a_program_can_be_taken() -> None:
    row = Types.ROW_NAMED(["id", "n"], [str, int])
    with OperatorHarness.of(lambda stream: stream.key_by("id").sum("n"), row) as harness:
        harness.process_all([row.value_class("a", 1), row.value_class("a", 2)])
        assert [value.n for value in harness.take()] == [1, 3]
    with OperatorHarness.of(lambda stream: stream.map(str, output_type=str)) as harness:
        harness.process(7)
        assert harness.take() == ["7"]


def test_a_declared_output_type_is_enforced() -> None:
    with (
        OperatorHarness.of(lambda stream: stream.map(lambda v: v, output_type=str)) as harness,
        pytest.raises(UserFunctionError, match="7"),
    ):
        harness.process(7)


def test_a_program_of_several_operators_is_refused_by_name() -> None:
    with pytest.raises(JobDefinitionError, match=r'one operator.*2: "map", "filter".*JobHarness'):
        OperatorHarness.of(lambda stream: stream.map(str).filter(bool))


def test_mistakes_are_answered_with_the_remedy() -> None:
    with pytest.raises(JobDefinitionError, match="give the harness key_by="):
        OperatorHarness(Visits())
    with pytest.raises(JobDefinitionError, match=r"OperatorHarness.of"):
        OperatorHarness(len)
    with pytest.raises(JobDefinitionError, match='no backend "disk"'):
        visits(backend="disk")
    with OperatorHarness(Twice()) as harness:
        with pytest.raises(KeyedStateError, match="no keyed state"):
            harness.timers()
        with pytest.raises(JobDefinitionError, match="there is no input 1"):
            harness.process(1, input=1)
    with visits() as harness, pytest.raises(JobDefinitionError, match=r'no keyed state "cuont".*count, pages, times'):
        harness.state("cuont", "ann")


class Mistyped(Visits):
    def open(self, runtime_context: RuntimeContext) -> None:
        super().open(runtime_context)
        runtime_context.get_state(ValueStateDescriptor("pages", int))


def test_errors_are_those_of_a_job() -> None:
    with pytest.raises(UserFunctionError, match="pages") as caught:
        OperatorHarness(Mistyped(), key_by=lambda visit: visit[0])
    assert isinstance(caught.value.__cause__, StateConflictError)
