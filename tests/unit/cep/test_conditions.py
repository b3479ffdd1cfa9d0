"""Which events fit: plain functions, condition objects, combinations of them, and conditions that look back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pattern_examples import Matcher, found_in, is_

from headrace.cep import ConditionContext, IterativeCondition, MalformedPatternError, Pattern, SimpleCondition


class Letter(SimpleCondition):
    def __init__(self, letter: str) -> None:
        self.letter = letter

    def filter(self, value: Any) -> bool:
        return bool(value[0] == self.letter)


class Rising(IterativeCondition):
    """Greater than all events of the loop so far."""

    def filter(self, value: Any, ctx: ConditionContext) -> bool:
        return all(int(value[1:]) > int(event[1:]) for event in ctx.get_events_for_pattern("loop"))


@pytest.mark.parametrize("condition", [is_("a"), Letter("a"), SimpleCondition.of(is_("a")), lambda e, ctx: e[0] == "a"])
def test_every_form_of_condition(condition: Callable[..., bool]) -> None:
    assert found_in(Pattern.begin("a").where(condition), "a1 b a2") == ["a1", "a2"]


def test_several_where_must_all_be_true_and_or_where_is_an_alternative_to_all_before() -> None:
    both = Pattern.begin("p").where(is_("a", "b")).where(lambda event: event.endswith("1"))
    assert found_in(both, "a1 a2 b1 c1") == ["a1", "b1"]
    assert found_in(both.or_where(is_("c")), "a1 a2 b1 c1") == ["a1", "b1", "c1"]
    assert found_in(Pattern.begin("p").or_where(is_("c")), "a c") == ["c"]


def test_subtype_takes_objects_of_the_class() -> None:
    class Special(str):
        pass

    matcher = Matcher(Pattern.begin("p").subtype(Special).where(is_("a")))
    found = [matcher.nfa.process(matcher.matches, event, 0) for event in ("a1", Special("a2"), Special("b"))]
    assert found == [None, [{"p": ["a2"]}], None]


def test_an_iterative_condition_sees_what_its_own_partial_match_has_taken() -> None:
    pattern = Pattern.begin("loop").where(Rising()).one_or_more().consecutive()
    assert found_in(pattern, "a1 a3 a2") == ["a1", "a1 a3", "a3", "a2"]


def test_an_iterative_condition_sees_earlier_patterns_and_the_time() -> None:
    times = []

    def further_than_ten(event: str, ctx: ConditionContext) -> bool:
        times.append(ctx.timestamp())
        assert ctx.get_events_for_pattern("nobody") == []
        return int(event[1:]) - int(ctx.get_events_for_pattern("low")[-1][1:]) > 10

    pattern = Pattern.begin("low").where(is_("t")).followed_by("high").where(further_than_ten)
    assert found_in(pattern, "t5/100 t12/110 t20/130") == ["t5 t20"]
    assert times == [110, 130, 130]


def test_a_simple_condition_is_asked_once_for_an_event_however_many_matches_wait() -> None:
    asked = []

    def is_b(event: str) -> bool:
        asked.append(event)
        return event[0] == "b"

    pattern = Pattern.begin("a").where(is_("a")).followed_by("b").where(is_b)
    assert found_in(pattern, "a1 a2 a3 b") == ["a1 b", "a2 b", "a3 b"]
    assert asked == ["a2", "a3", "b"]


def test_a_loop_until() -> None:
    loop = Pattern.begin("a").where(is_("a")).one_or_more().until(is_("b"))
    assert sorted(found_in(loop, "a1 c a2 b a3")) == ["a1", "a1 a2", "a2", "a3"]


def test_until_frees_the_partial_match() -> None:
    matcher = Matcher(Pattern.begin("a").where(is_("a")).one_or_more().until(is_("b")))
    matcher.feed("a1 a2")
    assert len(matcher.events) == 2
    matcher.feed("b")
    assert matcher.is_clean


def test_until_may_look_back() -> None:
    def is_enough(event: str, ctx: ConditionContext) -> bool:
        return len(ctx.get_events_for_pattern("a")) >= 2

    loop = Pattern.begin("a").where(is_("a")).one_or_more().consecutive().until(is_enough)
    assert sorted(found_in(loop, "a1 a2 a3")) == ["a1", "a1 a2", "a2", "a2 a3", "a3"]


@pytest.mark.parametrize("given", [None, "a", 3])
def test_what_is_no_condition_is_refused(given: Any) -> None:
    with pytest.raises(MalformedPatternError, match="wanted a function of the event"):
        Pattern.begin("a").where(given)


def test_a_class_is_no_condition() -> None:
    with pytest.raises(MalformedPatternError, match=r"Write Rising\(\.\.\.\)"):
        Pattern.begin("a").where(Rising)  # type: ignore[arg-type]
