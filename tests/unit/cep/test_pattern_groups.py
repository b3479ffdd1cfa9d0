"""Groups: a sequence of patterns that stands as one."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pattern_examples import Matcher, found_in, is_

from headrace.cep import GroupPattern, Pattern


def ab(join: str = "followed_by") -> Pattern:
    pattern: Pattern = getattr(Pattern.begin("a").where(is_("a")), join)("b").where(is_("b"))
    return pattern


def c_group_d(quantified: Callable[[Pattern], Pattern]) -> Pattern:
    group = quantified(Pattern.begin("c").where(is_("c")).followed_by(ab()))
    return group.followed_by("d").where(is_("d"))


def test_a_group_is_a_pattern() -> None:
    assert isinstance(Pattern.begin(ab()), GroupPattern)
    assert found_in(Pattern.begin(ab()), "a1 x b1 a2 b2") == ["a1 b1", "a2 b2"]


@pytest.mark.parametrize(
    ("quantified", "expected"),
    [
        (lambda p: p, {"c a1 b1 d"}),
        (lambda p: p.optional(), {"c d", "c a1 b1 d"}),
        (lambda p: p.times(2), {"c a1 a2 b1 b2 d"}),
        (lambda p: p.times(1, 2), {"c a1 b1 d", "c a1 a2 b1 b2 d"}),
        (lambda p: p.one_or_more(), {"c a1 b1 d", "c a1 a2 b1 b2 d"}),
        (lambda p: p.one_or_more().optional(), {"c d", "c a1 b1 d", "c a1 a2 b1 b2 d"}),
        (lambda p: p.times_or_more(2), {"c a1 a2 b1 b2 d"}),
    ],
)
def test_a_group_as_often_as_the_quantifier_says(quantified: Callable[[Pattern], Pattern], expected: set[str]) -> None:
    found = found_in(c_group_d(quantified), "c a1 b1 x a2 y b2 d")
    assert set(found) == expected
    assert len(found) == len(expected), "each match once"


def test_the_contiguity_of_a_group_is_that_of_its_first_event() -> None:
    start = Pattern.begin("c").where(is_("c"))
    assert found_in(start.next(ab()), "c x a b") == []
    assert found_in(start.next(ab()), "c a x b") == ["c a b"]
    assert found_in(start.followed_by_any(ab()), "c a1 a2 b") == ["c a1 b", "c a2 b"]


def test_repetitions_of_a_group_may_have_to_follow_directly() -> None:
    apart = Pattern.begin(ab("next")).times(2)
    assert found_in(apart, "a1 b1 x a2 b2") == ["a1 a2 b1 b2"]
    close = Pattern.begin(ab("next")).times(2).consecutive()
    assert found_in(close, "a1 b1 x a2 b2") == []
    assert found_in(close, "a1 b1 a2 b2") == ["a1 a2 b1 b2"]


def test_combinations_of_a_group() -> None:
    pattern = Pattern.begin("c").where(is_("c")).followed_by(ab("next")).one_or_more().allow_combinations()
    found = found_in(pattern.followed_by("d").where(is_("d")), "c a1 b1 a2 b2 a3 b3 d")
    assert "c a1 a3 b1 b3 d" in found
    assert len(found) == len(set(found))


def test_a_group_that_ends_in_a_loop() -> None:
    inside = Pattern.begin("a").where(is_("a")).followed_by("b").where(is_("b")).one_or_more()
    pattern = Pattern.begin(inside).times(2)
    assert found_in(pattern.next("d").where(is_("d")), "a1 b1 b2 a2 b3 d") == ["a1 a2 b1 b2 b3 d", "a1 a2 b1 b3 d"]


def test_a_group_of_groups() -> None:
    inner = Pattern.begin(ab("next")).times(2)
    pattern = Pattern.begin(inner.next("c").where(is_("c"))).times(2)
    assert found_in(pattern, "a b a b c a b a b c") == ["a a a a b b b b c c"]


def test_until_ends_the_repetition_of_a_group() -> None:
    pattern = Pattern.begin(ab()).one_or_more().until(is_("x"))
    assert found_in(pattern, "a1 b1 x a2 b2") == ["a1 b1", "a2 b2"]
    assert sorted(found_in(pattern, "a1 b1 y a2 b2")) == ["a1 a2 b1 b2", "a1 b1", "a2 b2"]


def test_limits_inside_of_a_group_count_for_the_whole() -> None:
    pattern = Pattern.begin(ab().within(5)).followed_by("c").where(is_("c"))
    assert Matcher(pattern).feed("a/0 b/1 c/6") == []
    assert Matcher(pattern).feed("a/0 b/1 c/4") == ["a b c"]


def test_a_group_of_optional_patterns_in_a_loop_comes_to_an_end() -> None:
    inside = Pattern.begin("a").where(is_("a")).optional().followed_by("b").where(is_("b")).optional()
    pattern = Pattern.begin(inside).one_or_more().followed_by("c").where(is_("c"))
    assert "a b c" in found_in(pattern, "a b c")
