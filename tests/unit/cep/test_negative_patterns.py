"""Events that must not come: `not_next` and `not_followed_by`."""

from __future__ import annotations

import pytest
from pattern_examples import Matcher, found_in, is_

from headrace.cep import AfterMatchSkipStrategy, Pattern


def a() -> Pattern:
    return Pattern.begin("a").where(is_("a"))


@pytest.mark.parametrize(
    ("events", "expected"),
    [("a b c", []), ("a x b c", ["a c"]), ("a c", ["a c"]), ("a1 b a2 c", ["a2 c"])],
)
def test_not_next_looks_at_the_event_directly_after(events: str, expected: list[str]) -> None:
    assert found_in(a().not_next("b").where(is_("b")).followed_by("c").where(is_("c")), events) == expected


def test_not_next_at_the_end_waits_for_one_event() -> None:
    pattern = a().not_next("b").where(is_("b"))
    assert found_in(pattern, "a1 b a2 x y") == ["a2"]
    assert found_in(pattern, "a1") == []


@pytest.mark.parametrize(
    ("events", "expected"),
    [("a b c", []), ("a x b c", []), ("a c b", ["a c"]), ("a1 b a2 x c", ["a2 c"]), ("a b1 c a2 c2", ["a2 c2"])],
)
def test_not_followed_by_looks_at_all_events_between(events: str, expected: list[str]) -> None:
    assert found_in(a().not_followed_by("b").where(is_("b")).followed_by("c").where(is_("c")), events) == expected


def test_what_may_not_come_no_longer_counts_once_an_optional_pattern_came() -> None:
    pattern = (
        a()
        .not_followed_by("b")
        .where(is_("b"))
        .followed_by_any("c")
        .where(is_("c"))
        .optional()
        .followed_by_any("d")
        .where(is_("d"))
    )
    assert found_in(pattern, "a c b d") == ["a c d"]
    assert found_in(pattern, "a b d") == []
    assert found_in(pattern, "a b c d") == []


def test_what_may_not_follow_a_loop_ends_the_loop_too() -> None:
    pattern = a().one_or_more().not_followed_by("b").where(is_("b")).followed_by("c").where(is_("c"))
    assert found_in(pattern, "a1 x b a2 c") == ["a2 c"]
    assert sorted(found_in(pattern, "a1 x a2 c")) == ["a1 a2 c", "a1 c", "a2 c"]


def test_between_the_events_of_times_as_well() -> None:
    pattern = a().times(2).not_followed_by("b").where(is_("b")).followed_by("c").where(is_("c"))
    assert found_in(pattern, "a1 b a2 c") == []
    assert found_in(pattern, "a1 x a2 c") == ["a1 a2 c"]


def test_not_followed_by_at_the_end_is_a_match_when_the_time_is_over() -> None:
    matcher = Matcher(a().not_followed_by("b").where(is_("b")).within(10))
    assert matcher.feed("a1/0 x/5 a2/7 b/12") == ["a1"], "b came after the time of a1 and within that of a2"
    assert matcher.advanced(30) == []
    assert matcher.timed_out == []
    assert matcher.is_clean


def test_a_loop_before_not_followed_by_at_the_end_is_a_match_even_if_no_event_comes_any_more() -> None:
    matcher = Matcher(a().one_or_more().not_followed_by("b").where(is_("b")).within(10))
    assert matcher.feed("a1/0 a2/1") == []
    assert sorted(matcher.advanced(20)) == ["a1", "a1 a2", "a2"]
    assert matcher.timed_out == []
    assert matcher.is_clean


def test_not_followed_by_at_the_end_with_a_skip_strategy() -> None:
    past_last = AfterMatchSkipStrategy.skip_past_last_event()
    pattern = Pattern.begin("a", past_last).where(is_("a")).followed_by("c").where(is_("c"))
    matcher = Matcher(pattern.not_followed_by("b").where(is_("b")).within(10))
    assert matcher.feed("a1/0 a2/1 c/2") == []
    assert matcher.advanced(30) == ["a1 c"], "a2 began within the match of a1"
    assert matcher.is_clean
