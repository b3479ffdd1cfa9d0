"""A job from `execute()` to its end: session, ownership, and one attempt after the other."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from headrace.checkpoint.claims import claim, claimant, remove_claimed
from headrace.checkpoint.job_directory import JobDirectory
from headrace.checkpoint.lease import Lease
from headrace.checkpoint.location import MissingCheckpointError, OpenedCheckpoint, open_checkpoint
from headrace.checkpoint.metadata.model import CheckpointMetadata
from headrace.checkpoint.savepoint import savepoint_location
from headrace.errors import (
    CommitFailedError,
    CommitOutcomeUnknownError,
    ConfigurationError,
    FencedError,
    HeadraceError,
    JobCanceledError,
    JobDefinitionError,
    JobFailedError,
    JobOwnedError,
    OutputLostError,
    RestoreError,
    StorageError,
    UserFunctionError,
)
from headrace.operators.factories import SinkFactory
from headrace.plan.graph import JobPlan
from headrace.plan.settings import ExternalizedCheckpointRetention, JobSettings
from headrace.runtime.job.attempt import Attempt
from headrace.runtime.job.client import JobClient, JobExecutionResult
from headrace.runtime.job.collected import CollectedResults
from headrace.runtime.job.observers import attach_observers
from headrace.runtime.job.outcomes import (
    Command,
    End,
    Outcome,
    OwnershipLost,
    SavepointWanted,
    SourcePositions,
)
from headrace.runtime.job.requests import RequestServer, serve_requests
from headrace.runtime.job.restoration import Restoration
from headrace.runtime.job.savepoints import SavepointOrder, SavepointOrders
from headrace.runtime.job.status import JobStatus, StatusBoard, StatusReport, now_ms
from headrace.runtime.spark.preflight import preflight, require
from headrace.runtime.spark.session import SparkHandle, obtain_session

LEASE_RENEWAL_S = 2.0

_NO_RESTART = (ConfigurationError, JobDefinitionError, RestoreError, FencedError, JobOwnedError, OutputLostError)
"""Trying again cannot help."""


class JobRun:
    """One run of a job in this process. Made and started by `start_job`."""

    def __init__(self, plan: JobPlan, settings: JobSettings, spark: Any | None) -> None:
        self._plan = plan
        self._settings = settings
        self._spark = spark
        self.job_id = settings.job_id
        self.name = settings.name
        self.collected = CollectedResults()
        self.board = StatusBoard(StatusReport(job_id=settings.job_id, name=settings.name, pid=os.getpid()))
        self.result: Future[JobExecutionResult] = Future()
        self._stopped: Future[None] = Future()
        self._events: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._orders = SavepointOrders()
        self._requests: RequestServer | None = None
        self._command: str | None = None
        self._wanted = threading.Event()
        self._started_ms = now_ms()
        self._asked = ""
        """Where what was asked for with --from lies."""
        self._directory = JobDirectory(settings.checkpointing.storage, settings.job_id)
        self._lease = Lease(settings.checkpointing.storage, settings.job_id)
        self._thread = threading.Thread(target=self._run, name=f"job-{settings.job_id}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def cancel(self) -> Future[None]:
        return self._order("cancel")

    def suspend(self) -> Future[None]:
        return self._order("suspend")

    def order_savepoint(
        self, directory: str | None = None, *, stop: bool = False, drain: bool = False
    ) -> SavepointOrder:
        """Ask for a savepoint below `directory`. Raises at once if nothing can be written there."""
        if drain and not stop:
            raise ConfigurationError("drain sends the end of event time into the stream: it goes with stop only.")
        settings = self._settings
        parent = directory or settings.savepoint_dir
        order = SavepointOrder(
            savepoint_location(parent, settings.checkpointing.storage, settings.job_id), stop=stop, drain=drain
        )
        if self._orders.add(order):
            self._events.put(SavepointWanted(order))
        return order

    def _order(self, command: str) -> Future[None]:
        if self._command is None:
            self._command = command
            self._wanted.set()
            self._events.put(Command(command))
        return self._stopped

    # -- the runner's thread

    def _run(self) -> None:
        error: BaseException | None = None
        try:
            self._observers = attach_observers(self.board, self._settings)
            self._requests = serve_requests(self)
            self._run_owned()
        except BaseException as caught:
            error = caught
        finally:
            self._finish(error)

    def _finish(self, error: BaseException | None) -> None:
        if error is not None:
            self.board.update(status=JobStatus.FAILED, last_failure=str(error))
        report = self.board.report
        order = self._orders.stopped
        if order is not None and report.status is JobStatus.FINISHED:
            # Only now: the lease is given back, so whoever hears of it may start the job again at once.
            self._orders.complete(order)
        self._orders.end(f'Job "{self._settings.name}" has ended ({report.status.value}).')
        for close in getattr(self, "_observers", ()):
            close()
        self.collected.end()
        self._stopped.set_result(None)
        if self._requests is not None:
            # Before the result, at which a program may end its process: whoever asked from outside is told first.
            self._requests.close()
        if error is not None:
            self.result.set_exception(error)
        elif report.status is JobStatus.FINISHED:
            self.result.set_result(
                JobExecutionResult(
                    job_id=self.job_id,
                    name=self._settings.name,
                    net_runtime_ms=now_ms() - self._started_ms,
                    restarts=report.restarts,
                    checkpoints=report.checkpoints_completed,
                    records_read=report.records_read,
                    records_written=report.records_written,
                )
            )
        else:
            self.result.set_exception(
                JobCanceledError(f'Job "{self._settings.name}" was {report.status.value.lower()}.')
            )

    def _run_owned(self) -> None:
        """Own the job's directory and a Spark session for as long as attempts go on."""
        for node in self._plan.graph.nodes:
            if isinstance(node.factory, SinkFactory):
                node.factory.sink.preflight_for(node.parallelism, self._settings.checkpointing.max_concurrent)
        self._lease.acquire(self._settings.take_over)
        renewing = threading.Thread(target=self._renew, name="lease", daemon=True)
        self._over = threading.Event()
        renewing.start()
        try:
            handle = obtain_session(
                self._spark,
                self._plan.total_slots,
                self._plan.largest_level,
                self._settings.name,
                self._settings.master,
            )
            try:
                require(preflight(handle, self._plan.total_slots))
                self._attempts(handle)
            finally:
                handle.stop()
        finally:
            self._over.set()
            renewing.join(LEASE_RENEWAL_S * 2)
            # It may be somebody else's by now, or storage may be gone: then it expires by itself.
            with contextlib.suppress(HeadraceError):
                self._lease.release()

    def _renew(self) -> None:
        while not self._over.wait(LEASE_RENEWAL_S):
            try:
                self._lease.renew()
            except (FencedError, JobOwnedError) as error:
                self._events.put(OwnershipLost(str(error)))
                return
            except StorageError:
                continue

    def _attempts(self, handle: SparkHandle) -> None:
        run = self._directory.open_run()
        session = self._settings.restart.session()
        positions: SourcePositions | None = None
        first = True
        while True:
            outcome, positions = self._attempt(handle, run, positions, first=first)
            first = False
            order = self._orders.stopped
            self._orders.end_attempt("the job failed before it was complete")
            if order is not None and outcome.end is not End.FINISHED and not isinstance(outcome.error, _NO_RESTART):
                outcome = self._finish_stop(order, outcome)
            match outcome.end:
                case End.FINISHED:
                    self._end_run("FINISHED", JobStatus.FINISHED)
                    return
                case End.GOING_BACK:
                    self.board.update(status=JobStatus.RESTARTING, last_failure=str(outcome.error))
                    self.board.event("going-back", reason=str(outcome.error))
                case End.CANCELED:
                    self._end_run("CANCELED", JobStatus.CANCELED)
                    return
                case End.SUSPENDED:
                    self.board.update(status=JobStatus.SUSPENDED)
                    return
                case End.FAILED:
                    self._decide(outcome, session)
            if self._command is not None:
                continue_with = self._command
                if continue_with == "cancel":
                    self._end_run("CANCELED", JobStatus.CANCELED)
                else:
                    self.board.update(status=JobStatus.SUSPENDED)
                return

    def _decide(self, outcome: Outcome, session: Any) -> None:
        """Wait for the next attempt, or give up."""
        error = outcome.error
        assert error is not None
        self.board.event("failure", error=type(error).__name__, message=str(error))
        if isinstance(error, _NO_RESTART):
            raise error
        delay_ms = session.on_failure(now_ms())
        if delay_ms is None:
            self._raise_final(error)
        self.board.update(status=JobStatus.RESTARTING, restarts=self.board.report.restarts + 1)
        self.board.event("restarting", delay_ms=delay_ms)
        self._wanted.wait(delay_ms / 1_000)

    def _raise_final(self, error: HeadraceError) -> None:
        if isinstance(error, UserFunctionError):
            raise error
        raise JobFailedError(
            f'Job "{self._settings.name}" failed and is not restarted ({self._settings.restart.describe()}): {error}'
        ) from error

    def _attempt(
        self, handle: SparkHandle, run: int, positions: SourcePositions | None, *, first: bool
    ) -> tuple[Outcome, SourcePositions | None]:
        directory = self._directory
        number = directory.claim_attempt()
        metadata, outside = self._choose(first)
        storage, source = (None, "") if outside is None else (outside.storage, outside.path)
        restoration = Restoration.of(
            self._plan, metadata, storage, allow_non_restored=self._settings.allow_non_restored
        )
        if restoration.restore is not None and restoration.restore.dropped:
            self.board.event("left-behind", what=restoration.restore.dropped)
        claimed = self._claim(outside)
        own_id = metadata.checkpoint_id if metadata is not None and not source else None
        directory.record_restored(number, own_id, source)
        try:
            restoration.commit_sinks(self.job_id, number, self.collected, directory.storage)
        except (CommitFailedError, CommitOutcomeUnknownError) as error:
            return Outcome(End.FAILED, error), None
        retained = [directory.load(ref) for ref in directory.completed()] if not source else []
        self._drop_orphans()
        self.board.update(attempt=number, restored_checkpoint=None if metadata is None else metadata.checkpoint_id)
        self._forget_old_events()
        attempt = Attempt(
            plan=self._plan,
            settings=self._settings,
            handle=handle,
            directory=directory,
            number=number,
            run=run,
            restoration=restoration,
            retained=retained,
            events=self._events,
            board=self.board,
            collected=self.collected,
            orders=self._orders,
            resume=positions,
            first_complete=(lambda: None) if claimed is None else (lambda: remove_claimed(claimed)),
        )
        outcome = attempt.run()
        off = not self._settings.checkpointing.enabled
        return outcome, attempt.positions() if off and outcome.end in (End.FAILED, End.GOING_BACK) else None

    def _choose(self, first: bool) -> tuple[CheckpointMetadata | None, OpenedCheckpoint | None]:
        """The checkpoint to restore, and where it lies if outside.

        In this order: what was asked for, at the first start; a savepoint that was to stop the job and that the
        driver did not live to see through; the newest of this run; what this run began from.
        """
        asked = self._settings.restore_from
        if asked and first:
            return self._outside(asked)
        stopping = self._directory.stopping_savepoint()
        if stopping is not None:
            # Not published: then nothing was committed, and the newest checkpoint is the one to go on from.
            with contextlib.suppress(MissingCheckpointError):
                return self._outside(stopping)
        newest = self._directory.newest()
        if newest is not None:
            return self._directory.load(newest), None
        source = self._directory.restored_source()
        return self._outside(source) if source else (None, None)

    def _outside(self, path: str) -> tuple[CheckpointMetadata, OpenedCheckpoint]:
        opened = open_checkpoint(path)
        if path == self._settings.restore_from:
            self._asked = opened.path
        return opened.metadata, opened

    def _claim(self, outside: OpenedCheckpoint | None) -> OpenedCheckpoint | None:
        """What of outside this job owns from now on: what --claim says, or said when this run began from it."""
        if outside is None:
            return None
        storage = self._settings.checkpointing.storage
        if outside.path == self._asked:
            if not self._settings.claim:
                return None
            claim(outside, self.job_id, storage)
            return outside
        owner = claimant(outside)
        return (
            outside if owner is not None and (owner.job_id, owner.storage) == (self.job_id, storage.location) else None
        )

    def _finish_stop(self, order: SavepointOrder, outcome: Outcome) -> Outcome:
        """The savepoint that stops the job is complete, but the attempt ended before all its output was committed.

        To go back to an older checkpoint would write that output twice, and to stop without it would lose it: so
        the driver commits it, as it does at the beginning of an attempt.
        """
        self.board.event("failure", error=type(outcome.error).__name__, message=str(outcome.error))
        order.progress = "complete; the driver commits what its tasks could not"
        number = self._directory.claim_attempt()
        opened = open_checkpoint(order.location)
        restoration = Restoration.of(self._plan, opened.metadata, opened.storage, allow_non_restored=True)
        self._directory.record_restored(number, None, opened.path)
        try:
            restoration.commit_sinks(self.job_id, number, self.collected, self._directory.storage)
        except (CommitFailedError, CommitOutcomeUnknownError) as error:
            raise JobFailedError(
                f'Job "{self._settings.name}" stopped with savepoint {order.location}, but not all of its output could '
                f"be committed: {error} Start it from the savepoint with --from: that commits the rest."
            ) from error
        return Outcome(End.FINISHED)

    def _drop_orphans(self) -> None:
        try:
            self._directory.drop(self._directory.orphans())
        except FencedError:
            raise
        except StorageError as error:
            self.board.event("storage-trouble", reason=str(error))

    def _forget_old_events(self) -> None:
        """Messages of the attempt before must not reach the next one; commands stay."""
        kept = []
        while True:
            try:
                event = self._events.get_nowait()
            except queue.Empty:
                break
            if isinstance(event, Command | OwnershipLost | SavepointWanted):
                kept.append(event)
        for event in kept:
            self._events.put(event)

    def _end_run(self, ending: Any, status: JobStatus) -> None:
        keep = ExternalizedCheckpointRetention.RETAIN_ON_CANCELLATION
        self._directory.end(ending)
        if self._settings.checkpointing.retention is not keep:
            self._directory.delete_checkpoints()
        self.board.update(status=status)


