"""What only the whole sequence shows to be wrong. Each error names the pattern and the way out."""

from __future__ import annotations

from collections.abc import Iterator

from headrace.cep.skip import AfterMatchSkipStrategy
from headrace.cep.steps import Contiguity, Sequence, Step
from headrace.errors import MalformedPatternError


def check_sequence(sequence: Sequence, skip: AfterMatchSkipStrategy) -> None:
    """Raise the first thing that is wrong. Called once, when the pattern is put on a stream."""
    _check_names(sequence)
    _check_groups(sequence.steps)
    last = sequence.steps[-1]
    has_window = sequence.window_ms is not None or last.previous_window_ms is not None
    if last.contiguity is Contiguity.NOT_FOLLOWED_BY and not has_window:
        raise MalformedPatternError(
            f'The sequence ends with not_followed_by("{last.name}"), but without a limit it is never known that no '
            "such event comes. Call within(), or let another pattern follow."
        )
    _check_skip(sequence, skip)


def single_steps(steps: tuple[Step, ...]) -> Iterator[Step]:
    """All single patterns, those of groups too, in order."""
    for step in steps:
        if step.group:
            yield from single_steps(step.group)
        else:
            yield step


def _check_names(sequence: Sequence) -> None:
    seen: set[str] = set()
    for step in single_steps(sequence.steps):
        if step.name in seen:
            raise MalformedPatternError(
                f'Two patterns of the sequence are named "{step.name}", so their events could not be told apart. '
                "Rename one."
            )
        seen.add(step.name)


def _check_groups(steps: tuple[Step, ...]) -> None:
    for step in steps:
        if not step.group:
            continue
        last = step.group[-1]
        if last.contiguity is Contiguity.NOT_FOLLOWED_BY:
            raise MalformedPatternError(
                f'The group {step.name} ends with not_followed_by("{last.name}"). Put it behind the group instead.'
            )
        _check_groups(step.group)


def _check_skip(sequence: Sequence, skip: AfterMatchSkipStrategy) -> None:
    if skip.pattern_name is None:
        return
    names = {step.name for step in single_steps(sequence.steps) if not step.is_negative}
    if skip.pattern_name not in names:
        raise MalformedPatternError(
            f'The skip strategy refers to pattern "{skip.pattern_name}", which has no events in this sequence. '
            f"Name one of: {', '.join(sorted(names))}."
        )
