"""What becomes of other matches once one is found."""

from __future__ import annotations

import pytest
from pattern_examples import Matcher, found_in, is_

from headrace.cep import AfterMatchSkipStrategy, Pattern
from headrace.errors import RecordError

NO_SKIP = AfterMatchSkipStrategy.no_skip()
TO_NEXT = AfterMatchSkipStrategy.skip_to_next()
PAST_LAST = AfterMatchSkipStrategy.skip_past_last_event()
TO_FIRST = AfterMatchSkipStrategy.skip_to_first
TO_LAST = AfterMatchSkipStrategy.skip_to_last


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        (NO_SKIP, ["b1 b2 b3 c", "b2 b3 c", "b3 c"]),
        (TO_NEXT, ["b1 b2 b3 c", "b2 b3 c", "b3 c"]),
        (PAST_LAST, ["b1 b2 b3 c"]),
        (TO_FIRST("b"), ["b1 b2 b3 c", "b2 b3 c", "b3 c"]),
        (TO_LAST("b"), ["b1 b2 b3 c", "b3 c"]),
    ],
    ids=str,
)
def test_b_plus_c(strategy: AfterMatchSkipStrategy, expected: list[str]) -> None:
    pattern = Pattern.begin("b", strategy).where(is_("b")).one_or_more().consecutive().next("c").where(is_("c"))
    assert found_in(pattern, "b1 b2 b3 c") == expected


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        (NO_SKIP, ["a b c1 c2 c3 d", "b c1 c2 c3 d", "c1 c2 c3 d"]),
        (TO_FIRST("loop"), ["a b c1 c2 c3 d", "c1 c2 c3 d"]),
    ],
    ids=str,
)
def test_skip_to_the_first_event_of_a_later_pattern(strategy: AfterMatchSkipStrategy, expected: list[str]) -> None:
    beginning = Pattern.begin("x", strategy).where(is_("a", "b", "c")).next("y").where(is_("b", "c"))
    loop = beginning.next("loop").where(is_("c")).one_or_more().consecutive().greedy()
    assert found_in(loop.next("d").where(is_("d")), "a b c1 c2 c3 d") == expected


@pytest.mark.parametrize(
    ("strategy", "expected"), [(NO_SKIP, ["a b1", "a b1 b2", "a b1 b2 b3"]), (TO_NEXT, ["a b1"])], ids=str
)
def test_a_b_plus(strategy: AfterMatchSkipStrategy, expected: list[str]) -> None:
    pattern = Pattern.begin("a", strategy).where(is_("a")).followed_by("b").where(is_("b")).one_or_more()
    assert found_in(pattern, "a b1 b2 b3") == expected


def test_past_the_last_event_begins_anew_behind_the_match() -> None:
    assert found_in(Pattern.begin("a", PAST_LAST).times(3).consecutive(), "a1 a2 a3 a4 a5 a6 a7") == [
        "a1 a2 a3",
        "a4 a5 a6",
    ]


def test_a_match_waits_for_one_that_began_earlier_and_is_discarded_by_it() -> None:
    pattern = Pattern.begin("a", PAST_LAST).where(is_("a")).followed_by("b").where(is_("b")).times(1, 3).greedy()
    matcher = Matcher(pattern.next("c").where(is_("c", "d")).within(100))
    # From a1 on the loop may take b1 b2 b3; a2 begins a match inside of that.
    assert matcher.feed("a1 b1 a2 b2 b3 c") == ["a1 b1 b2 b3 c"]
    assert matcher.is_clean


def test_a_match_that_waits_is_freed_when_the_earlier_one_times_out() -> None:
    # The first a waits for the same letter as itself to come again; the second finds it.
    pattern = Pattern.begin("a", PAST_LAST).where(is_("a"))
    pattern = pattern.followed_by("b").where(lambda event, ctx: event[1:] == ctx.get_events_for_pattern("a")[0][1:])
    matcher = Matcher(pattern.within(10))
    assert matcher.feed("a1/0 a2/5 b2/6") == [], "a1 may still become a match that ends behind a2"
    assert matcher.feed("x/11") == ["a2 b2"]
    assert matcher.timed_out == [("a1", 10)]
    assert matcher.is_clean


def test_a_missing_pattern_to_skip_to_discards_nothing_unless_told_to_fail() -> None:
    def pattern(strategy: AfterMatchSkipStrategy) -> Pattern:
        start = Pattern.begin("a", strategy).where(is_("a")).next("b").where(is_("b")).optional()
        return start.next("c").where(is_("c"))

    assert found_in(pattern(TO_FIRST("b")), "a c") == ["a c"]
    with pytest.raises(RecordError, match=r'skip_to_first\("b"\) finds no event'):
        found_in(pattern(TO_FIRST("b").throw_exception_on_miss()), "a c")
    with pytest.raises(RecordError, match="leads to the first event of the match itself"):
        found_in(pattern(TO_LAST("a").throw_exception_on_miss()), "a c")


def test_strategies_can_be_compared_and_printed() -> None:
    assert TO_FIRST("b") == TO_FIRST("b") != TO_LAST("b")
    assert "b" in repr(TO_FIRST("b"))
