"""What may stand between the events of a match: strict, relaxed and non-deterministic relaxed contiguity."""

from __future__ import annotations

import pytest
from pattern_examples import found_in, is_

from headrace.cep import Pattern


def a() -> Pattern:
    return Pattern.begin("a").where(is_("a"))


@pytest.mark.parametrize(
    ("join", "expected"),
    [
        ("next", []),  # the c after a ends it
        ("followed_by", ["a b1"]),  # up to the first b
        ("followed_by_any", ["a b1", "a b2"]),  # any b
    ],
)
def test_a_then_b_with_something_between(join: str, expected: list[str]) -> None:
    assert found_in(getattr(a(), join)("b").where(is_("b")), "a c b1 b2") == expected


def test_every_event_that_fits_begins_a_match_of_its_own() -> None:
    assert found_in(a().followed_by("b").where(is_("b")), "a1 a2 b") == ["a1 b", "a2 b"]


def test_a_pattern_without_condition_takes_every_event() -> None:
    assert found_in(Pattern.begin("first").next("second"), "a b c") == ["a b", "b c"]


def test_one_event_is_never_taken_twice_by_one_match() -> None:
    assert found_in(a().followed_by("again").where(is_("a")), "a1 a2") == ["a1 a2"]


@pytest.mark.parametrize(
    ("inner", "expected"),
    [
        ("consecutive", ["a b3 c"]),
        ("", ["a b1 b2 b3 c", "a b2 b3 c", "a b3 c"]),
        ("allow_combinations", ["a b1 b2 b3 c", "a b1 b3 c", "a b2 b3 c", "a b3 c"]),
    ],
)
def test_contiguity_within_a_loop_that_the_next_pattern_follows_directly(inner: str, expected: list[str]) -> None:
    loop = a().followed_by_any("b").where(is_("b")).one_or_more()
    if inner:
        getattr(loop, inner)()
    assert found_in(loop.next("c").where(is_("c")), "a b1 d1 b2 d2 b3 c") == expected


@pytest.mark.parametrize(
    ("inner", "expected"),
    [
        ("", {"a b1 c", "a b1 b2 c", "a b1 b2 b3 c", "a b2 c", "a b2 b3 c", "a b3 c"}),
        (
            "allow_combinations",
            {"a b1 c", "a b1 b2 c", "a b1 b3 c", "a b1 b2 b3 c", "a b2 c", "a b2 b3 c", "a b3 c"},
        ),
    ],
)
def test_contiguity_within_a_loop_as_the_manual_shows_it(inner: str, expected: set[str]) -> None:
    loop = a().followed_by_any("b").where(is_("b")).one_or_more()
    if inner:
        getattr(loop, inner)()
    found = found_in(loop.followed_by("c").where(is_("c")), "a b1 d1 b2 d2 b3 c")
    assert set(found) == expected
    assert len(found) == len(expected)


@pytest.mark.parametrize(
    ("inner", "expected"),
    [
        ("consecutive", {"c a1 b", "c a1 a2 b", "c a1 a2 a3 b"}),
        ("", {"c a1 b", "c a1 a2 b", "c a1 a2 a3 b", "c a1 a2 a3 a4 b"}),
        (
            "allow_combinations",
            {
                *("c a1 b", "c a1 a2 b", "c a1 a3 b", "c a1 a4 b", "c a1 a2 a3 b", "c a1 a2 a4 b", "c a1 a3 a4 b"),
                "c a1 a2 a3 a4 b",
            },
        ),
    ],
)
def test_consecutive_and_combined_events_of_one_or_more(inner: str, expected: set[str]) -> None:
    loop = Pattern.begin("c").where(is_("c")).followed_by("a").where(is_("a")).one_or_more()
    if inner:
        getattr(loop, inner)()
    found = found_in(loop.followed_by("b").where(is_("b")), "c d a1 a2 a3 d a4 b")
    assert set(found) == expected
    assert len(found) == len(expected)
