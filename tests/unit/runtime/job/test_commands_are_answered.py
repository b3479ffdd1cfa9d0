"""Cancel and suspend are answered, whatever storage, a sink's recovery or the end of the run does.

The driver, its job directory and its sink are real; what would start Spark and its tasks is played by a script.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headrace import RestartStrategies, StreamExecutionEnvironment
from headrace.checkpoint.job_directory import JobDirectory
from headrace.checkpoint.storage.filesystem import FileSystemCheckpointStorage
from headrace.connectors.sink import Committer, Sink, SinkWriter, WriterContext
from headrace.errors import FencedError, JobCanceledError
from headrace.runtime.coordinator.outcomes import End, Outcome, TaskDiedError
from headrace.runtime.job import runner
from headrace.runtime.job.attempt import AttemptStart
from headrace.runtime.job.runner import JobRun
from headrace.runtime.job.status import JobEvent, JobStatus

PATIENCE_S = 60.0
DIED = Outcome(End.FAILED, TaskDiedError("a worker was killed"))


class StuckStorage(FileSystemCheckpointStorage):
    """Answers no request of one kind for paths with a certain part in them, until it is released."""

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self.stuck: tuple[str, str] | None = None
        self.reached = threading.Event()
        self.released = threading.Event()

    def _answer(self, kind: str, path: str) -> None:
        if self.stuck is not None and self.stuck[0] == kind and self.stuck[1] in path:
            self.reached.set()
            assert self.released.wait(PATIENCE_S)

    def create_exclusive(self, path: str, data: bytes) -> None:
        self._answer("create", path)
        super().create_exclusive(path, data)

    def read(self, path: str) -> bytes:
        self._answer("read", path)
        return super().read(path)

    def list_names(self, directory: str, start: str = "") -> Sequence[str]:
        self._answer("list", f"{directory}/")
        return super().list_names(directory, start)

    def delete_tree(self, prefix: str) -> None:
        self._answer("delete", prefix)
        super().delete_tree(prefix)


class WaitingCommitter(Committer):
    def __init__(self, at_start: Callable[[int], None]) -> None:
        self._at_start = at_start

    def commit(self, items: Sequence[bytes]) -> None:
        raise AssertionError("there is nothing to commit")

    def attempt_starts(self, job_id: str, uid: str, attempt: int, parallelism: int) -> None:
        self._at_start(attempt)


class WaitingSink(Sink):
    def __init__(self, at_start: Callable[[int], None]) -> None:
        self._at_start = at_start

    def create_writer(self, context: WriterContext) -> SinkWriter:
        raise AssertionError("no task runs")

    def create_committer(self) -> Committer:
        return WaitingCommitter(self._at_start)


class ScriptedAttempt:
    next_checkpoint_id = 2

    def __init__(self, act: Callable[[], Outcome]) -> None:
        self.run = act


class SteadySpark:
    """Spark that is never lost."""

    handle = None

    def check(self, advise: Callable[[str], None]) -> None: ...

    def loss(self) -> None: ...

    def cause_of(self, error: Exception) -> Exception:
        return error

    def revive(self) -> None: ...


class Job:
    """A job in this process without Spark."""

    def __init__(self, home: Path, act: Callable[[], Outcome], at_start: Callable[[int], None]) -> None:
        env = StreamExecutionEnvironment.get_execution_environment()
        env.enable_checkpointing(1_000)
        env.from_collection([1]).sink_to(WaitingSink(at_start)).uid("out")
        plan, settings = env.build("job")
        self.storage = StuckStorage(str(home))
        checkpointing = replace(settings.checkpointing, storage=self.storage)
        restart = RestartStrategies.fixed_delay_restart(60, 0)
        self.run = JobRun(plan, replace(settings, checkpointing=checkpointing, restart=restart), None)
        self.events: list[JobEvent] = []
        self.run.board.event_listeners.append(self.events.append)
        script: Any = self.run
        script._session = lambda owned: SteadySpark()
        script._new_attempt = self._attempt
        script._ends.preflight = lambda handle: None
        self.attempts: list[int] = []
        self._act = act

    def _attempt(self, handle: Any, start: AttemptStart) -> Any:
        self.attempts.append(start.number)
        return ScriptedAttempt(self._act)

    @property
    def abandoned(self) -> list[dict[str, Any]]:
        return [event.detail for event in self.events if event.kind == "abandoned"]


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seconds are for people; the test waits for what happens, not for them."""
    monkeypatch.setattr(runner, "ANSWER_S", 0.2)


