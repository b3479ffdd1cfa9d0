"""Patterns that cannot be matched are refused with the pattern's name and the way out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from headrace import JobDefinitionError, Time
from headrace.cep import AfterMatchSkipStrategy, MalformedPatternError, Pattern, WithinType


def a() -> Pattern:
    return Pattern.begin("a")


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Pattern.begin(""), "non-empty str"),
        (lambda: a().next("b").next("a").sequence(), 'named "a".*Rename one'),
        (lambda: Pattern.begin(a().next("b")).next("b").sequence(), 'named "b".*Rename one'),
        (lambda: a().not_followed_by("b").sequence(), r'ends with not_followed_by\("b"\).*within'),
        (lambda: Pattern.begin(a().not_followed_by("b")).next("c").sequence(), "Put it behind the group"),
        (lambda: a().optional().not_next("b"), 'after the optional pattern "a"'),
        (lambda: a().optional().not_followed_by("b"), 'after the optional pattern "a"'),
        (lambda: a().not_next(a()), "cannot be negated"),  # type: ignore[arg-type]
        (lambda: a().not_next("b").one_or_more(), r"makes no sense on a pattern of not_next\(\)"),
        (lambda: a().not_next("b").optional(), "makes no sense"),
        (lambda: a().not_followed_by("b").greedy(), "makes no sense"),
        (lambda: a().one_or_more().times(2), "another call that says how often"),
        (lambda: a().times(2).times_or_more(2), "another call that says how often"),
        (lambda: a().times(0), "at least 1"),
        (lambda: a().times(3, 2), "goes from 3 to 2"),
        (lambda: a().times(True), "at least 1"),
        (lambda: a().times_or_more(-1), "at least 1"),
        (lambda: a().greedy(), "the pattern is a single event"),
        (lambda: a().one_or_more().allow_combinations().greedy(), r"contradicts allow_combinations\(\)"),
        (lambda: a().one_or_more().greedy().allow_combinations(), r"contradicts greedy\(\)"),
        (lambda: a().one_or_more().greedy().next("b").optional(), 'after the greedy pattern "a"'),
        (lambda: Pattern.begin(a().next("b")).one_or_more().greedy(), "group of patterns"),
        (lambda: a().consecutive(), "the pattern is a single one"),
        (lambda: a().allow_combinations(), "the pattern is a single one"),
        (lambda: a().times(2).consecutive().allow_combinations(), "contradicts"),
        (lambda: a().until(bool), "ends a loop, but the pattern has none"),
        (lambda: a().times(2).until(bool), "ends a loop, but the pattern has none"),
        (lambda: a().one_or_more().until(bool).until(bool), "called twice"),
        (lambda: a().within(0), "more than 0"),
        (lambda: a().within(Time.seconds(-1)), "more than 0"),
        (lambda: a().within("soon"), "no duration"),  # type: ignore[arg-type]
        (lambda: a().within(5, WithinType.PREVIOUS_AND_CURRENT), "nothing stands before it"),
        (lambda: a().next("b").within(5, "first"), "WithinType"),  # type: ignore[arg-type]
        (lambda: a().subtype("str"), "no class"),  # type: ignore[arg-type]
        (lambda: Pattern.begin(a()).where(bool), "Call it inside of the group"),
        (lambda: Pattern.begin(a()).or_where(bool), "Call it inside of the group"),
        (lambda: Pattern.begin(a()).subtype(str), "Call it inside of the group"),
        (lambda: Pattern.begin("a", "next"), "wanted an AfterMatchSkipStrategy"),  # type: ignore[arg-type]
        (lambda: Pattern.begin("a", AfterMatchSkipStrategy.skip_to_first("b")).sequence(), 'pattern "b".*one of: a'),
        (
            lambda: Pattern.begin("a", AfterMatchSkipStrategy.skip_to_last("b")).not_next("b").next("c").sequence(),
            'pattern "b".*one of: a, c',
        ),
        (lambda: AfterMatchSkipStrategy.skip_to_first(""), "wanted the name of a pattern"),
    ],
)
def test_it_is_refused(build: Callable[[], Any], message: str) -> None:
    with pytest.raises(MalformedPatternError, match=message) as refused:
        build()
    assert isinstance(refused.value, JobDefinitionError)
    assert str(refused.value).endswith(".")


def test_a_beginning_can_be_shared_by_two_sequences() -> None:
    start = a().where(bool)
    assert [step.name for step in start.next("b").sequence().steps] == ["a", "b"]
    assert [step.name for step in start.followed_by("c").sequence().steps] == ["a", "c"]


def test_a_pattern_tells_its_name_its_predecessor_and_its_strategy() -> None:
    strategy = AfterMatchSkipStrategy.skip_to_next()
    first = Pattern.begin("a", strategy)
    second = first.next("b")
    assert (second.get_name(), second.get_previous(), first.get_previous()) == ("b", first, None)
    assert second.get_after_match_skip_strategy() == strategy
    assert repr(second) == "<Pattern a b>"
