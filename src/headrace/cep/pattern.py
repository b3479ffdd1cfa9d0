"""The pattern builder: what users write, in Flink's words.

    Pattern.begin("first").where(is_low).next("second").where(is_high).within(Time.minutes(1))

As in Flink, `where`, `times`, `within` and their kin change the pattern they are called on and return it, while `next`,
`followed_by` and their kin begin a new one that knows the one before. So the beginning of two sequences can be shared.
Each call refuses at once what it can see to be wrong; `sequence()` refuses what only the whole shows.
"""

from __future__ import annotations

from collections.abc import Iterator

from headrace.cep.conditions import Condition, ConditionLike, both, condition_of, either, instance_of
from headrace.cep.skip import AfterMatchSkipStrategy
from headrace.cep.steps import Contiguity, Sequence, Step, WithinType
from headrace.cep.validation import check_sequence
from headrace.durations import DurationLike, to_millis
from headrace.errors import ConfigurationError, MalformedPatternError


class Pattern:
    """One pattern of a sequence, and through `get_previous()` all before it. Begin with `Pattern.begin`."""

    def __init__(
        self, name: str, previous: Pattern | None, contiguity: Contiguity, skip_strategy: AfterMatchSkipStrategy
    ) -> None:
        if not isinstance(name, str) or not name:
            raise MalformedPatternError(f"A pattern is named {name!r}. Name it by a non-empty str.")
        self._name = name
        self._previous = previous
        self._contiguity = contiguity
        self._skip_strategy = skip_strategy
        self._condition: Condition | None = None
        self._until: Condition | None = None
        self._least = 1
        self._most: int | None = 1
        self._repeats = False
        self._inner = Contiguity.RELAXED
        self._optional = False
        self._greedy = False
        self._windows: dict[WithinType, int] = {}
        self._loop_window: int | None = None

    # The sequence

    @staticmethod
    def begin(pattern: str | Pattern, skip_strategy: AfterMatchSkipStrategy | None = None) -> Pattern:
        """Start a sequence with a pattern of that name, or with a group of patterns.

        `skip_strategy` says what becomes of other matches once one is found; without it, every match is emitted.
        """
        chosen = AfterMatchSkipStrategy.no_skip() if skip_strategy is None else skip_strategy
        if not isinstance(chosen, AfterMatchSkipStrategy):
            raise MalformedPatternError(
                f"begin() got {skip_strategy!r}; wanted an AfterMatchSkipStrategy, such as "
                "AfterMatchSkipStrategy.skip_past_last_event()."
            )
        return _made(pattern, None, Contiguity.RELAXED, chosen)

    def next(self, pattern: str | Pattern) -> Pattern:
        """Its event follows directly on the one before: strict contiguity."""
        return _made(pattern, self, Contiguity.STRICT, self._skip_strategy)

    def followed_by(self, pattern: str | Pattern) -> Pattern:
        """Its event is the first one after that fits; others may stand between: relaxed contiguity."""
        return _made(pattern, self, Contiguity.RELAXED, self._skip_strategy)

    def followed_by_any(self, pattern: str | Pattern) -> Pattern:
        """Every later event that fits gives a match: non-deterministic relaxed contiguity."""
        return _made(pattern, self, Contiguity.RELAXED_ANY, self._skip_strategy)

    def not_next(self, name: str) -> Pattern:
        """No event that fits follows directly."""
        return self._negative(name, Contiguity.NOT_NEXT)

    def not_followed_by(self, name: str) -> Pattern:
        """No event that fits stands between the patterns around it; at the end, none comes before `within` is over."""
        return self._negative(name, Contiguity.NOT_FOLLOWED_BY)

    # Which events fit

    def where(self, condition: ConditionLike) -> Pattern:
        """Events for which the condition is true; several calls must all be true."""
        self._condition = both(self._condition, condition_of(condition, "where()"))
        return self

    def or_where(self, condition: ConditionLike) -> Pattern:
        """Or events for which this one is true."""
        added = condition_of(condition, "or_where()")
        # Without a condition before, Flink takes this one alone: "anything, or this" says nothing.
        self._condition = added if self._condition is None else either(self._condition, added)
        return self

    def subtype(self, subtype: type) -> Pattern:
        """Events of this class, and of the conditions besides."""
        if not isinstance(subtype, type):
            raise MalformedPatternError(f'subtype() of pattern "{self._name}" got {subtype!r}, which is no class.')
        self._condition = both(self._condition, instance_of(subtype))
        return self

    def until(self, condition: ConditionLike) -> Pattern:
        """Take no more events once one comes for which this is true. For `one_or_more` and `times_or_more`."""
        if self._most is not None:
            self._refuse("until()", "ends a loop, but the pattern has none", "Call one_or_more() before it")
        if self._until is not None:
            self._refuse("until()", "is called twice", "Join both conditions in one")
        self._until = condition_of(condition, "until()")
        return self

    # How often

    def one_or_more(self, window_time: DurationLike | None = None) -> Pattern:
        """One event or more. `window_time`: how long after one of them the next may come."""
        return self._repeated("one_or_more()", 1, None, window_time)

    def times_or_more(self, times: int, window_time: DurationLike | None = None) -> Pattern:
        """That many events or more."""
        return self._repeated("times_or_more()", times, None, window_time)

    def times(self, from_times: int, to_times: int | None = None, window_time: DurationLike | None = None) -> Pattern:
        """Exactly that many events, or from so many to so many. From 0 means that it may be missing as well."""
        to = from_times if to_times is None else to_times
        if from_times == 0 and isinstance(to, int) and to > 0:
            self.optional()
            from_times = 1
        return self._repeated("times()", from_times, to, window_time)

    def optional(self) -> Pattern:
        """It may be missing."""
        self._refuse_negative("optional()")
        if self._previous is not None and self._previous._greedy:
            self._refuse(
                "optional()",
                f'stands after the greedy pattern "{self._previous._name}", which could not tell where to end',
                "Make one of them neither",
            )
        self._optional = True
        return self

    def greedy(self) -> Pattern:
        """Repeat as often as events fit, before going on to the next pattern."""
        self._refuse_negative("greedy()")
        if not self._repeats:
            self._refuse("greedy()", "says how to repeat, but the pattern is a single event", "Call times() first")
        if self._inner is Contiguity.RELAXED_ANY:
            self._refuse("greedy()", "contradicts allow_combinations()", "Leave one of them out")
        self._greedy = True
        return self

    def consecutive(self) -> Pattern:
        """Its events follow directly on one another."""
        return self._joined("consecutive()", Contiguity.STRICT)

    def allow_combinations(self) -> Pattern:
        """Any of the events that fit may be left out between."""
        if self._greedy:
            self._refuse("allow_combinations()", "contradicts greedy()", "Leave one of them out")
        return self._joined("allow_combinations()", Contiguity.RELAXED_ANY)

    def within(self, window_time: DurationLike, within_type: WithinType = WithinType.FIRST_AND_LAST) -> Pattern:
        """A match must be complete before this long after its first event; the smallest of several holds.

        With `PREVIOUS_AND_CURRENT`: the event of this pattern must come before this long after the one before it.
        """
        try:
            window = to_millis(window_time, f'within() of pattern "{self._name}"')
        except ConfigurationError as error:
            raise MalformedPatternError(str(error)) from None
        if window <= 0:
            self._refuse("within()", f"is {window} ms", "Give more than 0")
        if not isinstance(within_type, WithinType):
            self._refuse("within()", f"got {within_type!r} as its second argument", "Give a member of WithinType")
        if within_type is WithinType.PREVIOUS_AND_CURRENT and self._previous is None and not self._repeats:
            self._refuse("within()", "is measured from the event before, but nothing stands before it",
                         "Use WithinType.FIRST_AND_LAST")  # fmt: skip
        self._windows[within_type] = min(window, self._windows.get(within_type, window))
        return self

    # Reading it

    def get_name(self) -> str:
        return self._name

    def get_previous(self) -> Pattern | None:
        return self._previous

    def get_after_match_skip_strategy(self) -> AfterMatchSkipStrategy:
        return self._skip_strategy

    def sequence(self) -> Sequence:
        """The whole sequence up to this pattern, frozen and checked. Raises MalformedPatternError."""
        made = Sequence(self._steps(), self._window())
        check_sequence(made, self._skip_strategy)
        return made

    def __repr__(self) -> str:
        return f"<Pattern {' '.join(pattern._name for pattern in self._chain())}>"

    def _chain(self) -> Iterator[Pattern]:
        """From the first pattern to this one."""
        if self._previous is not None:
            yield from self._previous._chain()
        yield self

    def _steps(self) -> tuple[Step, ...]:
        return tuple(pattern._step() for pattern in self._chain())

    def _step(self) -> Step:
        return Step(
            name=self._name,
            contiguity=self._contiguity,
            condition=self._condition,
            least=self._least,
            most=self._most,
            repeats=self._repeats,
            inner=self._inner,
            optional=self._optional,
            greedy=self._greedy,
            until=self._until,
            previous_window_ms=self._windows.get(WithinType.PREVIOUS_AND_CURRENT),
            loop_window_ms=self._loop_window,
        )

    def _window(self) -> int | None:
        windows = [pattern._own_window() for pattern in self._chain()]
        return min((window for window in windows if window is not None), default=None)

    def _own_window(self) -> int | None:
        return self._windows.get(WithinType.FIRST_AND_LAST)

    # Building

    def _negative(self, name: str, contiguity: Contiguity) -> Pattern:
        if not isinstance(name, str):
            raise MalformedPatternError(
                f"{contiguity.value}() got {name!r}. A group of patterns cannot be negated: give a name."
            )
        if self._optional:
            raise MalformedPatternError(
                f'{contiguity.value}("{name}") stands after the optional pattern "{self._name}". Write two sequences, '
                "one with the optional pattern and one without."
            )
        return Pattern(name, self, contiguity, self._skip_strategy)

    def _repeated(self, call: str, least: int, most: int | None, window_time: DurationLike | None) -> Pattern:
        self._refuse_negative(call)
        if self._repeats:
            self._refuse(call, "follows on another call that says how often", "Leave one of them out")
        for count in (least, least if most is None else most):
            if isinstance(count, bool) or not isinstance(count, int) or count < 1:
                self._refuse(call, f"got {count!r}", "Give a whole number of at least 1")
        if most is not None and most < least:
            self._refuse(call, f"goes from {least} to {most}", "Give the smaller number first")
        if window_time is not None:
            self._loop_window = to_millis(window_time, f'{call} of pattern "{self._name}"')
        self._least, self._most, self._repeats = least, most, True
        return self

    def _joined(self, call: str, inner: Contiguity) -> Pattern:
        if not self._repeats:
            self._refuse(call, "speaks of repeated events, but the pattern is a single one", "Call times() first")
        if self._inner is not Contiguity.RELAXED and self._inner is not inner:
            self._refuse(call, "contradicts consecutive() or allow_combinations() before", "Leave one of them out")
        self._inner = inner
        return self

    def _refuse_negative(self, call: str) -> None:
        if self._contiguity.is_negative:
            self._refuse(call, f"makes no sense on a pattern of {self._contiguity.value}()", "Leave it out")

    def _refuse(self, call: str, conflict: str, way_out: str) -> None:
        raise MalformedPatternError(f'{call} of pattern "{self._name}" {conflict}. {way_out}.')


