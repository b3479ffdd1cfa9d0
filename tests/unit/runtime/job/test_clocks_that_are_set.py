"""The machine's clock is set while a job runs: nothing that waits, repeats or expires in the driver notices.

What is stored and shown is the time of day all the same. Spark is left out: the tests say what tasks would say.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from headrace import ExponentialDelayRestart, FailureRateRestart, StreamExecutionEnvironment, WatermarkStrategy
from headrace.checkpoint.handles import TaskSnapshot
from headrace.checkpoint.job_directory import JobDirectory
from headrace.checkpoint.lifecycle.facts import TaskId
from headrace.checkpoint.metadata.model import CheckpointMetadata
from headrace.clocks import Clocks
from headrace.connectors.source import EnumeratorContext, ReaderContext, Source, SourceReader, SplitEnumerator
from headrace.errors import JobFailedError
from headrace.plan.restart import RestartStrategy
from headrace.runtime.control import messages as msg
from headrace.runtime.control.server import TaskKey
from headrace.runtime.coordinator.events import TaskSaid
from headrace.runtime.coordinator.inbox import Inbox
from headrace.runtime.coordinator.outcomes import End, Outcome, TaskDiedError
from headrace.runtime.coordinator.savepoints import SavepointOrders
from headrace.runtime.job.attempt import Attempt, AttemptStart, JobWorld
from headrace.runtime.job.collected import CollectedResults
from headrace.runtime.job.restarts import Restarts
from headrace.runtime.job.restoration import Restoration
from headrace.runtime.job.runner import JobRun
from headrace.runtime.job.spark_ends import SparkEnds
from headrace.runtime.job.status import StatusBoard, StatusReport

HOUR = 3_600_000
INTERVAL = 10_000
TIMEOUT = 60_000
DISCOVERY = 30_000
NOON = 1_700_000_000_000
PATIENCE_S = 60.0

BACK_AND_FORWARD = pytest.mark.parametrize("hours", [-1, 1], ids=["back", "forward"])


class Machine:
    """Both clocks of a machine. Time passes on both; one of them can be set."""

    def __init__(self) -> None:
        self.wall_ms = NOON
        self.steady_ms = 5_000

    def passes(self, ms: int) -> None:
        self.wall_ms += ms
        self.steady_ms += ms

    @property
    def clocks(self) -> Clocks:
        return Clocks(lambda: self.wall_ms, lambda: self.steady_ms)


class Split(msgspec.Struct, frozen=True):
    split_id: str


class Looking(SplitEnumerator[Split]):
    """Has no splits, and counts how often it was to look for some."""

    discovery_interval_ms = DISCOVERY

    def __init__(self) -> None:
        self.looked = 0

    def handle_split_request(self, subtask: int) -> None: ...

    def add_splits_back(self, splits: Any) -> None: ...

    def discover(self) -> None:
        self.looked += 1

    def snapshot_state(self) -> bytes:
        return b""


class Watched(Source[Split]):
    """A source whose enumerator looks for splits from time to time."""

    split_type = Split

    def __init__(self) -> None:
        self.enumerator = Looking()

    def create_enumerator(self, context: EnumeratorContext, restored: bytes | None) -> Looking:
        return self.enumerator

    def create_reader(self, context: ReaderContext) -> SourceReader[Split]:
        raise AssertionError("there are no tasks here")


@dataclass
class Sent:
    """In place of the control server: what tasks would be sent."""

    messages: list[msg.Message]

    def send(self, task: TaskKey, message: msg.Message) -> None:
        self.messages.append(message)


class Job:
    """A job of one task that runs, as its coordinator sees it."""

    def __init__(self, home: Path, machine: Machine) -> None:
        self.machine = machine
        self.source = Watched()
        env = StreamExecutionEnvironment.get_execution_environment()
        env.set_parallelism(1)
        env.enable_checkpointing(INTERVAL)
        env.get_checkpoint_config().set_checkpoint_timeout(TIMEOUT)
        env.get_checkpoint_config().set_checkpoint_storage(str(home))
        env.get_checkpoint_config().set_tolerable_checkpoint_failure_number(5)
        env.from_source(self.source, WatermarkStrategy.no_watermarks(), "watched").print()
        plan, settings = env.build("job")
        self.directory = JobDirectory(settings.checkpointing.storage, "job", clocks=machine.clocks)
        run, number = self.directory.open_run(), self.directory.claim_attempt()
        self.directory.record_restored(number, None)
        self.board = StatusBoard(StatusReport(job_id="job", name="job"))
        self.number = number
        self.inbox = Inbox()
        world = JobWorld(
            plan,
            settings,
            self.directory,
            self.inbox,
            self.board,
            CollectedResults(),
            SavepointOrders(),
            machine.clocks,
        )
        start = AttemptStart(
            number=number,
            run=run,
            restoration=Restoration.of(plan, None, allow_non_restored=False),
            retained=(),
            next_checkpoint_id=1,
            resume=None,
        )
        handle: Any = None  # only `run` needs Spark
        ends = SparkEnds(plan, settings, self.directory).for_attempt(
            handle, number, run, start.restoration, self.inbox.put
        )
        self.attempt = Attempt(world, start, handle, ends)
        self.sent: list[msg.Message] = []
        self.attempt._server = Sent(self.sent)  # type: ignore[assignment]
        self.attempt.coordinator.begin()
        self.until(lambda: self.attempt.coordinator._sources_restored)
        self.says(msg.Ready())

    def says(self, message: msg.Message) -> None:
        """The task says so, and the coordinator goes once round its loop."""
        self.inbox.put(TaskSaid(self.number, TaskId(0, 0), message))
        self.goes_round()

    def goes_round(self) -> None:
        """Once by the clock; then until every I/O thread has answered."""
        coordinator = self.attempt.coordinator
        self._takes()
        assert coordinator.on_time() is None
        self.until(self._is_idle)

    def until(self, done: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not done():
            assert time.monotonic() < deadline
            self._takes()

    def _takes(self) -> None:
        while (event := self.inbox.take(0.01)) is not None:
            assert self.attempt.coordinator.handle(event) is None

    def _is_idle(self) -> bool:
        executor = self.attempt._executor
        with executor._changed:
            return not executor._stuck() and not len(self.inbox)

    def triggered(self) -> list[int]:
        return [message.checkpoint_id for message in self.sent if isinstance(message, msg.Trigger)]

    def aborted(self) -> list[int]:
        return [message.checkpoint_id for message in self.sent if isinstance(message, msg.Abort)]

    def acknowledges(self, checkpoint_id: int) -> None:
        self.says(msg.Acknowledge(checkpoint_id, TaskSnapshot(0, 0, ())))

    def stored(self) -> CheckpointMetadata:
        newest = self.directory.newest()
        assert newest is not None
        return self.directory.load(newest)


@pytest.fixture
def machine() -> Machine:
    return Machine()


@pytest.fixture
def job(tmp_path: Path, machine: Machine) -> Job:
    return Job(tmp_path, machine)


@BACK_AND_FORWARD
def test_the_next_checkpoint_comes_when_its_interval_is_over_and_not_before(
    job: Job, machine: Machine, hours: int
) -> None:
    machine.passes(INTERVAL)
    job.goes_round()
    job.acknowledges(1)
    machine.wall_ms += hours * HOUR
    machine.passes(INTERVAL - 1)
    job.goes_round()
    assert job.triggered() == [1]
    assert 0 < job.attempt.coordinator.wait_s() <= 0.001
    machine.passes(1)
    job.goes_round()
    assert job.triggered() == [1, 2]


@BACK_AND_FORWARD
def test_a_checkpoint_times_out_when_its_time_is_over_and_not_before(job: Job, machine: Machine, hours: int) -> None:
    machine.passes(INTERVAL)
    job.goes_round()
    machine.wall_ms += hours * HOUR
    machine.passes(TIMEOUT - 1)
    job.goes_round()
    assert job.aborted() == []
    machine.passes(1)
    job.goes_round()
    assert job.aborted() == [1]


@BACK_AND_FORWARD
def test_what_is_stored_and_shown_of_a_checkpoint_is_the_time_of_day_and_how_long_it_took(
    job: Job, machine: Machine, hours: int
) -> None:
    told: list[dict[str, Any]] = []
    job.board.event_listeners.append(lambda event: told.append({"kind": event.kind, **event.detail}))
    machine.passes(INTERVAL)
    job.goes_round()
    machine.wall_ms += hours * HOUR
    machine.passes(250)
    job.acknowledges(1)
    now = NOON + INTERVAL + hours * HOUR + 250
    assert (job.stored().created_ms, job.stored().duration_ms) == (now, 250)
    shown = job.board.report.last_checkpoint
    assert shown is not None
    assert (shown.completed_at_ms, shown.duration_ms) == (now, 250)
    assert [event["duration_ms"] for event in told if event["kind"] == "checkpoint"] == [250]


@BACK_AND_FORWARD
def test_sources_look_for_splits_when_it_is_time_and_not_before(job: Job, machine: Machine, hours: int) -> None:
    ticks: list[Any] = []
    job.board.listeners.append(ticks.append)
    machine.wall_ms += hours * HOUR
    machine.passes(1_000)  # the coordinator looks after sources once a second
    job.goes_round()
    assert ticks
    assert job.source.enumerator.looked == 0
    machine.passes(DISCOVERY)
    job.goes_round()
    assert job.source.enumerator.looked == 1


def start(home: Path, machine: Machine, restart: RestartStrategy | None = None) -> JobRun:
    env = StreamExecutionEnvironment.get_execution_environment()
    env.enable_checkpointing(INTERVAL)
    env.get_checkpoint_config().set_checkpoint_storage(str(home))
    rate = FailureRateRestart(max_failures=1, interval=timedelta(minutes=1), delay=timedelta(0))
    env.set_restart_strategy(rate if restart is None else restart)
    env.from_collection([1]).print()
    return JobRun(*env.build("job"), None, machine.clocks)


@BACK_AND_FORWARD
def test_failures_are_counted_by_the_time_that_passed_between_them(
    tmp_path: Path, machine: Machine, hours: int
) -> None:
    run = start(tmp_path, machine)
    restarts = Restarts(run._settings.restart, "job", replays=True)
    failure = Outcome(End.FAILED, TaskDiedError("killed"))
    run._decide(failure, restarts)
    machine.wall_ms += hours * HOUR
    machine.passes(60_001)
    run._decide(failure, restarts)
    machine.wall_ms += hours * HOUR
    machine.passes(60_000)
    with pytest.raises(JobFailedError, match="is not restarted"):
        run._decide(failure, restarts)


@BACK_AND_FORWARD
def test_delays_start_again_after_an_hour_of_health_and_not_before(
    tmp_path: Path, machine: Machine, hours: int
) -> None:
    run = start(tmp_path, machine, ExponentialDelayRestart(initial=10, multiplier=2, max=80, jitter=0))
    restarts = Restarts(run._settings.restart, "job", replays=True)
    failure = Outcome(End.FAILED, TaskDiedError("killed"))
    delays: list[int] = []
    run.board.event_listeners.append(
        lambda event: delays.append(event.detail["delay_ms"]) if event.kind == "restarting" else None
    )

    def fails_after(ms: int) -> None:
        """The attempt after the last delay runs for so long, then fails."""
        machine.wall_ms += hours * HOUR
        machine.passes(ms + (delays[-1] if delays else 0))
        run._decide(failure, restarts)

    for ms in (0, 1_000, HOUR // 2, HOUR - 1, HOUR, HOUR - 1, 2 * HOUR):
        fails_after(ms)
    assert delays == [10, 20, 40, 80, 10, 20, 10]
