"""A job from `execute()` to its end: session, ownership, and one attempt after the other."""

from __future__ import annotations

import contextlib
import os
import threading
from concurrent.futures import Future, wait
from functools import partial
from typing import Any

from headrace.checkpoint.claims import remove_claimed
from headrace.checkpoint.job_directory import JobDirectory
from headrace.checkpoint.lease import Lease
from headrace.checkpoint.local_copies import LocalCopies
from headrace.checkpoint.location import open_checkpoint
from headrace.checkpoint.metadata.model import CheckpointMetadata
from headrace.checkpoint.savepoint import savepoint_location
from headrace.checkpoint.storage.paths import WriterScope
from headrace.checkpoint.survey import Survey
from headrace.clocks import SYSTEM_CLOCKS, Clocks
from headrace.errors import (
    CommitFailedError,
    CommitOutcomeUnknownError,
    ConfigurationError,
    FencedError,
    HeadraceError,
    JobCanceledError,
    JobFailedError,
    JobOwnedError,
    StorageError,
)
from headrace.operators.factories import SinkFactory
from headrace.plan.graph import JobPlan
from headrace.plan.settings import ExternalizedCheckpointRetention, JobSettings
from headrace.runtime.coordinator.events import Command, OwnershipLost, SavepointWanted
from headrace.runtime.coordinator.inbox import Inbox
from headrace.runtime.coordinator.outcomes import End, Outcome, SourcePositions
from headrace.runtime.coordinator.savepoints import SavepointOrder, SavepointOrders
from headrace.runtime.job.attempt import Attempt, AttemptStart, JobWorld
from headrace.runtime.job.checkpoint_choice import CheckpointChoice
from headrace.runtime.job.client import JobClient, JobExecutionResult
from headrace.runtime.job.collected import CollectedResults
from headrace.runtime.job.ending import Ending
from headrace.runtime.job.exclusive_create import goes_by_the_jvm
from headrace.runtime.job.interrupts import Interrupts
from headrace.runtime.job.observers import attach_observers
from headrace.runtime.job.printer import STDOUT
from headrace.runtime.job.requests import RequestServer, serve_requests
from headrace.runtime.job.restarts import Positions, Restarts, positions_of
from headrace.runtime.job.restoration import Restoration
from headrace.runtime.job.restore_check import check_restore
from headrace.runtime.job.rewind_check import point_of
from headrace.runtime.job.spark_application import SparkApplication
from headrace.runtime.job.spark_ends import SparkEnds
from headrace.runtime.job.status import JobStatus, StatusBoard, StatusReport
from headrace.runtime.spark.session import SparkHandle
from headrace.runtime.task.local_directory import remove_abandoned

LEASE_RENEWAL_S = 2.0
LOOK_EVERY_S = 0.2
ANSWER_S = 4.0
"""`cancel` and Ctrl-C are answered within 5 s. Whatever keeps the job's thread by then is abandoned."""
SPARK_STOP_S = 30.0


