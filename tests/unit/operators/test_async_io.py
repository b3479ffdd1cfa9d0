"""Async I/O by hand: order, capacity, timeouts, retries, failures, and records in flight through a restore."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from help_desk import Ask, AskWithExcuse, HelpDesk

from headrace import Duration, Time
from headrace.datastream.async_stream import AsyncDataStream
from headrace.errors import ConfigurationError, JobDefinitionError, UserFunctionError
from headrace.operators.async_functions import (
    AsyncFunction,
    AsyncRetryStrategy,
    empty_result_predicate,
    has_exception_predicate,
)
from headrace.testing import OperatorHarness

TIMEOUT = Time.seconds(10)


def waiting(function: AsyncFunction, *, ordered: bool = False, capacity: int = 10, **settings: Any) -> OperatorHarness:
    wait = AsyncDataStream.ordered_wait if ordered else AsyncDataStream.unordered_wait
    return OperatorHarness.of(lambda stream: wait(stream, function, TIMEOUT, capacity), **settings)


def retrying(function: AsyncFunction, strategy: AsyncRetryStrategy, *, ordered: bool = False) -> OperatorHarness:
    wait = AsyncDataStream.ordered_wait_with_retry if ordered else AsyncDataStream.unordered_wait_with_retry
    return OperatorHarness.of(lambda stream: wait(stream, function, TIMEOUT, strategy))


def wait_for_output(harness: OperatorHarness, count: int) -> list[Any]:
    harness.wait_until(lambda: len(harness.output.records) >= count, f"{count} results")
    return harness.output.values


def test_results_leave_as_they_come_with_the_timestamp_of_their_record() -> None:
    desk = HelpDesk()
    with waiting(Ask(desk)) as harness:
        harness.process("a", timestamp=1)
        harness.process("b", timestamp=2)
        desk.answer("b", ["b1", "b2"])
        assert wait_for_output(harness, 2) == ["b1", "b2"]
        desk.answer("a", [])
        harness.process("c")
        desk.answer("c")
        wait_for_output(harness, 3)
        assert [(r.value, r.timestamp) for r in harness.output.records] == [("b1", 2), ("b2", 2), ("c", None)]


def test_ordered_results_wait_for_those_before_them() -> None:
    desk = HelpDesk()
    with waiting(Ask(desk), ordered=True) as harness:
        harness.process_all("abc")
        desk.answer("c")
        desk.answer("b")
        desk.answer("a")
        assert wait_for_output(harness, 3) == ["a", "b", "c"]


@pytest.mark.parametrize("ordered", [False, True])
def test_no_result_overtakes_a_watermark(ordered: bool) -> None:
    desk = HelpDesk()
    with waiting(Ask(desk), ordered=ordered) as harness:
        harness.process("a", timestamp=1)
        harness.process("b", timestamp=2)
        harness.watermark(2)
        harness.idle(True)
        harness.process("c", timestamp=3)
        harness.watermark(3)
        for value in "cba":
            desk.answer(value)
        wait_for_output(harness, 3)
        early = ["a", "b"] if ordered else ["b", "a"]
        marks = [("watermark", 2), ("idle", True)]
        assert harness.output.events == [*early, *marks, "c", ("idle", False), ("watermark", 3)]
        assert harness.current_watermark == 3


def test_a_watermark_passes_at_once_where_nothing_is_in_flight() -> None:
    with waiting(Ask(HelpDesk())) as harness:
        harness.watermark(5)
        assert harness.output.events == [("watermark", 5)]


def test_a_full_operator_has_no_room_until_a_result_has_left() -> None:
    desk = HelpDesk()
    with waiting(Ask(desk), capacity=2) as harness:
        [operator] = harness.operators
        harness.process("a")
        assert operator.has_room()
        harness.process("b")
        assert not operator.has_room()
        desk.answer("b")
        wait_for_output(harness, 1)
        assert operator.has_room()
        harness.process("c")
        desk.answer("c")
        desk.answer("a")
        wait_for_output(harness, 3)
        assert desk.most_at_once <= 2


def test_records_beyond_the_capacity_are_taken_but_not_asked_for_yet() -> None:
    desk = HelpDesk()
    with waiting(Ask(desk), capacity=2, ordered=True) as harness:
        [operator] = harness.operators
        for value in "abcde":  # one record before it in its chain gave five
            operator.process(value, None)
        for value in "abcde":
            harness.wait_until(lambda value=value: value in desk.asked, "its turn")
            desk.answer(value)
            wait_for_output(harness, 1 + "abcde".index(value))
        assert harness.output.values == list("abcde")
        assert desk.most_at_once <= 2


def test_a_call_that_takes_too_long_is_cancelled_and_fails_the_job() -> None:
    desk = HelpDesk()
    with waiting(Ask(desk)) as harness:
        harness.process("slow")
        desk.wait_for("slow")
        harness.advance(9_999)
        assert harness.output.values == []
        harness.advance(1)
        with pytest.raises(UserFunctionError, match=r"'slow'.*longer than its timeout.*override timeout"):
            harness.wait_until(lambda: False)
    assert desk.cancelled == ["slow"]


def test_a_timeout_may_give_a_result_and_what_comes_later_is_ignored() -> None:
    desk = HelpDesk()
    with waiting(AskWithExcuse(desk), ordered=True) as harness:
        harness.process("slow")
        harness.advance(5_000)
        harness.process("quick")
        desk.answer("quick")
        harness.advance(5_000)
        assert wait_for_output(harness, 2) == [("too late", "slow"), "quick"]
        harness.advance(60_000)
        assert len(harness.output.values) == 2


def test_what_a_call_raises_fails_the_job_with_record_and_line() -> None:
    desk = HelpDesk()
    with waiting(Ask(desk)) as harness:
        harness.process("bad")
        desk.answer("bad", error=ValueError("no such thing"))
        with pytest.raises(UserFunctionError, match=r"record 'bad' at .*help_desk.py:\d+: ValueError: no such thing"):
            harness.wait_until(lambda: False)


@pytest.mark.parametrize("results", [None, "text", 7])
def test_results_must_be_a_list(results: Any) -> None:
    class Wrong(AsyncFunction):
        async def async_invoke(self, value: Any) -> Any:
            return results

    def run(harness: OperatorHarness) -> None:
        harness.process("x")
        harness.wait_until(lambda: False)

    with waiting(Wrong()) as harness, pytest.raises(UserFunctionError, match=r"async_invoke\(\) gave .*Return a list"):
        run(harness)


def test_a_call_that_raised_is_made_again_after_the_delay() -> None:
    desk = HelpDesk()
    strategy = AsyncRetryStrategy.fixed_delay(2, 1_000, exception_predicate=lambda error: isinstance(error, OSError))
    with retrying(Ask(desk), strategy) as harness:
        [operator] = harness.operators
        harness.process("a")
        for _ in range(2):
            desk.answer("a", error=OSError("busy"))
            due = harness.clock() + 1_000
            harness.wait_until(lambda due=due: operator.next_processing_time() == due, "the retry to be planned")
            harness.advance(999)
            harness.advance(1)
        desk.answer("a", ["at last"])
        assert wait_for_output(harness, 1) == ["at last"]
        assert desk.asked == ["a"] * 3


def test_a_call_that_keeps_raising_fails_the_job_in_the_end() -> None:
    desk = HelpDesk()
    strategy = AsyncRetryStrategy.fixed_delay(1, 0, exception_predicate=has_exception_predicate)
    with retrying(Ask(desk), strategy) as harness:
        harness.process("a")
        desk.answer("a", error=OSError("busy"))
        harness.wait_until(lambda: len(desk.asked) == 2)
        desk.answer("a", error=OSError("still busy"))
        with pytest.raises(UserFunctionError, match="still busy"):
            harness.wait_until(lambda: False)


def test_an_error_that_the_strategy_does_not_name_is_not_retried() -> None:
    desk = HelpDesk()
    strategy = AsyncRetryStrategy.fixed_delay(5, 0, exception_predicate=lambda error: isinstance(error, OSError))
    with retrying(Ask(desk), strategy) as harness:
        harness.process("a")
        desk.answer("a", error=KeyError("no"))
        with pytest.raises(UserFunctionError, match="KeyError"):
            harness.wait_until(lambda: False)


def test_results_may_ask_for_another_call_and_count_when_the_attempts_are_used_up() -> None:
    desk = HelpDesk()
    strategy = AsyncRetryStrategy.fixed_delay(1, 0, empty_result_predicate)
    with retrying(Ask(desk), strategy, ordered=True) as harness:
        harness.process("a")
        harness.process("b")
        for value, results in (("a", []), ("b", []), ("a", ["found"]), ("b", [])):
            asked = desk.asked.count(value)
            harness.wait_until(lambda value=value, asked=asked: desk.asked.count(value) >= asked)
            desk.answer(value, results)
            harness.wait_until(lambda value=value, results=results: results or desk.asked.count(value) == 2)
        harness.end_input()
        assert harness.output.values == ["found"]
        assert sorted(desk.asked) == ["a", "a", "b", "b"]


def test_the_timeout_counts_from_the_first_call_and_ends_the_retries() -> None:
    desk = HelpDesk()
    strategy = AsyncRetryStrategy.fixed_delay(100, 6_000, exception_predicate=has_exception_predicate)
    with retrying(AskWithExcuse(desk), strategy) as harness:
        [operator] = harness.operators
        harness.process("a")
        desk.answer("a", error=OSError())
        harness.wait_until(lambda: operator.next_processing_time() == 6_000, "the retry to be planned")
        harness.advance(6_000)
        desk.answer("a", error=OSError())
        # The next retry would come at 12 s.
        harness.wait_until(lambda: not desk._calls and operator.next_processing_time() == 10_000)
        harness.advance(4_000)
        assert wait_for_output(harness, 1) == [("too late", "a")]
        harness.advance(60_000)
        assert desk.asked == ["a", "a"]


def test_delays_grow_up_to_their_limit() -> None:
    strategy = AsyncRetryStrategy.exponential_backoff(10, 100, Duration.of_seconds(1), 2.0)
    assert [strategy.delay_ms(attempt) for attempt in range(1, 7)] == [100, 200, 400, 800, 1_000, 1_000]
    assert strategy.delay_ms(10_000) == 1_000
    assert [AsyncRetryStrategy.fixed_delay(3, 50).delay_ms(n) for n in (1, 2, 3)] == [50, 50, 50]
    assert not AsyncRetryStrategy.no_restart().wants_again(1, [], OSError())


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("width", [1, 3])
def test_records_in_flight_are_in_the_snapshot_and_are_asked_for_again(ordered: bool, width: int) -> None:
    desk = HelpDesk()
    with waiting(Ask(desk), ordered=ordered, parallelism=2, capacity=3) as harness:
        harness.process_all("abcdef")
        desk.answer("a", ["A"])
        wait_for_output(harness, 1)
        desk.answer("d", ["D"])
        wait_for_output(harness, 1 if ordered else 2)  # in order, "d" waits for "b"
        snapshot = harness.snapshot()
        out = len(harness.output.records)
    del desk.asked[:]
    with waiting(Ask(desk), ordered=ordered, parallelism=width, capacity=3, restored=snapshot) as harness:
        left = [value for value in "abcdef" if value.upper() not in snapshot.output.values]
        assert len(left) == 6 - out
        for value in left:
            harness.wait_until(lambda value=value: value in desk.asked, "its turn")
            desk.answer(value, [value.upper()])
        harness.process("g")
        harness.wait_until(lambda: "g" in desk.asked, "its turn")
        desk.answer("g", ["G"])
        harness.end_input()
        assert sorted(harness.output.values) == [*sorted(value.upper() for value in left), "G"]
        assert sorted(desk.asked) == [*left, "g"]


def test_restored_records_leave_before_new_ones_in_order() -> None:
    desk = HelpDesk()
    with waiting(Ask(desk), ordered=True) as harness:
        harness.process("a", timestamp=7)
        harness.process("b")
        harness.snapshot()
        harness.crash()  # which cancels the calls of the former life
        harness.process("c")
        for value in "cba":
            desk.answer(value)
        assert wait_for_output(harness, 3) == ["a", "b", "c"]
        assert harness.output.records[0].timestamp == 7


def test_the_end_of_the_input_waits_for_what_is_in_flight() -> None:
    desk = HelpDesk()
    with waiting(Ask(desk)) as harness:
        harness.process("a")
        [operator] = harness.operators
        threading.Thread(target=desk.answer, args=("a",), daemon=True).start()
        harness.end_input()
        assert [e if isinstance(e, str) else e[0] for e in harness.output.events] == ["a", "watermark", "end"]
        assert operator.ended


def test_all_methods_of_the_function_run_on_its_event_loop() -> None:
    threads: list[tuple[str, int]] = []

    class Client(AsyncFunction):
        def open(self, runtime_context: Any) -> None:
            asyncio.get_running_loop()
            threads.append(("open", threading.get_ident()))

        async def async_invoke(self, value: Any) -> list[Any]:
            threads.append(("invoke", threading.get_ident()))
            await asyncio.sleep(0)
            return [value]

        def close(self) -> None:
            asyncio.get_running_loop()
            threads.append(("close", threading.get_ident()))

    with waiting(Client()) as harness:
        harness.process("a")
        wait_for_output(harness, 1)
    assert [name for name, _ in threads] == ["open", "invoke", "close"]
    assert len({ident for _, ident in threads}) == 1
    assert threads[0][1] != threading.get_ident()


def test_closing_cancels_what_is_in_flight() -> None:
    desk = HelpDesk()
    with waiting(Ask(desk)) as harness:
        harness.process("a")
        desk.wait_for("a")
    assert desk.cancelled == ["a"]


def test_many_records_pass_through() -> None:
    class Echo(AsyncFunction):
        async def async_invoke(self, value: Any) -> list[Any]:
            if value % 3 == 0:
                await asyncio.sleep(0)
            return [value]

    with waiting(Echo(), ordered=True, capacity=50) as harness:
        harness.process_all(range(2_000))
        harness.end_input()
        assert harness.output.values == list(range(2_000))


def test_what_makes_no_sense_is_refused_when_the_program_is_built() -> None:
    ask = Ask(HelpDesk())
    with pytest.raises(ConfigurationError, match=r"timeout of unordered_wait\(\) is 0 ms"):
        OperatorHarness.of(lambda stream: AsyncDataStream.unordered_wait(stream, ask, Time.seconds(0)))
    with pytest.raises(ConfigurationError, match=r"capacity of ordered_wait\(\) is 0"):
        OperatorHarness.of(lambda stream: AsyncDataStream.ordered_wait(stream, ask, TIMEOUT, 0))
    with pytest.raises(JobDefinitionError, match=r"Write Ask\(\.\.\.\)"):
        OperatorHarness.of(lambda stream: AsyncDataStream.ordered_wait(stream, Ask, TIMEOUT))  # type: ignore[arg-type]
    with pytest.raises(JobDefinitionError, match="wanted an AsyncRetryStrategy"):
        OperatorHarness.of(
            lambda stream: AsyncDataStream.ordered_wait_with_retry(stream, ask, TIMEOUT, 3)  # type: ignore[arg-type]
        )
    with pytest.raises(ConfigurationError, match="max_attempts"):
        AsyncRetryStrategy.fixed_delay(0, 100)
    with pytest.raises(ConfigurationError, match="is below initial_delay_millis"):
        AsyncRetryStrategy.exponential_backoff(1, 100, 50, 2.0)
