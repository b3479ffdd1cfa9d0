"""What the tests of patterns share: events as short texts, and a matcher that has only dicts below it.

An event is written `a`, `b2` or `c/7`: a letter, which is what conditions look at, any further characters to tell it
from others, and after a slash its time. Without a time, events stand one apart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from headrace.cep.compiler import compile_pattern
from headrace.cep.nfa import Match, Nfa
from headrace.cep.partial_matches import PartialMatches, decode_matches, encode_matches
from headrace.cep.pattern import Pattern
from headrace.cep.shared_buffer import SharedBuffer
from headrace.types.information import Types


class DictStore(dict[int, Any]):
    """A map state without a backend."""

    put = dict.__setitem__

    def remove(self, key: int) -> None:
        del self[key]


def is_(*letters: str) -> Callable[[str], bool]:
    """Events that begin with one of these letters."""
    return lambda event: event[0] in letters


class Matcher:
    """One key's matches. Goes through the stored form after every event, as a backend does."""

    def __init__(self, pattern: Pattern) -> None:
        self.events, self.links = DictStore(), DictStore()
        automaton = compile_pattern(pattern.sequence())
        buffer = SharedBuffer(self.events, self.links, Types.STRING(), len(automaton.names))
        self.nfa = Nfa(automaton, buffer, pattern.get_after_match_skip_strategy())
        self.matches = PartialMatches(automaton.fingerprint)
        self.timed_out: list[tuple[str, int]] = []
        self._time = -1

    def feed(self, events: str | Iterable[str]) -> list[str]:
        """Matches that these events complete, as texts."""
        found: list[Match] = []
        for event in events.split() if isinstance(events, str) else events:
            name, _, time = event.partition("/")
            self._time = int(time) if time else self._time + 1
            found += self.advance(self._time)
            found += self.nfa.process(self.matches, name, self._time) or []
            self.matches = decode_matches(encode_matches(self.matches))
        return texts(found)

    def advance(self, time_ms: int) -> list[Match]:
        found, late = self.nfa.advance(self.matches, time_ms)
        self.timed_out += [(text, over) for (match, over) in late for text in texts([match])]
        return found

    def advanced(self, time_ms: int) -> list[str]:
        return texts(self.advance(time_ms))

    @property
    def is_clean(self) -> bool:
        """Whether nothing at all is kept."""
        return self.matches.is_empty and not self.events and not self.links and not self.matches.event_holds


def texts(matches: Iterable[Match]) -> list[str]:
    """Matches as `a b1 b2`, in order of their events' patterns."""
    return [" ".join(event for events in match.values() for event in events) for match in matches]


def found_in(pattern: Pattern, events: str) -> list[str]:
    """All matches in these events, in the order in which they were emitted."""
    return Matcher(pattern).feed(events)
