"""Run the levels of a job as one Spark job, in a thread of its own.

    range(slots) ─ level 0 ─▶ repartitionById ─ level 1 ─▶ repartitionById ─ level 2 …

Each level is one `mapInArrow` over cells, rows of `slot int, channel int, data binary`; the exchange sends a cell to
the slot it names. The last level yields nothing: what a job puts out goes through its sinks.
"""

from __future__ import annotations

import itertools
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame

from headrace.runtime.spark.errors import InsufficientSlotsError, SparkJobError
from headrace.runtime.spark.jvm import within
from headrace.runtime.spark.pipelined import pipelined_rdd
from headrace.runtime.spark.settings import SESSION_SETTINGS
from headrace.runtime.spark.taskcontext import task_attempt_number

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.runtime.spark.session import SparkHandle

CELL_SCHEMA = "slot int, channel int, data binary"
"""What travels between levels, as Spark writes it down. `data` is opaque to Spark."""

_INSUFFICIENT = "CONCURRENT_SCHEDULER_INSUFFICIENT_SLOT"
_CANCELLED = ("SPARK_JOB_CANCELLED", "cancelled part of cancelled job group", "cancelled because Spark")
# "... Lost task 0.0 in stage 8.0 (TID 16) (host executor driver): org.apache.spark.SparkException: what happened"
_LOST_TASK = re.compile(r"Lost task [^:]*\): (?:[\w.$]+: )?([^\n]+)")
# "Job aborted due to stage failure: Task 1 in stage 8.0 failed 1 times, most recent failure: ..."
_FAILED_TASK = re.compile(r"Task (\d+) in stage (\d+)\.\d+ failed")
_numbers = itertools.count(1)

# Seconds between two looks at the free slots, and before a job that Spark refused is submitted again.
_COUNT_AGAIN = 0.05
_SUBMIT_AGAIN = 0.25
_ANSWER_WITHIN_S = 2.0

LevelFunction = Callable[[Iterator["pa.RecordBatch"]], Iterator["pa.RecordBatch"]]


@dataclass(frozen=True)
class LevelSpec:
    """One level of a job."""

    slots: int
    """How many tasks it has."""
    run: LevelFunction
    """What each task runs, once, in its worker: cells in, cells out. Level 0 gets one batch with its slot in the
    column `id`. It must read its input to the end, or the level before it fails with a closed channel."""


class GuardedRun:
    """A level's function, refusing to run where Spark repeats a task by itself.

    Spark never does so in pipelined levels. A job of one level has no exchange and so is not pipelined: there Spark
    would start a failed task again, beside a state that went on without it.
    """

    def __init__(self, run: LevelFunction) -> None:
        self.run = run

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        attempt = task_attempt_number()
        if attempt.attempt_number > 0:
            raise SparkJobError(
                f"Spark repeated slot {attempt.partition_id} by itself (attempt {attempt.attempt_number}): refused. "
                "The job restarts as a whole, from its last checkpoint.",
                detail="",
            )
        yield from self.run(batches)


