"""What becomes of other matches once a match is found: the skip strategies.

Every match has an id for each of its events, growing in the order in which events were processed. A strategy names
the line in that order that a partial match must have begun behind, or else it is discarded.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from headrace.errors import MalformedPatternError, RecordError

MatchIds = Mapping[str, Sequence[int]]
"""Ids of the events of a match by pattern name, each list in order."""


class AfterMatchSkipStrategy(ABC):
    """Chosen with `Pattern.begin(name, strategy)`. Frozen, can be compared and printed."""

    skips: bool = True
    """False: every possible match is emitted the moment it is complete."""

    @staticmethod
    def no_skip() -> AfterMatchSkipStrategy:
        """Every possible match is emitted."""
        return NoSkip()

    @staticmethod
    def skip_to_next() -> AfterMatchSkipStrategy:
        """Discard partial matches that began with the same event as the match."""
        return SkipToNext()

    @staticmethod
    def skip_past_last_event() -> AfterMatchSkipStrategy:
        """Discard partial matches that began after the match began and before it ended."""
        return SkipPastLastEvent()

    @staticmethod
    def skip_to_first(pattern_name: str) -> SkipToElement:
        """Discard partial matches that began before the first event of that pattern in the match."""
        return SkipToElement(_checked(pattern_name, "skip_to_first"), last=False)

    @staticmethod
    def skip_to_last(pattern_name: str) -> SkipToElement:
        """Discard partial matches that began before the last event of that pattern in the match."""
        return SkipToElement(_checked(pattern_name, "skip_to_last"), last=True)

    @abstractmethod
    def keep_from(self, match: MatchIds) -> int:
        """Partial matches that began with an event below this id are discarded."""

    @property
    def pattern_name(self) -> str | None:
        """The pattern it refers to, which must be part of the sequence."""
        return None


@dataclass(frozen=True)
class NoSkip(AfterMatchSkipStrategy):
    """See `AfterMatchSkipStrategy.no_skip`."""

    skips = False

    def keep_from(self, match: MatchIds) -> int:
        return 0


@dataclass(frozen=True)
class SkipToNext(AfterMatchSkipStrategy):
    """See `AfterMatchSkipStrategy.skip_to_next`."""

    def keep_from(self, match: MatchIds) -> int:
        return _first(match) + 1


@dataclass(frozen=True)
class SkipPastLastEvent(AfterMatchSkipStrategy):
    """See `AfterMatchSkipStrategy.skip_past_last_event`."""

    def keep_from(self, match: MatchIds) -> int:
        return max(ids[-1] for ids in match.values()) + 1


@dataclass(frozen=True)
class SkipToElement(AfterMatchSkipStrategy):
    """See `AfterMatchSkipStrategy.skip_to_first` and `skip_to_last`."""

    name: str
    last: bool
    strict: bool = False

    def throw_exception_on_miss(self) -> SkipToElement:
        """Fail where the match has no event of the pattern, or begins with it; without it nothing is discarded then."""
        return replace(self, strict=True)

    @property
    def pattern_name(self) -> str:
        return self.name

    def keep_from(self, match: MatchIds) -> int:
        ids = match.get(self.name)
        call = "skip_to_last" if self.last else "skip_to_first"
        if not ids:
            if self.strict:
                raise RecordError(
                    f'{call}("{self.name}") finds no event of that pattern in a match of {", ".join(match)}. '
                    "Make the pattern mandatory, or leave throw_exception_on_miss() out."
                )
            return 0
        target = ids[-1 if self.last else 0]
        if self.strict and target == _first(match):
            raise RecordError(
                f'{call}("{self.name}") leads to the first event of the match itself, so nothing could be skipped. '
                "Skip to a later pattern, or leave throw_exception_on_miss() out."
            )
        return target


def _first(match: MatchIds) -> int:
    return min(ids[0] for ids in match.values())


def _checked(name: str, call: str) -> str:
    if not isinstance(name, str) or not name:
        raise MalformedPatternError(f"{call}() got {name!r}; wanted the name of a pattern of the sequence.")
    return name
