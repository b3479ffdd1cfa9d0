"""From a sequence of steps to an automaton.

States are made from the end to the beginning, because each needs to know where it leads. What may not come
(`not_followed_by`) is no state of its own: it is handed on to the states that wait for what follows, until one of
them takes an event. A pattern that may be left out leads on with what may not come still in force; once it took an
event, it leads on without. So there may be two sets of states for one step.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace

from headrace.cep.automaton import FINAL, NOWHERE, Automaton, ConditionIndex, Guard, Proceed, State
from headrace.cep.conditions import Condition
from headrace.cep.steps import Contiguity, Sequence, Step
from headrace.cep.validation import single_steps

Forbidden = tuple[ConditionIndex, ...]
"""Conditions of `not_followed_by` in force."""
Exit = Callable[[Forbidden], int]
"""Gives the state that comes after, with what may not come in force there."""


def compile_pattern(sequence: Sequence) -> Automaton:
    """The automaton of a checked sequence. The same sequence gives the same states, in every process."""
    return _Compiler(sequence).compile()


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a step stands: what holds for its first state from outside, and what surrounds it."""

    contiguity: Contiguity
    proceeds: tuple[Proceed, ...] = ()
    """Ways to leave out the whole group whose first step this is."""
    until: tuple[ConditionIndex, ...] = ()
    """Stop conditions of the groups around it."""
    following: tuple[ConditionIndex, ...] = ()
    """What may be taken after the group that it ends."""
    stopping: Forbidden = ()
    """What may not come once this step has begun to take events, or after the group that it ends."""
    window_ms: int | None = None
    is_top: bool = False