def start_job(plan: JobPlan, settings: JobSettings, spark: Any | None) -> JobClient:
    """Start a job and return at once."""
    run = JobRun(plan, settings, spark)
    run.start()
    return JobClient(run)


def execute_job(plan: JobPlan, settings: JobSettings, spark: Any | None) -> JobExecutionResult:
    """Run a job to its end. Ctrl-C suspends it: everything is kept, and the same program goes on from there."""
    run = JobRun(plan, settings, spark)
    run.start()
    interrupted = threading.Event()

    def interrupt() -> None:
        interrupted.set()
        run.suspend()

    restore = _OwnInterrupt(interrupt)
    try:
        # In slices: a main thread that blocks for good would not run signal handlers on every platform.
        while not run.result.done():
            _wait(run.result, 0.2)
            restore.refresh()
    finally:
        restore.undo()
    if interrupted.is_set() and run.board.report.status is JobStatus.SUSPENDED:
        raise KeyboardInterrupt
    return run.result.result()


def _wait(future: Future[Any], timeout: float) -> None:
    done = threading.Event()
    future.add_done_callback(lambda _: done.set())
    done.wait(timeout)


class _OwnInterrupt:
    """Our own SIGINT handler while a job runs: PySpark's would cancel the Spark job before we know why."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._call = call
        self._main = threading.current_thread() is threading.main_thread()
        self._before = signal.getsignal(signal.SIGINT) if self._main else None
        self.refresh()

    def refresh(self) -> None:
        """PySpark installs its handler when the session is made, which is later than ours."""
        if self._main and signal.getsignal(signal.SIGINT) is not self._handle_signal:
            self._handle_signal = self._handle
            signal.signal(signal.SIGINT, self._handle_signal)

    _handle_signal: Any = None

    def _handle(self, signum: int, frame: Any) -> None:
        self._call()

    def undo(self) -> None:
        if self._main and self._before is not None:
            signal.signal(signal.SIGINT, self._before)
