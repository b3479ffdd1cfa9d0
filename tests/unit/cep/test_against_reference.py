"""The automaton finds what a brute-force search finds, each match once, and keeps nothing that it does not need."""

from __future__ import annotations

from collections import Counter
from itertools import accumulate
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st
from pattern_examples import Matcher
from reference_matcher import ANY, RELAXED, STRICT, Part, Rules

from headrace.cep.nfa import Match

letters = st.sampled_from(["a", "b", "c", "ab", "bc", "abc"])
contiguities = st.sampled_from([STRICT, RELAXED, ANY])
amounts = st.sampled_from([(1, 1), (1, 1), (2, 2), (1, 2), (2, 3), (1, None), (2, None)])


@st.composite
def rules(draw: Any) -> Rules:
    parts: list[Part] = []
    for number in range(draw(st.integers(1, 3))):
        least, most = draw(amounts)
        optional = draw(st.booleans()) if draw(st.booleans()) else False
        not_next = ""
        # Behind a loop, or something that may be missing, "directly after" is not one place.
        if number and not optional and not parts[-1].optional and parts[-1].least == parts[-1].most:
            not_next = draw(st.sampled_from(["", "", "b", "c"]))
        parts.append(Part(draw(letters), draw(contiguities), least, most, draw(contiguities), optional, not_next))
    return Rules(tuple(parts), draw(st.sampled_from([None, None, 2, 4])))


events = st.lists(st.sampled_from("abcd"), max_size=7)
gaps = st.lists(st.integers(0, 2), min_size=7, max_size=7)


def text_of(match: Match) -> str:
    return " ".join(f"{number}:{event}" for number, found in sorted(match.items()) for event in found)


def found_by_automaton(rules: Rules, names: list[str], times: list[int]) -> tuple[list[str], Matcher]:
    matcher = Matcher(rules.pattern())
    found = []
    for name, time in zip(names, times, strict=True):
        matcher.advance(time)
        found += [text_of(match) for match in matcher.nfa.process(matcher.matches, name, time) or ()]
    return found, matcher


@settings(max_examples=250)
@given(rules(), events, gaps)
@example(Rules((Part("a"), Part("b", ANY, 1, None, ANY, True), Part("b", STRICT))), list("abbcb"), [1] * 7)
@example(Rules((Part("ab", RELAXED, 2, 3), Part("c", RELAXED, not_next="")), 4), list("abdcbc"), [1] * 7)
def test_matches_are_those_of_a_search_through_all_choices(rules: Rules, drawn: list[str], apart: list[int]) -> None:
    names = [f"{letter}{number}" for number, letter in enumerate(drawn)]
    times = list(accumulate(apart))[: len(names)]
    found, matcher = found_by_automaton(rules, names, times)
    assert Counter(found) == Counter(rules.matches(names, times))

    # Every event and link that is still there is needed by a partial match; when those are over, nothing is left.
    needed = {event for partial in matcher.matches.partial for _, event in matcher.nfa._buffer.ids_of(partial[1])}
    assert set(matcher.events) == needed == set(matcher.matches.event_holds)
    if rules.window is not None:
        matcher.advance(100)
        assert matcher.is_clean