class _Compiler:
    def __init__(self, sequence: Sequence) -> None:
        self._sequence = sequence
        self._states: list[State] = [State(FINAL)]
        self._conditions: list[Condition] = []
        self._known: dict[int, int] = {}
        self._names = tuple(step.name for step in single_steps(sequence.steps) if not step.is_negative)

    def compile(self) -> Automaton:
        top = _Place(Contiguity.STRICT, is_top=True)
        start = self._chain(self._sequence.steps, lambda forbidden: FINAL, top)(())
        for state in self._states:
            state.completes = self._completes(state)
            state.pending = state.pending or self._ends_in_pending(state)
            leads_elsewhere = state.proceeds or state.stops or state.take_until or state.ignore_until
            state.is_plain = not leads_elsewhere and state.ignore in (NOWHERE, state.index)
        window = self._sequence.window_ms
        return Automaton(
            tuple(self._states),
            start,
            self._names,
            tuple(self._conditions),
            window,
            zlib.crc32(_shape(self._sequence).encode()),
            window is not None or any(state.window_ms is not None for state in self._states),
        )

    # Sequences

    def _chain(self, steps: tuple[Step, ...], exit: Exit, place: _Place) -> Exit:
        """How to enter the first of these steps."""
        entry = exit
        for position in range(len(steps) - 1, -1, -1):
            entry = self._remembering(self._entry(steps, position, entry, place))
        return entry

    @staticmethod
    def _remembering(make: Exit) -> Exit:
        made: dict[Forbidden, int] = {}

        def once(forbidden: Forbidden) -> int:
            if forbidden not in made:
                made[forbidden] = make(forbidden)
            return made[forbidden]

        return once

    def _entry(self, steps: tuple[Step, ...], position: int, after: Exit, place: _Place) -> Exit:
        step = steps[position]
        is_last = position == len(steps) - 1
        match step.contiguity:
            case Contiguity.NOT_FOLLOWED_BY if is_last and place.is_top:
                return lambda forbidden: self._pending(step, forbidden)
            case Contiguity.NOT_FOLLOWED_BY:
                condition = self._index(step.condition)
                return lambda forbidden: after((*forbidden, condition))
            case Contiguity.NOT_NEXT:
                return lambda forbidden: self._not_next(step, after(forbidden))
        stopping = self._forbidden_after(steps, position) + (place.stopping if is_last else ())
        around = replace(
            place,
            following=self._following(steps, position + 1, place.following),
            stopping=stopping,
            is_top=False,
        )
        if position > 0:
            around = replace(around, contiguity=step.contiguity, proceeds=(), window_ms=step.previous_window_ms)
        elif around.window_ms is None:
            around = replace(around, window_ms=step.previous_window_ms)
        return lambda forbidden: self._positive(step, after, around, forbidden)

    def _positive(self, step: Step, after: Exit, place: _Place, forbidden: Forbidden) -> int:
        """States of a step that takes events."""
        stopping = place.stopping
        leaving = (self._way_out(step, after(forbidden), place),) if step.optional else ()
        first = replace(place, proceeds=leaving + place.proceeds)
        if not step.repeats:
            return self._once(step, after(()), first, forbidden)
        inner = replace(
            place,
            contiguity=step.inner,
            proceeds=(),
            window_ms=step.loop_window_ms if step.loop_window_ms is not None else step.previous_window_ms,
        )
        done = after(())
        target = done
        if step.most is None:
            target = self._loop(step, done, inner, stopping)
        else:
            may_end = replace(inner, proceeds=(self._way_out(step, done, place),))
            for _ in range(step.least, step.most):
                target = self._once(step, target, may_end, stopping, inner=True)
        for _ in range(step.least - 1):
            target = self._once(step, target, inner, stopping, inner=True)
        return self._once(step, target, first, forbidden)

    # Single states

    def _once(self, step: Step, target: int, place: _Place, forbidden: Forbidden, inner: bool = False) -> int:
        """One occurrence of a step. `inner`: not the first one, so that `until` ends the waiting too."""
        if step.group:
            return self._group(step, target, place, forbidden)
        state = self._taking(step, target, place, forbidden, inner)
        state.proceeds = place.proceeds
        if place.contiguity is not Contiguity.STRICT:
            waiting = state
            if place.proceeds:
                # Whoever passed an event over here waits for this step alone: the way on was taken at that moment, and
                # taking it again would give the same match twice.
                waiting = self._taking(step, target, place, forbidden, inner)
                waiting.proceeds = self._held_back(place.proceeds)
                waiting.ignore = waiting.index
            state.ignore = waiting.index
        return state.index

    def _loop(self, step: Step, target: int, place: _Place, stopping: Forbidden) -> int:
        """A state that takes any number of events and may be left after each."""
        if step.group:
            # Back from the end of the group to its head, which is not there yet.
            back = self._new(NOWHERE)
            leaving = replace(place, proceeds=(Proceed(target, Guard.ALWAYS, place.until),))
            head = self._group(step, back.index, leaving, stopping)
            back.proceeds = (Proceed(head, Guard.ALWAYS, ()),)
            return head
        state = self._taking(step, NOWHERE, place, stopping, inner=True)
        state.take = state.index
        state.proceeds = (self._way_out(step, target, place),)
        if place.contiguity is not Contiguity.STRICT:
            waiting = self._taking(step, state.index, place, stopping, inner=True)
            waiting.proceeds = self._held_back(state.proceeds)
            waiting.ignore = state.ignore = waiting.index
        return state.index

    def _group(self, step: Step, target: int, place: _Place, forbidden: Forbidden) -> int:
        until = place.until if step.until is None else (*place.until, self._index(step.until))
        # After the last step of a group that repeats, its first one may come again.
        again = self._following(step.group, 0, ()) if step.repeats else ()
        inside = replace(place, until=until, following=again + place.following, is_top=False)
        return self._chain(step.group, lambda _: target, inside)(forbidden)

    def _taking(self, step: Step, target: int, place: _Place, forbidden: Forbidden, inner: bool) -> State:
        state = self._new(self._names.index(step.name))
        own = () if step.until is None else (self._index(step.until),)
        state.condition = self._index(step.condition)
        state.take = target
        state.take_until = place.until + own
        state.ignore_any = place.contiguity is Contiguity.RELAXED_ANY
        state.ignore_until = place.until + (own if inner else ())
        state.stops = forbidden
        state.window_ms = place.window_ms
        state.greedy = step.greedy
        return state

    def _not_next(self, step: Step, target: int) -> int:
        state = self._new(NOWHERE)
        condition = (self._index(step.condition),)
        state.stops = condition
        state.proceeds = (Proceed(target, Guard.UNLESS, condition, emits=target == FINAL),)
        return state.index

    def _pending(self, step: Step, forbidden: Forbidden) -> int:
        """The end of a sequence that nothing may follow: waits until the time is over."""
        state = self._new(NOWHERE)
        state.stops = (*forbidden, self._index(step.condition))
        state.ignore = state.index
        state.ignore_any = True
        state.window_ms = step.previous_window_ms
        state.pending = True
        return state.index

    def _new(self, step: int) -> State:
        state = State(len(self._states), step)
        self._states.append(state)
        return state

    # Ways on

    def _way_out(self, step: Step, target: int, place: _Place) -> Proceed:
        if step.greedy:
            return Proceed(target, Guard.GREEDY, place.following, emits=target == FINAL)
        return Proceed(target, Guard.ALWAYS if not place.until else Guard.UNLESS, place.until)

    @staticmethod
    def _held_back(proceeds: tuple[Proceed, ...]) -> tuple[Proceed, ...]:
        """Ways on that were closed when an event was passed over: greedy ones that wait for what follows."""
        return tuple(p for p in proceeds if p.guard is Guard.GREEDY and p.conditions)

    def _following(
        self, steps: tuple[Step, ...], position: int, outside: tuple[ConditionIndex, ...]
    ) -> tuple[ConditionIndex, ...]:
        """Conditions of all steps from there on that may take the next event."""
        found: tuple[ConditionIndex, ...] = ()
        for step in steps[position:]:
            if step.is_negative:
                continue
            found += self._following(step.group, 0, ()) if step.group else (self._index(step.condition),)
            if not step.optional:
                return found
        return found + outside

    def _forbidden_after(self, steps: tuple[Step, ...], position: int) -> Forbidden:
        """What may not come directly after that step."""
        found: list[ConditionIndex] = []
        for step in steps[position + 1 :]:
            if step.contiguity is not Contiguity.NOT_FOLLOWED_BY:
                break
            found.append(self._index(step.condition))
        return tuple(found)

    def _index(self, condition: Condition | None) -> ConditionIndex:
        """One place for each condition, so that an event is asked about once."""
        if condition is None:
            return None
        known = self._known.get(id(condition))
        if known is None:
            known = self._known[id(condition)] = len(self._conditions)
            self._conditions.append(condition)
        return known

    def _completes(self, state: State) -> bool:
        """Whether FINAL can be reached without any event. A greedy state waits to see what comes."""
        ahead, seen = [state], {state.index}
        while ahead:
            at = ahead.pop()
            if at.index == FINAL:
                return True
            for proceed in () if at.greedy else at.proceeds:
                if not proceed.emits and proceed.target not in seen:
                    seen.add(proceed.target)
                    ahead.append(self._states[proceed.target])
        return False

    def _ends_in_pending(self, state: State) -> bool:
        ahead, seen = [state], {state.index}
        while ahead:
            at = ahead.pop()
            if at.pending and at.step == NOWHERE and at.ignore == at.index:
                return True
            targets = {proceed.target for proceed in at.proceeds} - seen
            seen |= targets
            ahead.extend(self._states[target] for target in targets)
        return False


def _shape(sequence: Sequence) -> str:
    """All of a sequence that shapes its states, as text. Conditions may change between two runs of a program."""

    def of(step: Step) -> str:
        inside = f"({','.join(map(of, step.group))})" if step.group else step.name
        often = f"{step.least}-{step.most}" if step.repeats else "1"
        flags = f"{step.inner.value}{step.optional:d}{step.greedy:d}{step.until is not None:d}"
        return f"{step.contiguity.value} {inside} {often} {flags}"

    return "; ".join(map(of, sequence.steps))
