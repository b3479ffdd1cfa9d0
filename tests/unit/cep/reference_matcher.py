"""Patterns once more, as the documentation states them: every choice of events is tried against every rule.

Nothing here knows of states: a match is an assignment of events to patterns, and it counts if each gap between two of
its events is one that the pattern allows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations, product

from headrace.cep.pattern import Pattern

STRICT, RELAXED, ANY = "next", "followed_by", "followed_by_any"
_INNER = {STRICT: "consecutive", ANY: "allow_combinations"}


@dataclass(frozen=True)
class Part:
    """One pattern of a sequence."""

    letters: str
    contiguity: str = RELAXED
    least: int = 1
    most: int | None = 1
    inner: str = RELAXED
    optional: bool = False
    not_next: str = ""
    """Letters of which no event may follow directly on the part before."""

    @property
    def repeats(self) -> bool:
        return (self.least, self.most) != (1, 1)

    def fits(self, event: str) -> bool:
        return event[0] in self.letters

    def counts(self, events: int) -> list[int]:
        most = events if self.most is None else min(self.most, events)
        return ([0] if self.optional else []) + list(range(self.least, most + 1))


@dataclass(frozen=True)
class Rules:
    """A whole pattern."""

    parts: tuple[Part, ...]
    window: int | None = None

    def matches(self, events: list[str], times: list[int]) -> Iterator[str]:
        """All matches, each as a text that says which event belongs to which part."""
        for counts in product(*(part.counts(len(events)) for part in self.parts)):
            owners = [number for number, count in enumerate(counts) for _ in range(count)]
            if not owners:
                continue
            for chosen in combinations(range(len(events)), len(owners)):
                if self._is_match(events, times, owners, chosen):
                    yield " ".join(f"{owner}:{events[at]}" for owner, at in zip(owners, chosen, strict=True))

    def _is_match(self, events: list[str], times: list[int], owners: list[int], chosen: tuple[int, ...]) -> bool:
        if self.window is not None and times[chosen[-1]] - times[chosen[0]] >= self.window:
            return False
        if not all(self.parts[owner].fits(events[at]) for owner, at in zip(owners, chosen, strict=True)):
            return False
        return all(
            self._may_follow(events, owners[i - 1], owners[i], chosen[i - 1], chosen[i]) for i in range(1, len(chosen))
        )

    def _may_follow(self, events: list[str], owner_before: int, owner: int, before: int, at: int) -> bool:
        part = self.parts[owner]
        for crossed in self.parts[owner_before + 1 : owner + 1]:
            if crossed.not_next and events[before + 1][0] in crossed.not_next:
                return False
        match part.inner if owner == owner_before else part.contiguity:
            case "next":
                return at == before + 1
            case "followed_by":
                return not any(part.fits(event) for event in events[before + 1 : at])
        return True

    def pattern(self) -> Pattern:
        """The same in the words of the pattern API. Patterns are named by their number."""
        built: Pattern | None = None
        for number, part in enumerate(self.parts):
            if built is None:
                built = Pattern.begin(str(number))
            else:
                if part.not_next:
                    built = built.not_next(f"not-{number}").where(lambda e, letters=part.not_next: e[0] in letters)  # type: ignore[misc]
                built = getattr(built, part.contiguity)(str(number))
            assert built is not None
            built.where(part.fits)
            if part.most is None:
                built.times_or_more(part.least)
            elif part.repeats:
                built.times(part.least, part.most)
            if part.repeats and part.inner in _INNER:
                getattr(built, _INNER[part.inner])()
            if part.optional:
                built.optional()
        assert built is not None
        return built if self.window is None else built.within(self.window)