@pytest.fixture
def hold() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


@pytest.mark.parametrize(
    ("kind", "part", "step"),
    [
        ("list", "/run-", "claiming an attempt"),
        ("create", "attempt-", "claiming an attempt"),
        ("read", "restored-", "claiming an attempt"),
        ("create", "restored-", "recording what is restored"),
    ],
)
@pytest.mark.parametrize("command", ["cancel", "suspend"])
def test_storage_that_never_answers_between_attempts_keeps_nobody_who_wants_the_job_to_end(
    tmp_path: Path, kind: str, part: str, step: str, command: str
) -> None:
    def die() -> Outcome:
        job.storage.stuck = (kind, part)
        return DIED

    job = Job(tmp_path, die, lambda attempt: None)
    job.run.start()
    assert job.storage.reached.wait(PATIENCE_S)

    getattr(job.run, command)().result(PATIENCE_S)

    wanted = JobStatus.CANCELED if command == "cancel" else JobStatus.SUSPENDED
    assert job.run.board.report.status is wanted
    with pytest.raises(JobCanceledError):
        job.run.result.result(PATIENCE_S)
    (abandoned,) = job.abandoned
    assert abandoned["step"] == step
    assert (f"{job.storage.location}/job/run-000001" in abandoned["left"]) is (command == "cancel")
    job.storage.released.set()
    job.run._thread.join(PATIENCE_S)
    assert not job.run._thread.is_alive()
    assert job.attempts == [1], "nothing is started for a job that has ended"
    assert job.run.board.report.status is wanted


def test_a_committer_that_hangs_keeps_nobody_who_wants_the_job_to_end(tmp_path: Path, hold: threading.Event) -> None:
    hanging = threading.Event()

    def hang(attempt: int) -> None:
        hanging.set()
        hold.wait(PATIENCE_S)

    job = Job(tmp_path, lambda: DIED, hang)
    job.run.start()
    assert hanging.wait(PATIENCE_S)
    job.run.cancel().result(PATIENCE_S)
    assert [a["step"] for a in job.abandoned] == ["committing the output of the restored checkpoint"]
    hold.set()
    job.run._thread.join(PATIENCE_S)
    assert job.attempts == []


def test_checkpoints_that_cannot_be_removed_are_named_when_the_job_is_cancelled(tmp_path: Path) -> None:
    def be_cancelled() -> Outcome:
        job.storage.stuck = ("delete", "shared")
        job.run.cancel()
        return Outcome(End.CANCELED)

    job = Job(tmp_path, be_cancelled, lambda attempt: None)
    job.run.start()
    with pytest.raises(JobCanceledError):
        job.run.result.result(PATIENCE_S)
    (abandoned,) = job.abandoned
    assert abandoned["step"] == "removing checkpoints"
    assert "Delete that directory" in abandoned["left"]
    assert job.run.board.report.status is JobStatus.CANCELED
    job.storage.released.set()
    job.run._thread.join(PATIENCE_S)


def test_a_start_that_storage_held_up_does_not_fence_off_the_next_one(tmp_path: Path) -> None:
    def die() -> Outcome:
        job.storage.stuck = ("list", "/run-")
        return DIED

    job = Job(tmp_path, die, lambda attempt: None)
    job.run.start()
    assert job.storage.reached.wait(PATIENCE_S)
    job.run.suspend().result(PATIENCE_S)

    next_one = JobDirectory(FileSystemCheckpointStorage(str(tmp_path)), "job")
    next_one.open_run()
    number = next_one.claim_attempt()
    job.storage.released.set()
    job.run._thread.join(PATIENCE_S)

    next_one.assert_current(number)
    with pytest.raises(FencedError, match="has ended in this process"):
        job.run._directory.claim_attempt()


def test_a_job_that_obeys_in_time_is_not_abandoned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "ANSWER_S", PATIENCE_S)

    def be_cancelled() -> Outcome:
        job.run.cancel()
        return Outcome(End.CANCELED)

    job = Job(tmp_path, be_cancelled, lambda attempt: None)
    job.run.start()
    job.run._stopped.result(PATIENCE_S)
    assert job.abandoned == []
    assert job.run.board.report.status is JobStatus.CANCELED
