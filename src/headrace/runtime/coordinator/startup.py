"""The tasks of one attempt until they run: each joins, restores its state, opens its functions and is ready.

Joining has a short limit of its own: it waits for Spark's slots and for a connection, never for what a job has to do.
Restoring and opening take as long as state and models are large, so their limit is the job's to choose.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping

from headrace.checkpoint.handles import RestoredBytes
from headrace.checkpoint.lifecycle.facts import TaskId
from headrace.durations import duration
from headrace.plan.graph import JobPlan
from headrace.runtime.coordinator.outcomes import TaskDiedError

JOIN_TIMEOUT_S = 120.0
OPTION = "execution.initialization.timeout"
"""The setting behind `limit_ms`, for the error: options are declared on a floor above this one."""


class Startup:
    """Made when an attempt begins, and told by its coordinator what tasks say. `limit_ms` counts from the last join."""

    def __init__(
        self, tasks: Mapping[TaskId, str], limit_ms: int, *, restores: bool, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`tasks`: every task with the names of its operators."""
        self._names = tasks
        self._limit_s = limit_ms / 1_000
        self._doing = "restoring state and opening functions" if restores else "opening functions"
        self._clock = clock
        self._began = clock()
        self._joined_at = self._began
        self._tasks = frozenset(tasks)
        self._ready: set[TaskId] = set()
        self._pids: dict[TaskId, int] = {}
        self.restored = RestoredBytes()
        """Where the state of the tasks that are ready came from."""

    @property
    def complete(self) -> bool:
        """Whether every task is ready."""
        return len(self._ready) == len(self._tasks)

    @property
    def pids(self) -> dict[str, int]:
        """The process of every task that has joined, by `level.slot`."""
        return {f"{level}.{slot}": pid for (level, slot), pid in self._pids.items()}

    @property
    def elapsed_ms(self) -> int:
        return round((self._clock() - self._began) * 1_000)

    def pid(self, task: TaskId) -> int:
        """0 for one that has not joined."""
        return self._pids.get(task, 0)

    def joined(self, task: TaskId, pid: int) -> None:
        self._pids[task] = pid
        self._joined_at = self._clock()

    def ready(self, task: TaskId, restored: RestoredBytes) -> None:
        self._ready.add(task)
        self.restored += restored

    def overdue(self) -> TaskDiedError | None:
        """Why the attempt has to be given up, if tasks took too long for what they are at."""
        now = self._clock()
        absent = self._tasks - self._pids.keys()
        if absent and now - self._began > JOIN_TIMEOUT_S:
            return TaskDiedError(
                f"After {duration(JOIN_TIMEOUT_S)} the tasks {self._named(absent)} had not joined. Look at Spark's "
                f"executors: whether they have {len(self._tasks)} free slots, and whether they reach the driver's "
                "control port."
            )
        if not absent and not self.complete and now - self._joined_at > self._limit_s:
            return TaskDiedError(
                f"After {duration(self._limit_s)} the tasks {self._named(self._tasks - self._ready)} were not ready: "
                f"they had joined and were still {self._doing}. If that may take so long, raise {OPTION}; else look "
                "for what an open() waits for, or why checkpoint storage is slow."
            )
        return None

    def words(self) -> str:
        """How far it is, for people."""
        of = f"of {len(self._tasks)} tasks"
        if len(self._pids) < len(self._tasks):
            return f"{len(self._pids)} {of} have joined"
        return f"{self._doing}, {len(self._ready)} {of} ready"

    def _named(self, tasks: Iterable[TaskId]) -> str:
        return ", ".join(f"{task.level}.{task.slot} ({self._names[task]})" for task in sorted(tasks))


def operators_by_task(plan: JobPlan) -> dict[TaskId, str]:
    """Every task of the plan, with the names of its operators."""
    names: dict[TaskId, list[str]] = {TaskId(lv.index, slot): [] for lv in plan.levels for slot in range(lv.slots)}
    for chain in plan.chains:
        for slot in dict.fromkeys(chain.slots):
            names[TaskId(chain.level, slot)] += [plan.graph.node(node).name for node in chain.nodes]
    return {task: ", ".join(found) or "no operator" for task, found in names.items()}
