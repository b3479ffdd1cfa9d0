"""Tasks that join, restore and open: how long they may take for which, and what is said of them meanwhile."""

from __future__ import annotations

import pytest

from headrace import StreamExecutionEnvironment, options
from headrace.checkpoint.handles import RestoredBytes
from headrace.checkpoint.lifecycle.facts import TaskId
from headrace.plan.graph import JobPlan
from headrace.runtime.coordinator.outcomes import TaskDiedError
from headrace.runtime.coordinator.startup import JOIN_TIMEOUT_S, OPTION, Startup, operators_by_task

HALF_AN_HOUR_S = 1_800


class Seconds:
    """A clock that stands still unless it is told to go on."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


def plan() -> JobPlan:
    """Two tasks that read, and two that count."""
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(2)
    words = env.from_collection(["a"], str).set_parallelism(1).name("words").rebalance().map(str.upper).name("upper")
    words.key_by(lambda word: word).map(len).name("lengths").print()
    return env.build("job")[0]


@pytest.fixture
def clock() -> Seconds:
    return Seconds()


@pytest.fixture
def startup(clock: Seconds) -> Startup:
    return Startup(operators_by_task(plan()), HALF_AN_HOUR_S * 1_000, restores=True, clock=clock)


def tasks_of(startup: Startup) -> list[TaskId]:
    return sorted(startup._tasks)


def test_a_restore_may_take_far_longer_than_joining(startup: Startup, clock: Seconds) -> None:
    for number, task in enumerate(tasks_of(startup)):
        startup.joined(task, 100 + number)
    for _ in range(10):
        clock.now += HALF_AN_HOUR_S / 10
        assert startup.overdue() is None
    for task in tasks_of(startup):
        assert not startup.complete
        startup.ready(task, RestoredBytes(local=10))
    assert startup.complete
    assert startup.restored.local == 10 * len(tasks_of(startup))
    assert startup.elapsed_ms == HALF_AN_HOUR_S * 1_000
    clock.now += 10 * HALF_AN_HOUR_S
    assert startup.overdue() is None, "they run"


def test_tasks_that_never_join_are_named_with_what_to_look_at(startup: Startup, clock: Seconds) -> None:
    *joined, absent = tasks_of(startup)
    for task in joined:
        startup.joined(task, 1)
        startup.ready(task, RestoredBytes())
    clock.now += JOIN_TIMEOUT_S
    assert startup.overdue() is None
    clock.now += 1
    overdue = startup.overdue()
    assert isinstance(overdue, TaskDiedError)
    assert f"the tasks {absent[0]}.{absent[1]} (lengths" in str(overdue)
    for part in ("2 min", "had not joined", f"{len(tasks_of(startup))} free slots", "control port"):
        assert part in str(overdue)


def test_the_limit_for_restoring_counts_from_the_last_join(startup: Startup, clock: Seconds) -> None:
    first, *others = tasks_of(startup)
    startup.joined(first, 1)
    clock.now += JOIN_TIMEOUT_S - 1
    for task in others:
        startup.joined(task, 1)
    clock.now += HALF_AN_HOUR_S
    assert startup.overdue() is None
    clock.now += 1
    assert startup.overdue() is not None


def test_tasks_that_are_not_ready_are_named_with_what_they_are_at_and_the_option(
    startup: Startup, clock: Seconds
) -> None:
    first, *others = tasks_of(startup)
    for task in (first, *others):
        startup.joined(task, 1)
    for task in others:
        startup.ready(task, RestoredBytes())
    clock.now += HALF_AN_HOUR_S + 1

    text = str(startup.overdue())

    assert f"After 30 min the tasks {first[0]}.{first[1]} (" in text
    assert "restoring state and opening functions" in text
    assert f"raise {options.INITIALIZATION_TIMEOUT.key}" in text


def test_the_option_that_the_error_names_is_the_one_that_is_declared() -> None:
    assert options.INITIALIZATION_TIMEOUT.key == OPTION


def test_how_far_it_is_can_be_told_at_any_moment(startup: Startup) -> None:
    tasks = tasks_of(startup)
    assert startup.words() == f"0 of {len(tasks)} tasks have joined"
    for task in tasks:
        startup.joined(task, 7)
    startup.ready(tasks[0], RestoredBytes())
    assert startup.words() == f"restoring state and opening functions, 1 of {len(tasks)} tasks ready"
    assert startup.pids == {f"{level}.{slot}": 7 for level, slot in tasks}
    assert (startup.pid(tasks[0]), startup.pid(TaskId(99, 0))) == (7, 0)


def test_a_job_that_begins_from_nothing_is_not_said_to_restore() -> None:
    startup = Startup(operators_by_task(plan()), 1_000, restores=False)
    for task in tasks_of(startup):
        startup.joined(task, 1)
    assert startup.words().startswith("opening functions, 0 of ")
