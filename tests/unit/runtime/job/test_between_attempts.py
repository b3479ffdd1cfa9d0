"""Trouble in the driver between two attempts: one more failure for the restart strategy, as in a task.

The driver, its job directory and its sinks are real; what would start Spark's tasks is played by a script of outcomes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest

from headrace import RestartStrategies, StreamExecutionEnvironment
from headrace.checkpoint.job_directory import JobDirectory
from headrace.checkpoint.lease import Lease
from headrace.checkpoint.metadata.model import CheckpointMetadata
from headrace.checkpoint.storage.filesystem import FileSystemCheckpointStorage
from headrace.clocks import Clocks
from headrace.connectors.sink import Committer, Sink, SinkWriter, WriterContext
from headrace.errors import (
    CheckpointLostError,
    DataLossError,
    FencedError,
    HeadraceError,
    JobFailedError,
    OutputLostError,
    PoisonRecordError,
    SparkLostError,
    StorageError,
    UserFunctionError,
)
from headrace.plan.graph import JobPlan
from headrace.plan.restart import RestartStrategy
from headrace.plan.settings import JobSettings
from headrace.runtime.coordinator.outcomes import End, Outcome, SourcePositions, TaskDiedError
from headrace.runtime.coordinator.savepoints import SavepointOrder, savepoint_of
from headrace.runtime.job.attempt import AttemptStart
from headrace.runtime.job.runner import JobRun
from headrace.runtime.job.status import JobEvent, JobStatus
from headrace.runtime.spark.errors import SparkDiedError
from headrace.testing import ManualClock

DIED = Outcome(End.FAILED, TaskDiedError("a worker was killed"))
DONE = Outcome(End.FINISHED)


class RemoteStorage(FileSystemCheckpointStorage):
    """A directory that is away for a while, for one kind of request."""

    away: dict[tuple[str, str], int]
    """How often a request of that kind for a path with that part in it is still refused."""

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self.away = {}

    def _answer(self, kind: str, path: str) -> None:
        for (refused, part), times in self.away.items():
            if refused == kind and part in path and times:
                self.away[refused, part] -= 1
                raise StorageError(f"{path}: the storage does not answer")

    def create_exclusive(self, path: str, data: bytes) -> None:
        self._answer("create", path)
        super().create_exclusive(path, data)

    def read(self, path: str) -> bytes:
        self._answer("read", path)
        return super().read(path)

    def list_names(self, directory: str, start: str = "") -> Sequence[str]:
        self._answer("list", f"{directory}/")
        return super().list_names(directory, start)


class ScriptedCommitter(Committer):
    """Does what the test says at the beginning of an attempt."""

    def __init__(self, at_start: Callable[[int], None], steps: list[str]) -> None:
        self._at_start = at_start
        self._steps = steps

    def commit(self, items: Sequence[bytes]) -> None:
        raise AssertionError("there is nothing to commit")

    def attempt_starts(self, job_id: str, uid: str, attempt: int, parallelism: int) -> None:
        self._steps.append(f"{uid} starts {attempt} of {self.history}")
        self._at_start(attempt)

    def abort_leftovers(self, job_id: str, uid: str, attempt: int, keep: Sequence[bytes]) -> None:
        self._steps.append(f"{uid} aborts before {attempt}")


class ScriptedSink(Sink):
    def __init__(self, at_start: Callable[[int], None], steps: list[str]) -> None:
        self._at_start = at_start
        self._steps = steps

    def create_writer(self, context: WriterContext) -> SinkWriter:
        raise AssertionError("no task runs")

    def create_committer(self) -> Committer:
        return ScriptedCommitter(self._at_start, self._steps)


class ScriptedAttempt:
    next_checkpoint_id = 2

    def __init__(self, number: int, act: Outcome | Callable[[], Outcome]) -> None:
        self._number = number
        self._act = act

    def run(self) -> Outcome:
        return self._act() if callable(self._act) else self._act

    def positions(self) -> SourcePositions:
        return SourcePositions({"src": b"after attempt %d" % self._number}, {})


class ScriptedSpark:
    """Spark that is lost when the test says so."""

    handle = None

    def __init__(self) -> None:
        self.lost: HeadraceError | None = None
        self.replaced = 0

    def loss(self) -> HeadraceError | None:
        return self.lost

    def cause_of(self, error: Exception) -> Exception:
        return self.lost or error

    def revive(self) -> None:
        if isinstance(self.lost, SparkLostError):
            raise self.lost
        if self.lost is not None:
            self.replaced += 1
            self.lost = None


class Driver:
    """A job in this process without Spark. `script`: what becomes of each attempt whose tasks are started."""

    def __init__(
        self,
        home: Path,
        *script: Outcome | Callable[[], Outcome],
        at_start: Callable[[int], None] = lambda attempt: None,
        restart: RestartStrategy | None = None,
        checkpoints: bool = True,
        fresh: bool = False,
    ) -> None:
        self.storage = RemoteStorage(str(home))
        self.steps: list[str] = []
        """What the committers of both sinks were asked to do."""
        plan, settings = self._built(at_start, self.steps, checkpoints)
        strategy = RestartStrategies.fixed_delay_restart(60, 0) if restart is None else restart
        checkpointing = replace(settings.checkpointing, storage=self.storage)
        self.settings = replace(settings, checkpointing=checkpointing, restart=strategy, fresh=fresh)
        self.run = JobRun(plan, self.settings, None)
        self.clock = ManualClock(1_000_000)
        self.clocks = Clocks(self.clock, self.clock)
        self.run._lease = Lease(self.storage, "job", clocks=self.clocks)
        self.events: list[JobEvent] = []
        self.run.board.event_listeners.append(self.events.append)
        self.resumed: list[SourcePositions | None] = []
        self.loads_pickles: list[bool] = []
        """Whether each attempt loads pickled records of untyped streams."""
        self._script = list(script)
        self.run._new_attempt = self._attempt  # type: ignore[method-assign]

        self.spark = ScriptedSpark()
        self.run._ends.attempt = self._attempt  # type: ignore[method-assign, assignment]

    @staticmethod
    def _built(at_start: Callable[[int], None], steps: list[str], checkpoints: bool) -> tuple[JobPlan, JobSettings]:
        env = StreamExecutionEnvironment.get_execution_environment()
        if checkpoints:
            env.enable_checkpointing(1_000)
        stream = env.from_collection([1])
        stream.sink_to(ScriptedSink(at_start, steps)).uid("out").name("the books")
        stream.sink_to(ScriptedSink(lambda attempt: None, steps)).uid("second")
        return env.build("job")

    def _attempt(self, handle: Any, start: AttemptStart) -> Any:
        self.resumed.append(start.resume)
        self.loads_pickles.append(start.restoration.pickles.restored)
        return ScriptedAttempt(start.number, self._script.pop(0))

    def go(self) -> None:
        self.run._lease.acquire()
        self.run._attempts(self.spark)  # type: ignore[arg-type]

    @property
    def failures(self) -> list[str]:
        return [event.detail["error"] for event in self.events if event.kind == "failure"]

    @property
    def restarts(self) -> int:
        return self.run.board.report.restarts


@pytest.mark.parametrize(
    ("kind", "part"),
    [("list", "/run-"), ("create", "attempt-"), ("create", "restored-"), ("read", "attempt-"), ("read", "_metadata")],
    ids=["numbers", "claim", "record", "choose", "load"],
)
def test_storage_that_is_away_when_an_attempt_begins_is_a_failed_attempt_and_no_more(
    tmp_path: Path, kind: str, part: str
) -> None:
    def publish_and_die() -> Outcome:
        driver.run._directory.publish(checkpoint_of(driver.run._directory))
        driver.storage.away = {(kind, part): 2}
        return DIED

    driver = Driver(tmp_path, publish_and_die, DONE)
    driver.go()

    assert driver.run.board.report.status is JobStatus.FINISHED
    assert driver.failures == ["TaskDiedError", "StorageError", "StorageError"]
    assert driver.restarts == 3


def checkpoint_of(
    directory: JobDirectory, kind: Literal["checkpoint", "savepoint"] = "checkpoint"
) -> CheckpointMetadata:
    return CheckpointMetadata(
        job_id="job",
        job_name="job",
        run=1,
        attempt=directory.newest_attempt(),
        checkpoint_id=1,
        kind=kind,
        mode="aligned",
        created_ms=0,
        duration_ms=0,
        operators=(),
        history=directory.history,
    )


def test_at_the_first_start_the_program_is_told_at_once(tmp_path: Path) -> None:
    driver = Driver(tmp_path)
    driver.storage.away = {("create", "attempt-"): 1}
    with pytest.raises(StorageError, match="does not answer"):
        driver.go()
    assert driver.failures == []

    def refuse(attempt: int) -> None:
        raise KeyError("no such ledger")

    with pytest.raises(UserFunctionError, match="no such ledger"):
        Driver(tmp_path / "other", at_start=refuse).go()


def test_a_strategy_that_gives_up_says_what_it_gave_up_on(tmp_path: Path) -> None:
    def die_with_the_storage() -> Outcome:
        driver.storage.away = {("create", "attempt-"): 1_000}
        return DIED

    driver = Driver(tmp_path, die_with_the_storage, restart=RestartStrategies.fixed_delay_restart(3, 0))
    with pytest.raises(JobFailedError, match=r"not restarted.*the storage does not answer"):
        driver.go()
    assert driver.restarts == 3


def fail_in(attempts: set[int], error: Exception) -> Callable[[int], None]:
    def at_start(attempt: int) -> None:
        if attempt in attempts:
            raise error

    return at_start


def test_a_committer_that_raises_between_two_attempts_is_restarted_like_a_function_in_a_task(tmp_path: Path) -> None:
    driver = Driver(tmp_path, DIED, DONE, at_start=fail_in({2, 3}, ZeroDivisionError("the books do not balance")))
    driver.go()

    assert driver.failures == ["TaskDiedError", "UserFunctionError", "UserFunctionError"]
    assert driver.run.board.report.status is JobStatus.FINISHED


def test_the_error_of_a_committer_has_operator_uid_method_and_the_users_line(tmp_path: Path) -> None:
    at_start = fail_in({2, 3}, ZeroDivisionError("the books do not balance"))
    driver = Driver(tmp_path, DIED, at_start=at_start, restart=RestartStrategies.fixed_delay_restart(2, 0))
    with pytest.raises(UserFunctionError, match="the books do not balance") as caught:
        driver.go()

    error = caught.value
    assert (error.operator, error.uid) == ("the books", "out")
    assert "attempt_starts()" in str(error)
    assert error.location.startswith(__file__)
    assert "raise error" in error.cause
    assert isinstance(error.__cause__, ZeroDivisionError)


@pytest.mark.parametrize("error", [OutputLostError("a file is gone"), DataLossError("records are gone")], ids=repr)
def test_what_must_never_restart_does_not_between_attempts_either(tmp_path: Path, error: HeadraceError) -> None:
    driver = Driver(tmp_path, DIED, at_start=fail_in({2}, error))
    with pytest.raises(type(error)) as caught:
        driver.go()
    assert caught.value is error
    assert driver.restarts == 1, "that of the task that died"


def failed_on(record: str) -> Outcome:
    return Outcome(
        End.FAILED,
        UserFunctionError(
            f"it failed on {record}",
            operator="books",
            uid="books",
            record=record,
            location="job.py:3",
            cause="",
            exception="ValueError",
            blames_record=True,
        ),
    )


def test_a_record_that_fails_again_after_each_restore_ends_the_job_and_says_so(tmp_path: Path) -> None:
    driver = Driver(tmp_path, DIED, *[failed_on("7")] * 3)
    with pytest.raises(PoisonRecordError, match=r"failed on the same record in 3 attempts in a row.*it failed on 7"):
        driver.go()
    assert driver.restarts == 3, "that of the task that died, and two for the record"


def test_a_record_that_fails_until_a_service_answers_is_not_given_up_while_others_get_through(tmp_path: Path) -> None:
    driver = Driver(tmp_path, *[failed_on("7")] * 2, failed_on("8"), *[failed_on("7")] * 2, DONE)
    driver.go()
    assert driver.run.board.report.status is JobStatus.FINISHED


def test_a_strategy_without_a_limit_retries_the_same_record_as_often_as_anything_else(tmp_path: Path) -> None:
    restart = RestartStrategies.fixed_delay_restart(60, 0, same_record_limit=None)
    driver = Driver(tmp_path, *[failed_on("7")] * 10, DONE, restart=restart)
    driver.go()
    assert driver.restarts == 10


def test_without_checkpoints_a_record_is_not_read_again_so_the_same_text_is_another_record(tmp_path: Path) -> None:
    driver = Driver(tmp_path, *[failed_on("7")] * 10, DONE, checkpoints=False)
    driver.go()
    assert driver.restarts == 10


def test_a_permanent_error_of_a_task_ends_the_job_at_once(tmp_path: Path) -> None:
    error = OutputLostError("a prepared file is gone")
    driver = Driver(tmp_path, Outcome(End.FAILED, error))
    with pytest.raises(OutputLostError):
        driver.go()
    assert driver.restarts == 0


def test_without_checkpoints_sources_stand_where_they_were_after_trouble_between_attempts(tmp_path: Path) -> None:
    at_start = fail_in({2, 3}, ConnectionError("the ledger is being moved"))
    driver = Driver(tmp_path, DIED, DIED, DONE, at_start=at_start, checkpoints=False)
    driver.go()

    assert [None if p is None else p.state("src") for p in driver.resumed] == [
        None,
        b"after attempt 1",
        b"after attempt 4",
    ]


def test_a_stop_is_finished_by_the_driver_although_storage_is_away_for_a_moment(tmp_path: Path) -> None:
    order = SavepointOrder(f"file://{tmp_path}/saved", stop=True)

    def stop_and_die() -> Outcome:
        metadata = checkpoint_of(driver.run._directory, "savepoint")
        order.directory.publish(metadata)
        order.published = savepoint_of(order, metadata, 0)
        driver.storage.away = {("create", "attempt-"): 2}
        return DIED

    committed: list[int] = []
    driver = Driver(tmp_path / "job", stop_and_die, at_start=committed.append)
    driver.run._orders.add(order)
    driver.go()

    assert driver.run.board.report.status is JobStatus.FINISHED
    assert committed == [1, 2], "the driver has done what the sinks of the tasks could not"
    assert driver.failures == ["TaskDiedError", "StorageError", "StorageError"]


def test_a_stop_that_cannot_be_finished_names_the_savepoint_and_the_way_out(tmp_path: Path) -> None:
    order = SavepointOrder(f"file://{tmp_path}/saved", stop=True)

    def stop_and_die() -> Outcome:
        metadata = checkpoint_of(driver.run._directory, "savepoint")
        order.directory.publish(metadata)
        order.published = savepoint_of(order, metadata, 0)
        return DIED

    at_start = fail_in({2, 3}, ZeroDivisionError("the books do not balance"))
    restart = RestartStrategies.fixed_delay_restart(1, 0)
    driver = Driver(tmp_path / "job", stop_and_die, at_start=at_start, restart=restart)
    driver.run._orders.add(order)
    with pytest.raises(JobFailedError, match=f"{order.location}.*do not balance.*--from") as failed:
        driver.go()
    assert isinstance(failed.value.__cause__, UserFunctionError)


def test_a_driver_whose_job_was_taken_over_meanwhile_does_not_fence_the_new_owner_off(tmp_path: Path) -> None:
    def die_while_another_takes_over() -> Outcome:
        driver.clock.advance(60_000)
        Lease(driver.storage, "job", clocks=driver.clocks).acquire()
        return DIED

    driver = Driver(tmp_path, die_while_another_takes_over)
    with pytest.raises(FencedError, match="was taken over"):
        driver.go()
    assert driver.run._directory.newest_attempt() == 1


def test_a_driver_that_is_overtaken_in_the_recovery_of_one_sink_touches_neither_it_nor_the_next(
    tmp_path: Path,
) -> None:
    def overtake(attempt: int) -> None:
        if attempt == 2:
            # As if this driver had been paused here, and another one had begun the next attempt meanwhile.
            successor = JobDirectory(FileSystemCheckpointStorage(str(tmp_path)), "job")
            successor.open_run()
            assert successor.claim_attempt() == 3

    driver = Driver(tmp_path, DIED, at_start=overtake)
    with pytest.raises(FencedError, match="attempt 3 took over"):
        driver.go()
    history = driver.run._directory.history
    assert history
    first = [
        f"out starts 1 of {history}",
        "out aborts before 1",
        f"second starts 1 of {history}",
        "second aborts before 1",
    ]
    assert driver.steps == [*first, f"out starts 2 of {history}"]


def test_pickled_records_are_loaded_from_own_checkpoints_but_not_from_one_that_a_person_names(tmp_path: Path) -> None:
    def publish_and_die() -> Outcome:
        driver.run._directory.publish(checkpoint_of(driver.run._directory))
        return DIED

    driver = Driver(tmp_path / "first", publish_and_die, DONE)
    driver.go()
    assert driver.loads_pickles == [True, True]

    elsewhere = JobDirectory(FileSystemCheckpointStorage(str(tmp_path / "elsewhere")), "job")
    elsewhere.open_run()
    elsewhere.claim_attempt()
    elsewhere.publish(checkpoint_of(elsewhere))
    named = str(tmp_path / "elsewhere/job/run-000001/chk-000001")
    for allowed in (False, True):
        driver = Driver(tmp_path / f"second-{allowed}", DIED, publish_and_die, DONE)
        settings = replace(driver.run._settings, restore_from=named, allow_pickle=allowed)
        driver.run._settings = driver.run._choice._settings = settings
        driver.go()
        # The second attempt has no checkpoint of its own yet, and begins from the same one.
        assert driver.loads_pickles == [allowed, allowed, True]


@pytest.mark.parametrize("how", ["the attempt fails", "the attempt cannot begin"])
def test_spark_that_died_is_the_cause_of_one_failure_and_is_replaced(tmp_path: Path, how: str) -> None:
    def die() -> Outcome:
        driver.spark.lost = SparkDiedError("Spark's JVM (pid 7) died: killed by signal 9.")
        if how == "the attempt fails":
            return DIED
        raise ConnectionRefusedError("[Errno 111] Connection refused")

    driver = Driver(tmp_path, die, die, DONE)
    driver.go()

    assert driver.failures == ["SparkDiedError", "SparkDiedError"]
    assert "pid 7" in driver.run.board.report.last_failure
    assert (driver.restarts, driver.spark.replaced) == (2, 2)


def test_spark_that_cannot_be_replaced_ends_the_job_at_once(tmp_path: Path) -> None:
    def die() -> Outcome:
        driver.spark.lost = SparkLostError("Spark's JVM died.")
        return DIED

    driver = Driver(tmp_path, die)
    with pytest.raises(SparkLostError):
        driver.go()
    assert driver.restarts == 0


def test_what_pyspark_raises_while_spark_is_alive_is_no_failure_to_restart(tmp_path: Path) -> None:
    def fail() -> Outcome:
        raise ConnectionRefusedError("somebody else's")

    with pytest.raises(ConnectionRefusedError):
        Driver(tmp_path, fail).go()


def test_a_fresh_start_leaves_the_old_run_behind_and_fences_off_its_driver(tmp_path: Path) -> None:
    def publish_and_die() -> Outcome:
        driver.run._directory.publish(checkpoint_of(driver.run._directory))
        return Outcome(End.SUSPENDED)

    driver = Driver(tmp_path, publish_and_die)
    driver.go()
    driver.storage.delete("job/run-000001/chk-000001/_metadata")
    again = Driver(tmp_path, DONE)
    with pytest.raises(CheckpointLostError, match=r"Checkpoint 1 .*--fresh"):
        again.run._attempts(again.spark)  # type: ignore[arg-type]

    fresh = Driver(tmp_path, DONE, fresh=True)
    fresh.run._lease.acquire(take_over=True)
    fresh.run._attempts(fresh.spark)  # type: ignore[arg-type]
    assert fresh.run.board.report.status is JobStatus.FINISHED
    assert fresh.run.board.report.restored_checkpoint is None
    assert fresh.run._directory.runs() == [1, 2]
    with pytest.raises(FencedError):
        driver.run._directory.assert_current(1)
