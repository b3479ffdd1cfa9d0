"""The oracle of the simulation: what must hold, reckoned from the input alone.

Exactly-once: at every published checkpoint, each record that sources had emitted is on each of its ways either in the
state of the operator it goes to or in flight in the checkpoint, once; and what the operator had processed is, again
once, further down. At the end everything is in the state once and committed once.
At-least-once: the same with "at least once".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from simulated_plan import Record, Scenario
from simulated_task import Item, State, TaskKey, decode, farewell

from headrace.runtime.task.cells import RECORDS, address_of


class Violation(AssertionError):
    """The protocol broke its promise."""


def positions(
    scenario: Scenario, states: dict[TaskKey, State], unassigned: dict[str, dict[str, int]]
) -> dict[str, int]:
    """How far each split was read at a checkpoint. A split that nobody has is finished; none may be held twice."""
    reached = {split: len(keys) for splits in scenario.splits.values() for split, keys in splits.items()}
    held: set[str] = set()
    holders = [s for state in states.values() for s in state.splits.values()]
    for splits in (*holders, *unassigned.values()):
        for split, position in splits.items():
            if split in held:
                raise Violation(f"split {split} is in the checkpoint twice: its records would be read twice")
            held.add(split)
            reached[split] = position
    return reached


def emitted(scenario: Scenario, source: str, way: str, reached: dict[str, int]) -> Counter[Record]:
    """Records of a source before the given positions."""
    return Counter(
        Record(way, split, position, key)
        for split, keys in scenario.splits[source].items()
        for position, key in enumerate(keys[: reached[split]])
    )


def check_cut(
    scenario: Scenario,
    states: dict[TaskKey, State],
    unassigned: dict[str, dict[str, int]],
    committed: dict[tuple[int, int, int, int], Item],
) -> dict[str, int]:
    """A checkpoint that was just published. Gives the positions from which sources would go on."""
    reached = positions(scenario, states, unassigned)
    flying = _in_flight(states.values())
    above = emitted(scenario, "a", "a", reached)
    for level in range(1, scenario.levels):
        here = [state for (of, _), state in states.items() if of == level]
        arrived = sum((state.seen for state in here), Counter())
        expected = above
        if level == 2 and scenario.relayed:
            expected = expected + emitted(scenario, "a", "relayed", reached)
        if level == 2 and scenario.deep_source:
            expected = expected + emitted(scenario, "b", "b", reached)
        _compare(scenario, f"level {level}", expected, arrived + flying[level])
        above = arrived + Counter(
            farewell(level, slot) for (of, slot), state in states.items() if of == level and state.finished
        )
    if scenario.levels == 2 and scenario.deep_source:
        above = above + emitted(scenario, "b", "b", reached)
    sunk = sum((state.sunk for (of, _), state in states.items() if of == scenario.last), Counter())
    _compare(scenario, "the sink", above, sunk)
    named = {item.name: item for state in states.values() for item in state.prepared}
    _compare(scenario, "committed and prepared output", sunk, _records({**committed, **named}.values()))
    return reached


def check_end(
    scenario: Scenario, states: dict[TaskKey, State], committed: dict[tuple[int, int, int, int], Item]
) -> bool:
    """The job has finished. True if something was counted twice, which only at-least-once may do."""
    reached = {split: len(keys) for splits in scenario.splits.values() for split, keys in splits.items()}
    expected = emitted(scenario, "a", "a", reached)
    twice = False
    for level in range(1, scenario.levels):
        if level == 2 and scenario.relayed:
            expected = expected + emitted(scenario, "a", "relayed", reached)
        if level == 2 and scenario.deep_source:
            expected = expected + emitted(scenario, "b", "b", reached)
        counted = sum((state.seen for (of, _), state in states.items() if of == level), Counter())
        twice |= _compare(scenario, f"the state of level {level}", expected, counted)
        expected = expected + Counter(farewell(level, slot) for slot in range(scenario.slots[level]))
    if scenario.levels == 2 and scenario.deep_source:
        expected = expected + emitted(scenario, "b", "b", reached)
    return _compare(scenario, "committed output", expected, _records(committed.values())) or twice


def _in_flight(states: Iterable[State]) -> dict[int, Counter[Record]]:
    """Records in channel state, by the level they are on their way to."""
    flying: dict[int, Counter[Record]] = {level: Counter() for level in range(4)}
    for state in states:
        for _, data in state.logged:
            if data[0] == RECORDS:
                edge = address_of(data).edge
                flying[2 if edge >= 10 else edge + 1].update(decode(data))
    return flying


def _records(items: Iterable[Item]) -> Counter[Record]:
    return Counter(record for item in items for record in item.records)


def _compare(scenario: Scenario, where: str, expected: Counter[Record], found: Counter[Record]) -> bool:
    missing, extra = expected - found, found - expected
    if missing:
        raise Violation(f"{where} lacks {_some(missing)}")
    if extra and scenario.exact:
        raise Violation(f"{where} has too often {_some(extra)}")
    return bool(extra)


def _some(records: Counter[Record]) -> str:
    return f"{sum(records.values())} records, such as {', '.join(map(str, list(records)[:3]))}"
