"""What `execute_async` gives: a hold on a running job."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.runtime.coordinator.savepoints import Savepoint, SavepointOrder
from headrace.runtime.job.status import JobEvent, JobStatus, StatusReport

if TYPE_CHECKING:
    from headrace.runtime.job.runner import JobRun


@dataclass(frozen=True, slots=True)
class JobExecutionResult:
    """How a job went that ended by itself."""

    job_id: str
    name: str
    net_runtime_ms: int
    restarts: int
    checkpoints: int
    records_read: int
    records_written: int

    def get_job_id(self) -> str:
        return self.job_id

    def get_net_runtime(self) -> int:
        """Milliseconds from start to end."""
        return self.net_runtime_ms

    def is_job_execution_result(self) -> bool:
        return True


class JobClient:
    """Ask, cancel, wait. Futures answer `result()`, `done()`, `exception()`."""

    def __init__(self, run: JobRun) -> None:
        self._run = run

    def get_job_id(self) -> str:
        return self._run.job_id

    def get_job_status(self) -> Future[JobStatus]:
        return _resolved(self._run.board.report.status)

    def get_status_report(self) -> StatusReport:
        """All that is known of the job right now."""
        return self._run.board.report

    def listen(self, listener: Callable[[JobEvent], None]) -> None:
        """Be told of checkpoints, failures and restarts as they happen, on the coordinator's thread: return soon."""
        self._run.board.event_listeners.append(listener)

    def trigger_savepoint(self, savepoint_directory: str | None = None) -> Future[str]:
        """Take a savepoint below that directory (or the default place), while the job goes on; the path of it."""
        return _path_of(self._run.order_savepoint(savepoint_directory))

    def stop_with_savepoint(
        self, advance_to_end_of_event_time: bool = False, savepoint_directory: str | None = None
    ) -> Future[str]:
        """Take a savepoint and stop: nothing is emitted behind it. Done when the job has stopped.

        `advance_to_end_of_event_time` (drain) lets every window and event-time timer fire first. If it fails, the
        job goes on from its last checkpoint.
        """
        order = self._run.order_savepoint(savepoint_directory, stop=True, drain=advance_to_end_of_event_time)
        return _path_of(order)

    def cancel(self) -> Future[None]:
        """Stop for good; checkpoints are kept or deleted as the retention says. Done when the job has stopped."""
        return self._run.cancel()

    def suspend(self) -> Future[None]:
        """Stop and keep everything: the same program goes on from the last checkpoint."""
        return self._run.suspend()

    def get_job_execution_result(self) -> Future[JobExecutionResult]:
        """Done when the job has ended; raises what made it fail."""
        return self._run.result

    def collect(self, collector: str) -> Iterator[Any]:
        """The results of `execute_and_collect`, as they come."""
        return self._run.collected.iterate(collector)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            plain = f"'JobClient' object has no attribute {name!r}"
            if name == "get_accumulators":
                plain += ". There are no accumulators; user metrics are in get_status_report().metrics"
            raise AttributeError(plain)


def _path_of(order: SavepointOrder) -> Future[str]:
    path: Future[str] = Future()

    def answer(done: Future[Savepoint]) -> None:
        error = done.exception()
        if error is not None:
            path.set_exception(error)
        else:
            path.set_result(done.result().path)

    order.answer.add_done_callback(answer)
    return path


def _resolved(value: Any) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(value)
    return future
