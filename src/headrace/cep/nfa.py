"""The automaton at work: partial matches and an event in, moved partial matches and complete ones out.

Pure: time and events come as arguments, all that lasts is in `PartialMatches` and the `SharedBuffer`. Events of a key
must come in order. For each, first `advance` to its time, then `process`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headrace.cep.automaton import FINAL, NOWHERE, Automaton, ConditionIndex, Guard, State
from headrace.cep.conditions import ConditionContext
from headrace.cep.partial_matches import Partial, PartialMatches
from headrace.cep.shared_buffer import NONE, SharedBuffer
from headrace.cep.skip import AfterMatchSkipStrategy

Match = dict[str, list[Any]]
"""Events by pattern name, in the order of the match."""
TimedOut = tuple[Match, int]
"""What a partial match had, and when its time was over."""


class Nfa:
    """One for an operator. Touched by one thread."""

    def __init__(
        self,
        automaton: Automaton,
        buffer: SharedBuffer,
        skip: AfterMatchSkipStrategy,
        clock: Callable[[], int] = lambda: 0,
    ) -> None:
        self._automaton = automaton
        self._states = automaton.states
        self._names = automaton.names
        self._buffer = buffer
        self._skip = skip
        self._window = automaton.window_ms
        self._each_window = any(state.window_ms is not None for state in automaton.states)
        self._simple = [condition.simple for condition in automaton.conditions]
        self._calls = [condition.call for condition in automaton.conditions]
        self._unknown: list[Any] = [None] * len(automaton.conditions)
        self._verdicts: list[Any] = []
        self._event: Any = None
        self._context = _Context(self, clock)
        self._matched: list[Partial] = []

    def process(
        self, matches: PartialMatches, event: Any, time_ms: int, encoded: bytes | None = None
    ) -> list[Match] | None:
        """One event. Gives the matches it completed, or None where nothing at all has changed."""
        buffer, states = self._buffer, self._states
        buffer.begin(matches, event, encoded)
        self._verdicts = self._unknown.copy()
        self._event = event
        self._context.time_ms = time_ms
        matched = self._matched = []
        kept: list[Partial] = []
        changed = False
        for partial in matches.partial:
            state = states[partial[0]]
            before = len(kept)
            if not state.is_plain:
                self._move(state, partial, kept, time_ms)
            elif self._holds(state.condition, partial[1]):
                self._take(state, partial, kept, time_ms)
                if state.ignore_any:
                    kept.append(partial)
            elif state.ignore != NOWHERE:
                kept.append(partial)
                continue
            if len(kept) != before + 1 or kept[-1] is not partial:
                changed = True
                buffer.drop(partial[1])
                for moved in kept[before:]:
                    buffer.hold(moved[1])
        before = len(kept)
        start = states[self._automaton.start]
        if not start.is_plain:
            self._move(start, None, kept, time_ms)
        elif self._holds(start.condition, NONE):
            self._take(start, None, kept, time_ms)
        for moved in kept[before:]:
            changed = True
            buffer.hold(moved[1])
        if not changed and not matched:
            return None
        matches.partial = kept
        found = self._emit(matches, matched)
        buffer.settle()
        return found

    def advance(self, matches: PartialMatches, time_ms: int) -> tuple[list[Match], list[TimedOut]]:
        """Time has come to `time_ms`: take out what is over. Gives matches that this completes, and what timed out."""
        if not self.is_over(matches, time_ms):
            return [], []
        buffer = self._buffer
        buffer.begin(matches)
        kept, matched, late = [], [], []
        for partial in matches.partial:
            deadline = self._deadline(partial)
            if deadline is None or deadline > time_ms:
                kept.append(partial)
            elif self._states[partial[0]].pending:
                matched.append(partial)
                buffer.drop(partial[1])
            else:
                late.append((self._materialised(partial[1]), deadline))
                buffer.drop(partial[1])
        matches.partial = kept
        found = self._emit(matches, matched)
        buffer.settle()
        return found, late

    def is_over(self, matches: PartialMatches, time_ms: int) -> bool:
        """Whether a partial match has no time left at `time_ms`."""
        partial = matches.partial
        if not partial:
            return False
        if not self._each_window:
            # They stand in the order in which they began.
            return self._window is not None and partial[0][3] + self._window <= time_ms
        deadline = self.next_deadline(matches)
        return deadline is not None and deadline <= time_ms

    def next_deadline(self, matches: PartialMatches) -> int | None:
        """When the first of the partial matches times out."""
        if not self._each_window:
            return None if self._window is None or not matches.partial else matches.partial[0][3] + self._window
        deadlines = (self._deadline(partial) for partial in matches.partial)
        return min((deadline for deadline in deadlines if deadline is not None), default=None)

    def _deadline(self, partial: Partial) -> int | None:
        whole = None if self._window is None else partial[3] + self._window
        window = self._states[partial[0]].window_ms
        if window is None:
            return whole
        step = partial[4] + window
        return step if whole is None else min(step, whole)

    # One partial match and one event

    def _holds(self, condition: ConditionIndex, link: int) -> Any:
        if condition is None:
            return True
        if self._simple[condition]:
            verdict = self._verdicts[condition]
            if verdict is None:
                verdict = self._verdicts[condition] = bool(self._calls[condition](self._event))
            return verdict
        self._context.link = link
        return self._calls[condition](self._event, self._context)

    def _move(self, at: State, partial: Partial | None, kept: list[Partial], time_ms: int) -> None:
        """All that the event does to a partial match, or to the start if there is none: into `kept` and `matched`."""
        link = NONE if partial is None else partial[1]
        length = len(kept)
        stopped = False
        ahead, seen = [at], {at.index}
        while ahead:
            state = ahead.pop()
            if state.stops and any(self._holds(c, link) for c in state.stops):
                stopped = True
            fits = takes = ignores = False
            if state.take != NOWHERE:
                fits = takes = bool(self._holds(state.condition, link))
                if takes and state.take_until:
                    takes = not any(self._holds(c, link) for c in state.take_until)
            if state.ignore != NOWHERE and (state.ignore_any or not fits):
                ignores = not any(self._holds(c, link) for c in state.ignore_until)
            if takes:
                self._take(state, partial, kept, time_ms)
            # The start waits for ever anyway: passing an event over there would begin a match without events.
            if ignores and partial is not None:
                same = state.ignore == partial[0]
                kept.append(partial if same else (state.ignore, *partial[1:]))
            for proceed in reversed(state.proceeds):
                match proceed.guard:
                    case Guard.ALWAYS:
                        open_ = True
                    case Guard.UNLESS:
                        open_ = not any(self._holds(c, link) for c in proceed.conditions)
                    case Guard.GREEDY:
                        open_ = not takes and (
                            not proceed.conditions
                            or not ignores
                            or any(self._holds(c, link) for c in proceed.conditions)
                        )
                if not open_:
                    continue
                if proceed.emits:
                    if partial is not None:
                        self._matched.append(partial)
                elif proceed.target not in seen:
                    seen.add(proceed.target)
                    ahead.append(self._states[proceed.target])
        if stopped:
            del kept[length:]

    def _take(self, state: State, partial: Partial | None, kept: list[Partial], time_ms: int) -> None:
        link = self._buffer.take(state.step, NONE if partial is None else partial[1])
        moved: Partial
        if partial is None:
            moved = (state.take, link, self._buffer.event_id, time_ms, time_ms)
        else:
            moved = (state.take, link, partial[2], partial[3], time_ms)
        if state.take != FINAL:
            kept.append(moved)
        if self._states[state.take].completes:
            self._matched.append(moved)

    # Complete matches

    def _emit(self, matches: PartialMatches, matched: list[Partial]) -> list[Match]:
        """The matches to hand out now, after those that they rule out are gone.

        With a skip strategy a match waits for partial matches that began before it: they might become matches that
        discard it.
        """
        if not self._skip.skips:
            return [self._materialised(match[1]) for match in matched]
        buffer = self._buffer
        for match in matched:
            buffer.hold(match[1])
        waiting = sorted(matches.complete + matched, key=lambda match: match[2])
        found = []
        while waiting and (not matches.partial or waiting[0][2] <= matches.partial[0][2]):
            match = waiting.pop(0)
            found.append(self._materialised(match[1]))
            keep_from = self._skip.keep_from(self._ids(match[1]))
            waiting = self._pruned(waiting, keep_from)
            matches.partial = self._pruned(matches.partial, keep_from)
            buffer.drop(match[1])
        matches.complete = waiting
        return found

    def _pruned(self, some: list[Partial], keep_from: int) -> list[Partial]:
        if all(one[2] >= keep_from for one in some):
            return some
        for one in some:
            if one[2] < keep_from:
                self._buffer.drop(one[1])
        return [one for one in some if one[2] >= keep_from]

    def _ids(self, link: int) -> dict[str, list[int]]:
        ids: dict[str, list[int]] = {}
        for pattern, event_id in self._buffer.ids_of(link):
            ids.setdefault(self._names[pattern], []).append(event_id)
        return ids

    def _materialised(self, link: int) -> Match:
        found: Match = {}
        for pattern, event_id in self._buffer.ids_of(link):
            found.setdefault(self._names[pattern], []).append(self._buffer.event(event_id))
        return found

    def events_for(self, link: int, name: str) -> list[Any]:
        """Events that a partial match has for a pattern; for iterative conditions."""
        names, buffer = self._names, self._buffer
        return [buffer.event(event_id) for pattern, event_id in buffer.ids_of(link) if names[pattern] == name]


class _Context(ConditionContext):
    """One object, moved along from partial match to partial match."""

    __slots__ = ("_clock", "_nfa", "link", "time_ms")

    def __init__(self, nfa: Nfa, clock: Callable[[], int]) -> None:
        self._nfa = nfa
        self._clock = clock
        self.link = NONE
        self.time_ms: int | None = None

    def get_events_for_pattern(self, name: str) -> list[Any]:
        return self._nfa.events_for(self.link, name)

    def timestamp(self) -> int | None:
        return self.time_ms

    def current_processing_time(self) -> int:
        return self._clock()
