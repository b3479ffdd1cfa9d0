"""`within`: how long a match may take, what times out, and what is kept no longer."""

from __future__ import annotations

import pytest
from pattern_examples import Matcher, is_

from headrace import Time
from headrace.cep import Pattern, WithinType


def ab() -> Pattern:
    return Pattern.begin("a").where(is_("a")).followed_by("b").where(is_("b"))


@pytest.mark.parametrize(("b_at", "expected"), [(9, ["a b"]), (10, []), (11, [])])
def test_a_match_is_complete_before_the_time_is_over(b_at: int, expected: list[str]) -> None:
    assert Matcher(ab().within(10)).feed(f"a/0 b/{b_at}") == expected


def test_the_smallest_of_several_limits_holds() -> None:
    pattern = Pattern.begin("a").where(is_("a")).within(Time.seconds(1))
    assert Matcher(pattern.followed_by("b").where(is_("b")).within(5)).feed("a/0 b/6") == []


def test_a_partial_match_that_times_out_is_told_with_the_moment_and_leaves_nothing_behind() -> None:
    matcher = Matcher(ab().followed_by("c").where(is_("c")).within(10))
    assert matcher.feed("a1/0 b/3 a2/4") == []
    assert (len(matcher.events), len(matcher.matches.partial)) == (3, 2)
    assert matcher.advanced(10) == []
    assert matcher.timed_out == [("a1 b", 10)]
    assert list(matcher.events.values()) == [b"\xa2a2"], "what only a1 needed is gone"
    assert matcher.advanced(14) == []
    assert matcher.timed_out == [("a1 b", 10), ("a2", 14)]
    assert matcher.is_clean


def test_an_event_that_comes_too_late_times_the_match_out_before_it_is_looked_at() -> None:
    matcher = Matcher(ab().within(10))
    assert matcher.feed("a1/0 b/50") == []
    assert matcher.timed_out == [("a1", 10)]


def test_time_between_neighbours() -> None:
    limit = WithinType.PREVIOUS_AND_CURRENT
    pattern = ab().within(5, limit).followed_by("c").where(is_("c")).within(20, limit)
    assert Matcher(pattern).feed("a/0 b/4 c/23") == ["a b c"]
    assert Matcher(pattern).feed("a/0 b/5 c/6") == []
    matcher = Matcher(pattern)
    assert matcher.feed("a/0 b/4 c/24") == []
    assert matcher.timed_out == [("a b", 24)]
    assert matcher.is_clean


def test_time_between_the_events_of_a_loop() -> None:
    pattern = Pattern.begin("a").where(is_("a")).times(3, window_time=5)
    assert Matcher(pattern).feed("a1/0 a2/4 a3/8") == ["a1 a2 a3"]
    assert Matcher(pattern).feed("a1/0 a2/5 a3/8") == []


def test_matches_without_a_limit_are_kept_until_they_end() -> None:
    matcher = Matcher(Pattern.begin("a").where(is_("a")).next("b").where(is_("b")))
    matcher.feed("a1 a2")
    assert len(matcher.events) == 1, "a1 cannot be followed directly by b any more"
    assert matcher.feed("b") == ["a2 b"]
    assert matcher.is_clean


def test_an_event_shared_by_many_matches_is_kept_once() -> None:
    matcher = Matcher(Pattern.begin("a").where(is_("a")).one_or_more().followed_by("b").where(is_("b")).within(100))
    matcher.feed(" ".join(f"a{i}" for i in range(20)))
    assert len(matcher.events) == 20
    assert matcher.matches.event_holds.keys() == matcher.events.keys()
    matcher.advance(200)
    assert matcher.is_clean
