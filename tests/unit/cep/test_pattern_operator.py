"""The pattern operator on real backends: order, lateness, time, side outputs, and state that comes back mid-match."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from operator_bench import OperatorBench, joined
from pattern_examples import is_

from headrace import MAX_WATERMARK, OutputTag, Types
from headrace.cep import (
    AfterMatchSkipStrategy,
    IterativeCondition,
    Pattern,
    PatternProcessFunction,
    TimedOutPartialMatchHandler,
)
from headrace.cep.functions import Selecting, SelectingWithTimeout
from headrace.errors import StateConflictError, UserFunctionError

LATE = OutputTag("late")
OVER = OutputTag("over")


def ab() -> Pattern:
    return Pattern.begin("a").where(is_("a")).followed_by("b").where(is_("b"))


def loop() -> Pattern:
    """Many partial matches that share events."""
    return Pattern.begin("a").where(is_("a")).one_or_more().followed_by("b").where(is_("b")).within(1_000)


class Telling(PatternProcessFunction, TimedOutPartialMatchHandler):
    """Main output for matches, a side output for what timed out, with times."""

    def process_match(self, match: dict[str, list[Any]], ctx: Any) -> Iterator[Any]:
        yield joined(match), ctx.timestamp()
        yield OutputTag("seen"), joined(match)

    def process_timed_out_match(self, match: dict[str, list[Any]], ctx: Any) -> Iterator[Any]:
        ctx.output(OVER, ("output", joined(match)))
        yield OVER, (joined(match), ctx.timestamp())


# --- order and time ------------------------------------------------------------------------------


def test_events_count_in_the_order_of_their_timestamps_once_the_watermark_passed_them(bench: OperatorBench) -> None:
    running = bench.start(ab())
    running.feed((1, "b1", 20), (1, "a1", 10), (1, "b2", 5), (1, "a2", 30), (1, "b3", 40))
    assert running.results == []
    running.watermark(30)
    assert running.outputs.main == [("a1 b1", 20)]
    running.watermark(MAX_WATERMARK)
    assert running.outputs.main == [("a1 b1", 20), ("a2 b3", 40)]
    assert running.outputs.watermarks == [30, MAX_WATERMARK]
    assert running.kept() == {}


def test_events_of_one_timestamp_stay_as_they_came_or_are_put_in_order_by_the_comparator(bench: OperatorBench) -> None:
    came = bench.start(ab()).feed((1, "b1", 5), (1, "a1", 5), (1, "b2", 5)).watermark(5)
    assert came.results == ["a1 b2"]
    sorted_ = bench.start(ab(), comparator=lambda one, other: (one > other) - (one < other))
    assert sorted_.feed((1, "b1", 5), (1, "a1", 5), (1, "b2", 5)).watermark(5).results == ["a1 b1"]


def test_keys_do_not_see_each_other(bench: OperatorBench) -> None:
    running = bench.start(ab()).feed((1, "a1", 1), (2, "b2", 2), (2, "a2", 3), (1, "b1", 4), ("1", "b3", 5))
    assert running.watermark(10).results == ["a1 b1"]


def test_late_events_go_to_the_side_output_or_are_counted_and_dropped(bench: OperatorBench) -> None:
    asked = bench.start(ab(), late_tag=LATE).watermark(10).feed((1, "a1", 10), (1, "a2", 11), (1, "b", 12))
    assert asked.watermark(20).results == ["a2 b"]
    assert asked.outputs.sides[LATE.tag_id] == [("a1", 10)]
    silent = bench.start(ab()).watermark(10).feed((1, "a1", 10))
    assert silent.operator.context.metrics["numLateRecordsDropped"].get_count() == 1
    assert silent.kept() == {}


def test_a_record_without_timestamp_says_what_to_do(bench: OperatorBench) -> None:
    with pytest.raises(UserFunctionError, match=r"assign_timestamps_and_watermarks\(\).*in_processing_time\(\)"):
        bench.start(ab()).feed((1, "a", None))


def test_in_processing_time_events_count_as_they_come_and_within_goes_by_the_clock(bench: OperatorBench) -> None:
    running = bench.start(ab().within(100), Telling(), event_time=False)
    running.clock(1_000).feed((1, "a1", None), (2, "a2", 7))
    running.clock(1_050).feed((1, "b1", 9))
    assert running.outputs.main == [(("a1 b1", 1_050), 9)]
    running.clock(1_099)
    assert running.side(OVER) == []
    running.clock(1_100)
    assert running.side(OVER) == [("output", "a2"), ("a2", 1_100)]
    assert running.kept() == {}


def test_a_clock_that_is_set_back_does_not_turn_time_back(bench: OperatorBench) -> None:
    running = bench.start(ab().within(100), Telling(), event_time=False)
    running.clock(1_000).feed((1, "a", None))
    running.now_ms = 500
    running.feed((1, "b", None))
    assert running.results == [("a b", 1_000)]


def test_with_a_comparator_processing_time_waits_for_the_next_tick(bench: OperatorBench) -> None:
    running = bench.start(ab(), event_time=False, comparator=lambda one, other: (one > other) - (one < other))
    running.clock(10).feed((1, "b", None), (1, "a", None))
    assert running.results == []
    assert running.clock(11).results == ["a b"]


# --- what functions get --------------------------------------------------------------------------


def test_matches_and_timeouts_go_where_the_function_sends_them(bench: OperatorBench) -> None:
    running = bench.start(ab().within(10), Telling())
    running.feed((1, "a1", 1), (1, "b1", 5), (1, "a2", 6)).watermark(15)
    assert running.outputs.main == [(("a1 b1", 5), 5)]
    assert running.side(OutputTag("seen")) == ["a1 b1"]
    assert running.side(OVER) == []
    running.watermark(16)
    assert running.outputs.sides[OVER.tag_id] == [(("output", "a2"), 16), (("a2", 16), 16)]
    assert running.kept() == {}


def test_select_with_a_timeout_function(bench: OperatorBench) -> None:
    function = SelectingWithTimeout(joined, False, OVER, lambda match, time: (joined(match), time))
    running = bench.start(ab().within(10), function).feed((1, "a1", 1)).watermark(20)
    assert running.side(OVER) == [("a1", 11)]


def test_flat_select_gives_any_number(bench: OperatorBench) -> None:
    function = SelectingWithTimeout(
        lambda match: match["a"] + match["b"], True, OVER, lambda match, time: match["a"] * 2
    )
    running = bench.start(ab().within(10), function).feed((1, "a1", 1), (1, "b1", 2), (1, "a2", 3)).watermark(20)
    assert running.results == ["a1", "b1"]
    assert running.side(OVER) == ["a2", "a2"]
    nothing = bench.start(ab(), Selecting(lambda match: None, flat=True)).feed((1, "a", 1), (1, "b", 2)).watermark(9)
    assert nothing.results == []


def test_what_timed_out_cannot_go_to_the_main_output(bench: OperatorBench) -> None:
    class Wrong(Telling):
        def process_timed_out_match(self, match: dict[str, list[Any]], ctx: Any) -> Iterator[Any]:
            yield "a2"

    with pytest.raises(UserFunctionError, match="side outputs only"):
        bench.start(ab().within(10), Wrong()).feed((1, "a1", 1)).watermark(20)


def test_a_condition_that_fails_is_told_with_its_event(bench: OperatorBench) -> None:
    with pytest.raises(UserFunctionError, match="ZeroDivisionError") as failed:
        bench.start(Pattern.begin("a").where(lambda event: 1 // 0)).feed((1, "a7", 1)).watermark(2)
    assert "a7" in failed.value.record


def test_condition_objects_are_opened_and_closed_with_the_operator(bench: OperatorBench) -> None:
    told = []

    class Opened(IterativeCondition):
        def open(self, runtime_context: Any) -> None:
            told.append(("open", runtime_context.get_index_of_this_subtask()))

        def filter(self, value: Any, ctx: Any) -> bool:
            return True

        def close(self) -> None:
            told.append(("close", 0))

    running = bench.start(Pattern.begin("a").where(Opened()))
    assert told == [("open", 0)]
    running.operator.close()
    bench.running.remove(running)
    assert told == [("open", 0), ("close", 0)]


def test_matches_do_not_share_events_that_can_be_changed(bench: OperatorBench) -> None:
    def spoil(match: dict[str, list[Any]]) -> Any:
        for event in match["a"] + match["b"]:
            event["seen"] = event.get("seen", 0) + 1
        return match

    pattern = (
        Pattern.begin("a").where(lambda e: e["kind"] == "a").followed_by_any("b").where(lambda e: e["kind"] == "b")
    )
    running = bench.start(pattern, Selecting(spoil, flat=False), event_type=Types.ANY())
    a, b = {"kind": "a"}, {"kind": "b"}
    running.feed((1, a, 1), (1, a, 2), (1, b, 3), (1, b, 4)).watermark(9)
    assert len(running.results) == 4
    assert all(event["seen"] == 1 for match in running.results for events in match.values() for event in events)


# --- state ---------------------------------------------------------------------------------------


def test_nothing_is_kept_of_a_key_whose_matches_are_over(bench: OperatorBench) -> None:
    running = bench.start(loop())
    for key in range(10):
        running.feed(*((key, f"a{i}", 10 * i + key) for i in range(5)))
    running.watermark(100)
    assert running.kept() == {
        "_pattern-matches": 10,
        "_pattern-events": 10,
        "_pattern-links": 10,
        "timers": 10,
    }, "one timer for each key, however many partial matches it has"
    running.watermark(2_000)
    assert running.kept() == {}


def test_events_that_fit_nothing_leave_no_trace(bench: OperatorBench) -> None:
    running = bench.start(ab()).feed(*((1, "x", i) for i in range(20))).watermark(100)
    assert running.kept() == {}


STORY = [(key, event, time) for time, event in enumerate(["a1", "a2", "x", "a3", "b1", "a4", "b2"]) for key in range(8)]


def expected_of(bench: OperatorBench) -> list[str]:
    return sorted(bench.start(loop()).feed(*STORY).watermark(MAX_WATERMARK).results)


@pytest.mark.parametrize("canonical", [False, True])
@pytest.mark.parametrize("cut", [4, 20, 37])
def test_a_match_goes_on_where_the_snapshot_was_taken(bench: OperatorBench, cut: int, canonical: bool) -> None:
    first = bench.start(loop()).feed(*STORY[:cut]).watermark(STORY[cut][2] - 2)
    snapshot = bench.snapshot(first, canonical=canonical)
    before = list(first.results)
    first.feed(*STORY[cut:]).watermark(MAX_WATERMARK)  # a life that is forgotten
    second = bench.start(loop(), restored=[snapshot]).feed(*STORY[cut:]).watermark(MAX_WATERMARK)
    assert sorted(before + second.results) == expected_of(bench)
    assert second.kept() == {}


def test_partial_matches_follow_their_keys_to_other_widths(bench: OperatorBench) -> None:
    alone = bench.start(loop()).feed(*STORY[:20]).watermark(1)
    whole = bench.snapshot(alone)
    pair = [bench.start(loop(), subtask=i, parallelism=2, restored=[whole]) for i in range(2)]
    owners: dict[int, Any] = {}
    for running in pair:
        owners |= dict.fromkeys(running.backend.keys("_pattern-queue"), running)
        owners |= dict.fromkeys(running.backend.keys("_pattern-matches"), running)
    assert set(owners) == set(range(8))
    assert len({id(running) for running in owners.values()}) == 2
    for key, event, time in STORY[20:30]:
        owners[key].feed((key, event, time))
    found = list(alone.results)
    for running in pair:
        found += running.watermark(2).results
    again = bench.start(loop(), restored=[bench.snapshot(running) for running in pair])
    again.feed(*STORY[30:]).watermark(MAX_WATERMARK)
    assert sorted(found + again.results) == expected_of(bench)


def test_timeouts_and_waiting_matches_survive_a_restore(bench: OperatorBench) -> None:
    def pattern() -> Pattern:
        start = Pattern.begin("a", AfterMatchSkipStrategy.skip_past_last_event()).where(is_("a"))
        same = start.followed_by("b").where(lambda e, ctx: e[1:] == ctx.get_events_for_pattern("a")[0][1:])
        return same.within(100)

    first = bench.start(pattern(), Telling()).feed((1, "a1", 0), (1, "a2", 5), (1, "b2", 6)).watermark(50)
    assert first.results == [], "the match of a2 waits for a1"
    second = bench.start(pattern(), Telling(), restored=[bench.snapshot(first)]).watermark(200)
    assert second.side(OVER) == [("output", "a1"), ("a1", 100)]
    assert [text for text, _ in second.results] == ["a2 b2"]
    assert second.kept() == {}


def test_partial_matches_of_another_pattern_are_refused(bench: OperatorBench) -> None:
    first = bench.start(ab()).feed((1, "a", 1)).watermark(5)
    snapshot = bench.snapshot(first)
    longer = bench.start(ab().followed_by("c"), restored=[snapshot])
    with pytest.raises(StateConflictError, match="partial matches of another pattern"):
        longer.feed((1, "b", 10)).watermark(20)
    other_type = bench.start(ab(), event_type=Types.ANY(), restored=[snapshot])
    with pytest.raises(StateConflictError, match="type of events"):
        other_type.feed((1, "b", 10)).watermark(20)


def test_conditions_may_change_between_two_runs(bench: OperatorBench) -> None:
    first = bench.start(ab()).feed((1, "a", 1)).watermark(5)
    changed = Pattern.begin("a").where(is_("z")).followed_by("b").where(is_("c"))
    second = bench.start(changed, restored=[bench.snapshot(first)])
    assert second.feed((1, "b", 10), (1, "c", 11)).watermark(20).results == ["a c"]