class JobRun:
    """One run of a job in this process. Made and started by `start_job`."""

    def __init__(self, plan: JobPlan, settings: JobSettings, spark: Any | None, clocks: Clocks = SYSTEM_CLOCKS) -> None:
        self._plan = plan
        self._settings = settings
        self._spark = spark
        self._clocks = clocks
        self.job_id = settings.job_id
        self.name = settings.name
        self.collected = CollectedResults(plan)
        self.board = StatusBoard(StatusReport(job_id=settings.job_id, name=settings.name, pid=os.getpid()))
        self.result: Future[JobExecutionResult] = Future()
        self._stopped: Future[None] = Future()
        self._inbox = Inbox()
        self._orders = SavepointOrders()
        self._requests: RequestServer | None = None
        self._command: Command | None = None
        self._wanted = threading.Event()
        self._ending = Ending()
        """Whether this thread may go on: a command that is not obeyed in time ends the job without it."""
        self._started_ms = clocks.steady_ms()
        self._began = False
        """An attempt has written down what it starts from: what was asked for with --from has been heeded."""
        self._directory = JobDirectory(settings.checkpointing.storage, settings.job_id, clocks=clocks)
        self._choice = CheckpointChoice(plan, settings, self._directory)
        self._over: threading.Event | None = None
        self._run_number = 0
        self._next_checkpoint_id = 0
        """Of the attempt before: an id that one of ours may still be publishing is not used again."""
        self._ends = SparkEnds(plan, settings, self._directory)
        self._world = JobWorld(
            plan, settings, self._directory, self._inbox, self.board, self.collected, self._orders, clocks
        )
        self._lease = Lease(settings.checkpointing.storage, settings.job_id, clocks=clocks)
        self._thread = threading.Thread(target=self._run, name=f"job-{settings.job_id}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def cancel(self) -> Future[None]:
        return self._order(Command.CANCEL)

    def suspend(self) -> Future[None]:
        return self._order(Command.SUSPEND)

    def order_savepoint(
        self, directory: str | None = None, *, stop: bool = False, drain: bool = False
    ) -> SavepointOrder:
        """Ask for a savepoint below `directory`. Raises at once if nothing can be written there."""
        if drain and not stop:
            raise ConfigurationError("drain sends the end of event time into the stream: it goes with stop only.")
        settings = self._settings
        if settings.batch:
            raise ConfigurationError(
                f'Job "{settings.name}" runs in batch mode, which takes no savepoints. Cancel it, or run it in '
                "streaming mode."
            )
        parent = directory or settings.savepoint_dir
        order = SavepointOrder(
            savepoint_location(parent, settings.checkpointing.storage, settings.job_id), stop=stop, drain=drain
        )
        if self._orders.add(order):
            self._inbox.put(SavepointWanted(order))
        return order

    def _order(self, command: Command) -> Future[None]:
        if self._command is None:
            self._command = command
            self._wanted.set()
            self._inbox.put(command)
            threading.Thread(target=self._see_to_it, name="command", daemon=True).start()
        return self._stopped

    def _see_to_it(self) -> None:
        """End the job without its thread if that does not get on: storage, a sink or user code keeps it."""
        if self._ending.ends_within(ANSWER_S):
            return
        step = self._ending.abandon(SPARK_STOP_S)
        if step is None:
            return
        self._directory.retire()
        if self._over is not None:
            self._over.set()
        status = JobStatus.CANCELED if self._command is Command.CANCEL else JobStatus.SUSPENDED
        self.board.event("abandoned", step=step, left=self._left_behind(status))
        self.board.update(status=status)
        self._answer(None)

    def _left_behind(self, status: JobStatus) -> str:
        """What a cancelled job could not remove, and how to; empty if nothing was to be removed."""
        storage = self._settings.checkpointing.storage.location
        if status is JobStatus.SUSPENDED or storage.startswith("memory:"):
            return ""
        run = f"/run-{self._run_number:06d}" if self._run_number else ""
        return (
            f"Checkpoints may be left in {storage}/{self.job_id}{run}, and a start of the job would go on from them. "
            "Delete that directory, or start the job and cancel it again."
        )

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
            if self._ending.end():
                self._answer(error)

    def _answer(self, error: BaseException | None) -> None:
        """The job is over: tell everybody who waits for it. Called once."""
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
        STDOUT.flush()
        self.collected.end()
        self._ends.close()
        # Of tasks that were killed on this host; elsewhere the job's next ones do so.
        remove_abandoned(self._settings.job_id)
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
                    net_runtime_ms=self._clocks.steady_ms() - self._started_ms,
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
        """Own the job's directory and a Spark session for as long as attempts go on.

        Whatever may refuse the job comes before the lease, the first file in its directory: a start that is refused
        leaves nothing behind.
        """
        for node in self._plan.graph.nodes:
            if isinstance(node.factory, SinkFactory):
                node.factory.sink.preflight_for(node.parallelism, self._settings.checkpointing.max_concurrent)
        storage = self._settings.checkpointing.storage
        # Nobody need start Spark to be told that there is no room for the job, or that it is running.
        self._ending.step("looking at the checkpoint storage")
        storage.check_writable()
        by_jvm = goes_by_the_jvm(storage)
        if not self._settings.take_over and not by_jvm:
            self._lease.look()
        if not by_jvm:
            storage.check_exclusive_create()
            self._rehearse()
        with contextlib.ExitStack() as owned:
            self._ending.step("starting Spark")
            spark = self._session(owned)
            if by_jvm:
                self._rehearse()
            spark.check(self._advise)
            self._ending.step("looking at the job's input and output")
            self._ends.preflight(spark.handle)
            if by_jvm:
                storage.check_exclusive_create()
            self._ending.step("acquiring the job's lease")
            self._own(owned)
            self._attempts(spark)
            self._ending.step("giving the job's lease back")

    def _own(self, owned: contextlib.ExitStack) -> None:
        """Acquire the lease and renew it until the stack unwinds."""
        self._lease.acquire(self._settings.take_over)
        renewing = threading.Thread(target=self._renew, name="lease", daemon=True)
        self._over = over = threading.Event()
        renewing.start()

        def give_back() -> None:
            over.set()
            renewing.join(LEASE_RENEWAL_S * 2)
            # It may be somebody else's by now, or storage may be gone: then it expires by itself.
            with contextlib.suppress(HeadraceError):
                self._lease.release()

        owned.callback(give_back)

    def _session(self, owned: contextlib.ExitStack) -> SparkApplication:
        """The Spark application for all attempts, given back when the stack unwinds."""
        spark = SparkApplication(self._plan, self._settings, self._spark, holds_frames=bool(self._ends.feeds))
        owned.callback(spark.stop)
        owned.callback(self._ending.stops_spark)
        return spark

    def _advise(self, text: str) -> None:
        self.board.event("advice", text=text)

    def _rehearse(self) -> None:
        """Refuse what the first attempt would restore if it is damaged, or if the program cannot take it.

        Nothing is written. A driver that still runs the job may drop the checkpoint meanwhile (--take-over): problems
        of one that is not the newest any more do not count.
        """
        if self._settings.fresh:
            return
        self._directory.open_run()
        metadata, outside = self._choice.choose(self._directory.survey(), first=True)
        while metadata is not None:
            storage = self._directory.storage if outside is None else outside.storage
            check = check_restore(self._plan, metadata, storage, allow_non_restored=self._settings.allow_non_restored)
            if not check.problems:
                return
            checked, (metadata, outside) = metadata, self._choice.choose(self._directory.survey(), first=True)
            if metadata == checked:
                check.require()

    def _renew(self) -> None:
        assert self._over is not None
        away = False
        while not self._over.wait(LEASE_RENEWAL_S):
            try:
                self._lease.renew()
                away = False
            except (FencedError, JobOwnedError) as error:
                self._inbox.put(OwnershipLost(str(error)))
                return
            except (StorageError, ConfigurationError) as error:
                # Nobody else is known to run the job: it goes on, and reports this once until storage is back.
                # ConfigurationError: storage that is written by Spark's JVM, while that is being replaced.
                if not away:
                    self.board.event("storage-trouble", reason=str(error))
                away = True

    def _attempts(self, spark: SparkApplication) -> None:
        self._ending.step("opening the job's directory")
        run = self._run_number = self._open_run()
        checkpointed = self._settings.checkpointing.enabled or self._settings.batch
        restarts = Restarts(self._settings.restart, self._settings.name, replays=checkpointed)
        positions: SourcePositions | None = None
        started = False
        while True:
            attempt: Attempt | None = None
            try:
                self._ending.step("checking that Spark is alive")
                spark.revive()
                self._ending.step("renewing the job's lease")
                if started:
                    # Storage may have been away so long that somebody else runs the job: that one is not fenced off.
                    self._lease.renew()
                outcome, attempt = self._attempt(spark.handle, run, positions, first=not self._began)
            except Exception as error:
                # The user who starts a job is told at once what is wrong. Later it is one more failure, as in a task.
                # PySpark's errors are failures where Spark is gone.
                cause = spark.cause_of(error)
                if not isinstance(cause, HeadraceError) or (cause is error and not started):
                    raise
                outcome = Outcome(End.FAILED, cause)
            else:
                if outcome.error is not None and outcome.error.retryable:
                    outcome = Outcome(outcome.end, spark.loss() or outcome.error)
            started = True
            order = self._orders.stopped
            self._orders.end_attempt("the job failed before it was complete")
            # Whose job it is no more must not commit; any other error leaves a complete savepoint to be finished.
            is_owner = not isinstance(outcome.error, FencedError | JobOwnedError)
            if order is not None and outcome.end is not End.FINISHED and is_owner:
                outcome = self._finish_stop(spark, order, outcome, restarts)
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
                    self._decide(outcome, restarts)
            if self._command is not None:
                if self._command is Command.CANCEL:
                    self._end_run("CANCELED", JobStatus.CANCELED)
                else:
                    self.board.update(status=JobStatus.SUSPENDED)
                return
            if attempt is not None and not checkpointed:
                positions = attempt.positions()

    def _open_run(self) -> int:
        """The run to go on with; with --fresh a new one, which restores nothing."""
        directory = self._directory
        run = directory.open_run()
        if self._settings.fresh and run in directory.runs():
            directory.claim_attempt()  # a driver that still works on the old run is fenced off
            directory.end("ABANDONED")
            run = directory.open_run()
        return run

    def _decide(self, outcome: Outcome, restarts: Restarts) -> None:
        """Wait for the next attempt, or raise what ends the job."""
        error = outcome.error
        assert error is not None
        self.board.update(last_failure=str(error))
        self.board.event("failure", error=type(error).__name__, message=str(error))
        delay_ms = restarts.delay_ms(error, positions=self._positions, now_ms=self._clocks.steady_ms())
        self.board.update(status=JobStatus.RESTARTING, restarts=self.board.report.restarts + 1)
        self.board.event("restarting", delay_ms=delay_ms)
        self._wanted.wait(delay_ms / 1_000)

    def _positions(self) -> Positions:
        """Where sources stand in the newest checkpoint; nothing if storage does not say."""
        with contextlib.suppress(HeadraceError):
            newest = self._directory.newest()
            return positions_of(None if newest is None else self._directory.load(newest))
        return frozenset()

    def _attempt(
        self, handle: SparkHandle, run: int, positions: SourcePositions | None, *, first: bool
    ) -> tuple[Outcome, Attempt | None]:
        """How the next attempt ended, and itself if its tasks were started. What prevents that otherwise is raised."""
        directory = self._directory
        self._ending.step("claiming an attempt")
        number = directory.claim_attempt()
        self._ending.step("choosing a checkpoint")
        survey = directory.survey()
        metadata, outside = self._choice.choose(survey, first=first)
        self._ends.restores(outside)
        storage, source = (None, "") if outside is None else (outside.storage, outside.path)
        asked = first and bool(self._settings.restore_from)
        restoration = Restoration.of(
            self._plan,
            metadata,
            storage,
            allow_non_restored=self._settings.allow_non_restored,
            # The savepoint that stopped this job is its own, as its checkpoints are.
            pickles=self._settings.pickles(chosen=outside is not None and outside.path != self._choice.stopped_with),
        )
        if restoration.restore is not None and restoration.restore.dropped:
            self.board.event("left-behind", what=restoration.restore.dropped)
        accepted = first and self._settings.allow_duplicates
        if not accepted:
            try:
                self._choice.refuse_rewind(metadata, survey, number, source if asked else "")
            except (CommitFailedError, CommitOutcomeUnknownError) as error:
                return Outcome(End.FAILED, error), None
        self._ending.step("recording what is restored")
        claimed = self._choice.claim(outside)
        own_id = metadata.checkpoint_id if metadata is not None and not source else None
        origin = point_of(metadata) if metadata is not None and source and metadata.history else None
        directory.record_restored(number, own_id, source, origin, accepts_duplicates=accepted)
        self._began = True
        self._ending.step("committing the output of the restored checkpoint")
        try:
            self._commit_sinks(restoration, number)
        except (CommitFailedError, CommitOutcomeUnknownError) as error:
            return Outcome(End.FAILED, error), None
        self._ending.step("handing over the output of the restored checkpoint")
        refused = self._ends.recover(handle, restoration, number)
        if refused is not None:
            return Outcome(End.FAILED, refused), None
        self._ending.step("tidying the job's directory")
        retained: list[CheckpointMetadata] = []
        if not source:
            retained = [c.metadata for c in survey.completed() if c.metadata is not None]
            self._drop_orphans(survey)
        self.board.update(attempt=number, restored_checkpoint=None if metadata is None else metadata.checkpoint_id)
        self._inbox.forget_attempts()
        start = AttemptStart(
            number=number,
            run=run,
            restoration=restoration,
            retained=tuple(retained),
            next_checkpoint_id=max(directory.next_checkpoint_id(), self._next_checkpoint_id),
            resume=positions,
            remove_claimed=None if claimed is None else partial(remove_claimed, claimed),
        )
        del survey  # it holds the metadata of all checkpoints, also of those that are dropped soon
        self._ending.step("preparing the attempt")
        attempt = self._new_attempt(handle, start)
        self._ending.step("stopping its tasks")
        outcome = attempt.run()
        self._ending.step("ending the attempt")
        self._next_checkpoint_id = attempt.next_checkpoint_id
        return outcome, attempt

    def _new_attempt(self, handle: SparkHandle, start: AttemptStart) -> Attempt:
        ends = self._ends.for_attempt(handle, start.number, start.run, start.restoration, self._inbox.put)
        return Attempt(self._world, start, handle, ends)

    def _finish_stop(
        self, spark: SparkApplication, order: SavepointOrder, outcome: Outcome, restarts: Restarts
    ) -> Outcome:
        """The savepoint that stops the job is complete, but the attempt ended before all its output was committed.

        To go back to an older checkpoint would write that output twice, and to stop without it would lose it: so
        the driver commits it, as it does at the beginning of an attempt, and as often as the job may be restarted.
        """
        self.board.event("failure", error=type(outcome.error).__name__, message=str(outcome.error))
        order.progress = "complete; the driver commits what its tasks could not"
        while True:
            self._ending.step("committing the output of the savepoint that stops the job")
            try:
                if self._ends.hand_over:
                    spark.revive()
                self._commit_stopped(spark.handle, order)
                return Outcome(End.FINISHED)
            except HeadraceError as error:
                if not error.retryable:
                    raise
                delay_ms = restarts.strategy_delay_ms(self._clocks.steady_ms()) if self._command is None else None
                if delay_ms is None:
                    raise JobFailedError(
                        f'Job "{self._settings.name}" stopped with savepoint {order.location}, but not all of its '
                        f"output could be committed: {error} Start it from the savepoint with --from: that commits "
                        "the rest."
                    ) from error
                self.board.event("failure", error=type(error).__name__, message=str(error))
                self._wanted.wait(delay_ms / 1_000)

    def _commit_stopped(self, handle: SparkHandle, order: SavepointOrder) -> None:
        self._lease.renew()
        number = self._directory.claim_attempt()
        opened = open_checkpoint(order.location)
        restoration = Restoration.of(self._plan, opened.metadata, opened.storage, allow_non_restored=True)
        self._directory.record_restored(number, None, opened.path)
        self._commit_sinks(restoration, number)
        refused = self._ends.recover(handle, restoration, number)
        if refused is not None:
            raise refused

    def _commit_sinks(self, restoration: Restoration, number: int) -> None:
        directory = self._directory
        restoration.commit_sinks(
            self.job_id,
            number,
            self.collected,
            directory.storage,
            history=directory.history,
            assert_current=lambda: directory.assert_current(number),
            advise=self._advise,
        )

    def _drop_orphans(self, survey: Survey) -> None:
        try:
            self._directory.drop(survey.orphans())
        except FencedError:
            raise
        except StorageError as error:
            self.board.event("storage-trouble", reason=str(error))

    def _tidy(self) -> None:
        """Its checkpoints are kept: remove what nothing needs. If that fails, `headrace checkpoints gc` finds it."""
        try:
            self._directory.tidy()
        except HeadraceError as error:
            self.board.event("storage-trouble", reason=str(error))

    def _end_run(self, ending: Any, status: JobStatus) -> None:
        keep = ExternalizedCheckpointRetention.RETAIN_ON_CANCELLATION
        self._ending.step("marking the run as ended")
        self._directory.end(ending)
        self._ending.step("removing checkpoints")
        if self._settings.checkpointing.retention is not keep:
            self._directory.delete_checkpoints()
            self._ends.end_run()
        else:
            self._tidy()
        # Tasks do so when they are released, on whatever host; those of a cancelled job are not.
        LocalCopies(self._directory.storage.location, WriterScope.of(self._directory.prefix_for(0, 0)).home).remove()
        self.board.update(status=status)


def start_job(plan: JobPlan, settings: JobSettings, spark: Any | None) -> JobClient:
    """Start a job and return at once."""
    run = JobRun(plan, settings, spark)
    run.start()
    return JobClient(run)


def execute_job(plan: JobPlan, settings: JobSettings, spark: Any | None) -> JobExecutionResult:
    """Run a job to its end. Ctrl-C suspends it: everything is kept, and the same program goes on from there.

    A second Ctrl-C does not wait for that: the process ends at once.
    """
    run = JobRun(plan, settings, spark)
    run.start()
    interrupts = Interrupts(run.board, settings, run.suspend)
    try:
        # In slices: a main thread that blocks for good would not run signal handlers on every platform.
        while not run.result.done():
            wait([run.result], timeout=LOOK_EVERY_S)
            interrupts.look()
    finally:
        interrupts.undo()
    if interrupts.suspended():
        raise KeyboardInterrupt
    return run.result.result()