class GroupPattern(Pattern):
    """A sequence that stands as one pattern. It can be repeated and made optional; conditions belong to its parts."""

    def __init__(
        self, inside: Pattern, previous: Pattern | None, contiguity: Contiguity, skip_strategy: AfterMatchSkipStrategy
    ) -> None:
        names = " ".join(pattern.get_name() for pattern in inside._chain())
        super().__init__(f"({names})", previous, contiguity, skip_strategy)
        self._inside = inside

    def where(self, condition: ConditionLike) -> Pattern:
        self._has_no_event("where()")
        return self

    def or_where(self, condition: ConditionLike) -> Pattern:
        self._has_no_event("or_where()")
        return self

    def subtype(self, subtype: type) -> Pattern:
        self._has_no_event("subtype()")
        return self

    def greedy(self) -> Pattern:
        self._refuse("greedy()", "is not possible for a group of patterns", "Make patterns inside of it greedy")
        return self

    def _has_no_event(self, call: str) -> None:
        self._refuse(call, "belongs to single patterns, and this is a group of them", "Call it inside of the group")

    def _step(self) -> Step:
        step = super()._step()
        return Step(
            name=step.name,
            contiguity=step.contiguity,
            group=self._inside._steps(),
            least=step.least,
            most=step.most,
            repeats=step.repeats,
            inner=step.inner,
            optional=step.optional,
            until=step.until,
            previous_window_ms=step.previous_window_ms,
            loop_window_ms=step.loop_window_ms,
        )

    def _own_window(self) -> int | None:
        windows = (super()._own_window(), self._inside._window())
        return min((window for window in windows if window is not None), default=None)


def _made(
    pattern: str | Pattern, previous: Pattern | None, contiguity: Contiguity, skip: AfterMatchSkipStrategy
) -> Pattern:
    if isinstance(pattern, Pattern):
        return GroupPattern(pattern, previous, contiguity, skip)
    return Pattern(pattern, previous, contiguity, skip)
