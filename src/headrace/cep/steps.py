"""What a pattern consists of, frozen: the steps that the compiler turns into states of an automaton."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from headrace.cep.conditions import Condition


class Contiguity(Enum):
    """What may stand between an event of this step and the event before it in a match."""

    STRICT = "next"
    RELAXED = "followed_by"
    """Events that do not fit the step may stand between."""
    RELAXED_ANY = "followed_by_any"
    """Any event may stand between, so later events that fit give further matches."""
    NOT_NEXT = "not_next"
    NOT_FOLLOWED_BY = "not_followed_by"

    @property
    def is_negative(self) -> bool:
        return self in (Contiguity.NOT_NEXT, Contiguity.NOT_FOLLOWED_BY)


class WithinType(Enum):
    """Between which events of a match the time of `within` is measured."""

    FIRST_AND_LAST = "first and last"
    PREVIOUS_AND_CURRENT = "previous and current"


@dataclass(frozen=True, slots=True)
class Step:
    """One pattern of a sequence. Made by `Pattern.steps()`; carries nothing that may still change."""

    name: str
    """Of a group: the names of its patterns, for messages."""
    contiguity: Contiguity
    condition: Condition | None = None
    """None: every event fits."""
    group: tuple[Step, ...] = ()
    """The sequence that stands for this step; empty for a single pattern."""
    least: int = 1
    most: int | None = 1
    """How often it occurs, where it occurs at all; None: as often as events fit."""
    repeats: bool = False
    """Whether the program said how often; without it the step is a single event."""
    inner: Contiguity = Contiguity.RELAXED
    """What may stand between two occurrences."""
    optional: bool = False
    greedy: bool = False
    until: Condition | None = None
    previous_window_ms: int | None = None
    """How long after the event before it an event of this step may come."""
    loop_window_ms: int | None = None
    """How long after one occurrence the next one may come."""

    @property
    def is_negative(self) -> bool:
        return self.contiguity.is_negative


@dataclass(frozen=True, slots=True)
class Sequence:
    """A whole pattern: its steps and what holds for all of them."""

    steps: tuple[Step, ...]
    window_ms: int | None
    """How long after its first event a match must be complete."""
