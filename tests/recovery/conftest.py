"""What recovery tests share: planned faults, environments for the ledger, and jobs that are watched."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from programs import Program

from headrace import (
    CheckpointingMode,
    EmbeddedRocksDBStateBackend,
    HashMapStateBackend,
    RestartStrategies,
    StreamExecutionEnvironment,
    failpoints,
)

PATIENCE_S = 180.0
"""For what takes a moment, unless the machine is busy with something else."""


@pytest.fixture(autouse=True)
def _own_status_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_STATE_DIR", str(tmp_path / "status"))


@dataclass
class Faults:
    """The faults a test plans, and those that happened, from the fault log."""

    log: Path
    monkeypatch: pytest.MonkeyPatch
    planned: int = 0

    def plan(self, *faults: str) -> Faults:
        """Faults in the notation of `HEADRACE_FAILPOINTS`; each happens once."""
        text = "; ".join(faults)
        self.planned = len(faults)
        self.monkeypatch.setenv("HEADRACE_FAILPOINTS", text)
        self.monkeypatch.setenv("HEADRACE_FAULT_LOG", str(self.log))
        failpoints.configure(text, self.log)
        return self

    @property
    def happened(self) -> list[str]:
        return sorted(os.listdir(self.log)) if self.log.is_dir() else []

    def environment(self) -> dict[str, str]:
        """For a process of its own."""
        return {name: os.environ[name] for name in ("HEADRACE_FAILPOINTS", "HEADRACE_FAULT_LOG") if name in os.environ}


@pytest.fixture
def faults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Faults]:
    monkeypatch.delenv("HEADRACE_FAILPOINTS", raising=False)
    yield Faults(tmp_path / "faults", monkeypatch)
    failpoints.configure("", None)


BACKENDS = {"heap": HashMapStateBackend, "rocksdb": EmbeddedRocksDBStateBackend}
MODES = ("aligned", "unaligned", "timeout", "at-least-once")


@dataclass
class Bench:
    """Makes environments whose checkpoints lie in the test's own directory."""

    directory: Path
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def storage(self) -> str:
        return f"file://{self.directory}/checkpoints"

    def env(
        self,
        *,
        parallelism: int = 2,
        backend: str = "heap",
        mode: str = "aligned",
        interval: int | None = 100,
        restarts: int = 20,
        aligned_timeout: int = 20,
    ) -> StreamExecutionEnvironment:
        env = StreamExecutionEnvironment.get_execution_environment()
        env.set_parallelism(parallelism)
        config = env.get_checkpoint_config()
        if interval is not None:
            env.enable_checkpointing(interval)
        if mode == "at-least-once":
            config.set_checkpointing_mode(CheckpointingMode.AT_LEAST_ONCE)
        if mode in ("unaligned", "timeout"):
            config.enable_unaligned_checkpoints()
            config.set_aligned_checkpoint_timeout(aligned_timeout if mode == "timeout" else 0)
        config.set_checkpoint_storage(self.storage)
        env.set_state_backend(BACKENDS[backend]())
        env.set_restart_strategy(RestartStrategies.fixed_delay_restart(restarts, 20))
        return env


@pytest.fixture
def programs() -> Iterator[list[Program]]:
    """Programs that a test has started; those still alive at its end are killed."""
    started: list[Program] = []
    yield started
    for program in started:
        if program.process.poll() is None:
            program.kill_tree()


@pytest.fixture
def bench(tmp_path: Path, spark_slots: Any) -> Bench:
    return Bench(tmp_path)


class Events(list[Any]):
    """All events of a job, in order; a test may wait for one."""

    def __init__(self) -> None:
        super().__init__()
        self.told = threading.Condition()

    def take(self, event: Any) -> None:
        with self.told:
            self.append(event)
            self.told.notify_all()


@dataclass
class Watched:
    """A running job with every event of it that was told."""

    client: Any
    events: Events

    def wait_for(self, kind: str, matching: Callable[[dict[str, Any]], bool] = lambda detail: True) -> dict[str, Any]:
        """The first event of that kind, past or to come, that matches; ends early if the job does."""
        self.client.get_job_execution_result().add_done_callback(lambda _: self._nudge())
        deadline = time.monotonic() + PATIENCE_S
        with self.events.told:
            while True:
                for event in self.events:
                    if event.kind == kind and matching(event.detail):
                        return event.detail
                ended = self.client.get_job_execution_result().done()
                assert not ended, f"the job ended without {kind}: {self.report}"
                assert time.monotonic() < deadline, f"no {kind} within {PATIENCE_S:g} s: {self.report}"
                self.events.told.wait(5)

    def wait_until_read(self, records: int) -> None:
        """Until sources have read so many in all, and a checkpoint that began later is complete."""
        deadline = time.monotonic() + PATIENCE_S
        while self.report.records_read < records:
            assert time.monotonic() < deadline, f"not read within {PATIENCE_S:g} s: {self.report}"
            time.sleep(0.02)
        known = max((checkpoint["checkpoint_id"] for checkpoint in self.kinds("checkpoint")), default=0)
        # One may have been under way.
        self.wait_for("checkpoint", lambda checkpoint: checkpoint["checkpoint_id"] > known + 1)

    def _nudge(self) -> None:
        with self.events.told:
            self.events.told.notify_all()

    def suspend(self) -> None:
        self.client.suspend().result(PATIENCE_S)

    def kinds(self, kind: str) -> list[dict[str, Any]]:
        return [event.detail for event in self.events if event.kind == kind]

    @property
    def report(self) -> Any:
        return self.client.get_status_report()

    def finish(self, timeout: float = 300) -> Any:
        return self.client.get_job_execution_result().result(timeout)


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Watched]]:
    """Start a job and watch its events from the first on; jobs still alive at the end of the test are cancelled."""
    from headrace.runtime.job.runner import JobRun

    jobs: list[Watched] = []
    waiting: list[Events] = []
    begin = JobRun.start

    def start_watched(run: JobRun) -> None:
        if waiting:
            run.board.event_listeners.append(waiting.pop().take)
        begin(run)

    monkeypatch.setattr(JobRun, "start", start_watched)

    def start(env: StreamExecutionEnvironment, name: str = "ledger") -> Watched:
        events = Events()
        waiting.append(events)
        job = Watched(env.execute_async(name), events)
        jobs.append(job)
        return job

    yield start
    for job in jobs:
        if not job.client.get_job_execution_result().done():
            job.client.cancel().result(PATIENCE_S)
