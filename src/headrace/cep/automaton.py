"""The automaton that a pattern becomes: states, and what each does with an event.

A partial match stands in one state. When an event comes, the state and all that can be reached from it by *proceeding*
decide together; every one of these may happen, and each gives a partial match of its own:

    take      the event becomes part of the match, which moves on to `take`
    ignore    the event is passed over, and the match waits in `ignore`
    proceed   the match is judged as if it stood in the target already, since this state may be left out or is done
    stop      the event is one that must not come: nothing of the partial match is kept

`FINAL` is no state to stand in: whoever gets there is a match.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from headrace.cep.conditions import Condition

FINAL = 0
"""Index of the final state."""
NOWHERE = -1

ConditionIndex = int | None
"""A place in `Automaton.conditions`; None is always true."""


class Guard(Enum):
    """When a match may proceed."""

    ALWAYS = "always"
    UNLESS = "unless the condition holds"
    GREEDY = "when the loop cannot take the event and what follows can, or the loop can do nothing with it"


@dataclass(frozen=True, slots=True)
class Proceed:
    """A way on that needs no event."""

    target: int
    guard: Guard = Guard.ALWAYS
    conditions: tuple[ConditionIndex, ...] = ()
    """UNLESS: none of these may hold. GREEDY: what the patterns that follow would take."""
    emits: bool = False
    """Getting to FINAL this way is a match when the event comes; otherwise it was one when the last event was taken."""


@dataclass(slots=True)
class State:
    """One state. `step` is the place of its pattern's name in `Automaton.names`."""

    index: int
    step: int = NOWHERE
    condition: ConditionIndex = None
    take: int = NOWHERE
    take_until: tuple[ConditionIndex, ...] = ()
    """Once one of these holds, no event is taken."""
    ignore: int = NOWHERE
    ignore_any: bool = False
    """Also events that fit may be passed over."""
    ignore_until: tuple[ConditionIndex, ...] = ()
    proceeds: tuple[Proceed, ...] = ()
    stops: tuple[ConditionIndex, ...] = ()
    window_ms: int | None = None
    """How long a match may stand here after its last event."""
    greedy: bool = False
    pending: bool = False
    """A match that stands here when its time is over is complete, and not timed out."""
    completes: bool = False
    """Whoever takes an event on the way to here has a match, since all that follows may be left out."""
    is_plain: bool = False
    """No proceeding, no stopping, no until: decided by its one condition."""


@dataclass(frozen=True, slots=True)
class Automaton:
    """States of a pattern; `start` is where every match begins. Built by the compiler, never changed."""

    states: tuple[State, ...]
    start: int
    names: tuple[str, ...]
    """Pattern names; a taken event is stored with the place of its pattern here."""
    conditions: tuple[Condition, ...]
    window_ms: int | None
    fingerprint: int
    """Tells this automaton from those of other patterns: state indexes in a checkpoint mean nothing to another."""
    has_windows: bool = field(default=False)
    """Whether partial matches can time out."""