class SparkJob:
    """One Spark job: an attempt's life. Started once, by the driver; then it ends by itself, fails or is cancelled."""

    def __init__(
        self,
        handle: SparkHandle,
        levels: Sequence[LevelSpec],
        group: str,
        description: str,
        *,
        slot_timeout: float = 30.0,
    ) -> None:
        self._handle = handle
        self._levels = tuple(levels)
        self._description = description
        self._slot_timeout = slot_timeout
        self.group = f"{group}#{next(_numbers)}"
        """The Spark job group. Numbered, because Spark goes on cancelling whatever joins a cancelled group."""
        self.done = threading.Event()
        """Set when the Spark job has ended, in whatever way. Workers of a failed or cancelled one may live on for a
        moment: everything a task writes has to carry its attempt."""
        self.error: Exception | None = None
        """Why it failed; to be read once `done` is set. None if it ended well or was cancelled."""
        self.failed_task: tuple[int, int] | None = None
        """Level and slot of the task whose failure Spark reported, if it did; to be read once `done` is set."""
        self._cancelled = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def slots(self) -> int:
        """How many Spark task slots it holds for its whole life."""
        return sum(level.slots for level in self._levels)

    @property
    def cancelled(self) -> bool:
        """Whether `cancel` was called."""
        return self._cancelled.is_set()

    def start(self) -> None:
        """Submit the job and return at once. May be called once."""
        if self._thread is not None:
            raise RuntimeError(f"Spark job {self.group} was started before; make a new SparkJob for a new attempt.")
        self._thread = threading.Thread(target=self._run, name=f"spark-job-{self.group}", daemon=True)
        self._thread.start()

    def cancel(self) -> None:
        """Have Spark tear down every task, and return soon; `done` follows. Harmless before, after and twice.

        Future jobs of the group are cancelled too, so it does not matter whether Spark has seen this one yet.
        """
        self._cancelled.set()
        context = self._handle.context._jsc
        if context is not None and not self.done.is_set():
            # Without a JVM there is nothing left to cancel, and the job's own thread reports the loss.
            within(
                lambda: context.sc().cancelJobGroupAndFutureJobs(self.group), otherwise=None, seconds=_ANSWER_WITHIN_S
            )

    def join(self, timeout: float | None = None) -> bool:
        """Wait until the job has ended; False if it has not after `timeout` seconds. Does not raise its error."""
        return self.done.wait(timeout)

    def _run(self) -> None:
        try:
            context = self._handle.context
            # Never interrupt: an interrupted JVM thread leaves half-written files and closed channels behind.
            context.setJobGroup(self.group, self._description, interruptOnCancel=False)
            # Spark hands the settings of a session on to tasks only for jobs that its own SQL entry points start. Here
            # they would run with the defaults: batches of 10,000 rows, no record before the end of the input.
            for name, value in SESSION_SETTINGS.items():
                context.setLocalProperty(name, value)
            # Held until the job has ended: with the last reference to it Spark would drop its shuffles.
            cells = self._build()
            self._collect(cells)
        except Exception as error:
            self.error = self._explain(error)
            if self.error is not None:
                self.failed_task = self._named_in(str(error))
        finally:
            self.done.set()

    def _build(self) -> DataFrame:
        first, *rest = self._levels
        numbers = self._handle.session.range(0, first.slots, 1, first.slots)
        cells = numbers.mapInArrow(GuardedRun(first.run), CELL_SCHEMA)
        for level in rest:
            cells = cells.repartitionById(level.slots, "slot").mapInArrow(GuardedRun(level.run), CELL_SCHEMA)
        return cells

    def _collect(self, cells: DataFrame) -> None:
        """Run the job, once its slots are free.

        Spark admits all tasks of pipelined levels together or refuses the job at once, and the refusal is waited out.
        Of a job of one level it would start some tasks and queue the rest, so free slots are counted here first.
        """
        deadline = time.monotonic() + self._slot_timeout
        while not self._cancelled.is_set():
            refusal: Exception | None = None
            if self._handle.free_slots() >= self.slots:
                try:
                    # A new plan, with new shuffles, for each try: nothing of a refused one is met again.
                    pipelined_rdd(cells).collect()
                    return
                except Exception as error:
                    if _INSUFFICIENT not in str(error):
                        raise
                    refusal = error
            # Executors come back; the threads of a local application never become more.
            hopeless = self._handle.is_local and self._handle.total_slots() < self.slots
            if hopeless or time.monotonic() >= deadline:
                raise self._insufficient() from refusal
            # The tasks of the attempt before give their slots back within moments.
            self._cancelled.wait(_COUNT_AGAIN if refusal is None else _SUBMIT_AGAIN)

    def _named_in(self, report: str) -> tuple[int, int] | None:
        """The task that this report of Spark names, which knows tasks by stage and partition."""
        match = _FAILED_TASK.search(report)
        stages: list[int] = within(self._stages, otherwise=list[int](), seconds=_ANSWER_WITHIN_S)
        if match is None or int(match.group(2)) not in stages:
            return None
        return stages.index(int(match.group(2))), int(match.group(1))

    def _stages(self) -> list[int]:
        """The stage of each level."""
        tracker = self._handle.context.statusTracker()
        # A job that Spark refused for want of slots has stages as well; the last one ran.
        job = max(tracker.getJobIdsForGroup(self.group))
        info = tracker.getJobInfo(job)
        # Spark numbers the stages of a job from its first level on.
        stages = [] if info is None else sorted(info.stageIds)
        return stages if len(stages) == len(self._levels) else []

    def _insufficient(self) -> InsufficientSlotsError:
        total, free = self._handle.total_slots(), self._handle.free_slots()
        levels = " + ".join(str(level.slots) for level in self._levels)
        return InsufficientSlotsError(
            f"The job needs {self.slots} Spark task slots at once (by level: {levels}), but {free} of {total} are free "
            f"and the wait of {self._slot_timeout:g} s was in vain. Lower the parallelism, give Spark more cores, "
            "or end what else runs in this Spark application.",
            needed=self.slots,
            total=total,
        )

    def _explain(self, error: Exception) -> Exception | None:
        if isinstance(error, InsufficientSlotsError):
            return error
        text = str(error)
        if self._cancelled.is_set() and any(mark in text for mark in _CANCELLED):
            return None
        failure = SparkJobError(_headline(text), detail=text)
        failure.__cause__ = error
        return failure


def _headline(text: str) -> str:
    """The one line of Spark's report that says what happened."""
    if "Traceback (most recent call last):" in text:
        # The traceback of a worker: its last line is the exception, before Spark's code and the JVM's own trace.
        trace = text.split("Traceback (most recent call last):", 1)[1]
        for end in ("\n SQLSTATE:", "\n\nJVM stacktrace:", "\n\tat ", "\nDriver stacktrace:"):
            trace = trace.split(end, 1)[0]
        lines = [line for line in trace.splitlines() if line and not line.startswith((" ", "\t"))]
        if lines:
            return f"A task failed: {lines[-1].strip()}"
    if match := _LOST_TASK.search(text):
        return f"A task failed: {match.group(1).strip()}"
    return f"The Spark job failed: {text.strip().splitlines()[0] if text.strip() else 'Spark gave no reason'}"
