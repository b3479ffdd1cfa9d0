"""How often a pattern occurs: times, loops, optional and greedy ones."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pattern_examples import found_in, is_

from headrace.cep import Pattern


def middle(quantified: Callable[[Pattern], Pattern]) -> Pattern:
    """`c`, then `a` as often as the test says, then `d`."""
    loop = Pattern.begin("c").where(is_("c")).followed_by("a").where(is_("a"))
    return quantified(loop).followed_by("d").where(is_("d"))


@pytest.mark.parametrize(
    ("quantified", "expected"),
    [
        (lambda p: p, {"c a1 d"}),
        (lambda p: p.optional(), {"c d", "c a1 d"}),
        (lambda p: p.times(2), {"c a1 a2 d"}),
        (lambda p: p.times(2).optional(), {"c d", "c a1 a2 d"}),
        (lambda p: p.times(1, 2), {"c a1 d", "c a1 a2 d"}),
        (lambda p: p.times(0, 2), {"c d", "c a1 d", "c a1 a2 d"}),
        (lambda p: p.times(2, 3).optional(), {"c d", "c a1 a2 d", "c a1 a2 a3 d"}),
        (lambda p: p.one_or_more(), {"c a1 d", "c a1 a2 d", "c a1 a2 a3 d"}),
        (lambda p: p.one_or_more().optional(), {"c d", "c a1 d", "c a1 a2 d", "c a1 a2 a3 d"}),
        (lambda p: p.times_or_more(2), {"c a1 a2 d", "c a1 a2 a3 d"}),
        (lambda p: p.times_or_more(2).optional(), {"c d", "c a1 a2 d", "c a1 a2 a3 d"}),
        (lambda p: p.times(4), set()),
        (lambda p: p.one_or_more().greedy(), {"c a1 a2 a3 d"}),
        (lambda p: p.one_or_more().optional().greedy(), {"c a1 a2 a3 d"}),
        (lambda p: p.times_or_more(2).greedy(), {"c a1 a2 a3 d"}),
        (lambda p: p.times(1, 2).greedy(), {"c a1 a2 d"}),
        (lambda p: p.times(2, 4).greedy(), {"c a1 a2 a3 d"}),
    ],
)
def test_as_often_as_the_quantifier_says(quantified: Callable[[Pattern], Pattern], expected: set[str]) -> None:
    found = found_in(middle(quantified), "c a1 a2 x a3 d")
    assert set(found) == expected
    assert len(found) == len(expected), "each match once"


def test_a_loop_at_the_end_gives_a_match_with_each_event() -> None:
    loop = Pattern.begin("a").where(is_("a")).one_or_more()
    assert found_in(loop, "a1 a2 a3") == ["a1", "a1 a2", "a2", "a1 a2 a3", "a2 a3", "a3"]


def test_an_optional_beginning() -> None:
    pattern = Pattern.begin("a").where(is_("a")).optional().next("b").where(is_("b"))
    assert found_in(pattern, "a b1 x b2") == ["a b1", "b1", "b2"]


def test_an_optional_end_gives_the_match_at_once_and_again_with_it() -> None:
    pattern = Pattern.begin("a").where(is_("a")).followed_by("b").where(is_("b")).optional()
    assert found_in(pattern, "a x b") == ["a", "a b"]


def test_a_greedy_loop_that_may_be_missing_is_passed_over() -> None:
    assert found_in(middle(lambda p: p.one_or_more().optional().greedy()), "c x d") == ["c d"]


def test_a_greedy_loop_at_the_end_waits_for_an_event_that_it_cannot_take_and_tells_once() -> None:
    pattern = Pattern.begin("c").where(is_("c")).next("a").where(is_("a")).one_or_more().greedy()
    assert found_in(pattern, "c a1 a2") == []
    assert found_in(pattern, "c a1 a2 x y z") == ["c a1 a2"]


def test_a_greedy_loop_takes_what_the_next_pattern_could_take_as_well() -> None:
    beginning = Pattern.begin("x").where(is_("a", "b", "c")).next("y").where(is_("b", "c"))
    pattern = beginning.next("c").where(is_("c")).one_or_more().greedy().next("d").where(is_("d"))
    assert found_in(pattern, "a b c1 c2 c3 d") == ["a b c1 c2 c3 d", "b c1 c2 c3 d", "c1 c2 c3 d"]


def test_greedy_until() -> None:
    """An event that ends the loop before it began leaves only the way without the loop."""
    pattern = middle(lambda p: p.one_or_more().optional().greedy().until(lambda event: event.endswith("!")))
    assert found_in(pattern, "c a1 a2 a3 a! d") == ["c a1 a2 a3 d"]
    assert found_in(pattern, "c a! a1 a2 d") == ["c d"]
