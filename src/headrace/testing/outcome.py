"""Run a stream to its end and see what a user would see of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.errors import JobDefinitionError

if TYPE_CHECKING:
    from headrace.datastream.streams import DataStream
    from headrace.runtime.job.client import JobExecutionResult


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """How a run went that ended by itself."""

    committed: list[Any]
    """Every record that became visible, in order of delivery; of one subtask they are in its order."""
    restarts: int
    checkpoints: int
    result: JobExecutionResult


def run_until_done(stream: DataStream, job_name: str = "test run", *, restarts: int | None = None) -> RunOutcome:
    """Run the job that `stream` ends, with as many restarts as its strategy allows; raises what makes it fail.

    With `restarts` the run must have taken exactly so many, so that a crash that never happened is noticed.
    """
    results = stream.execute_and_collect(job_name)
    client = getattr(results, "_client", None)
    if client is None:
        raise JobDefinitionError("run_until_done() runs jobs; it cannot be used where execution is intercepted.")
    committed = list(results)
    result = client.get_job_execution_result().result()
    if restarts is not None and result.restarts != restarts:
        raise AssertionError(f"The run took {result.restarts} restarts, {restarts} were planned.")
    return RunOutcome(committed, result.restarts, result.checkpoints, result)
