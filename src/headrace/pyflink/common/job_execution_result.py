"""How a job went, under the name of `pyflink.common.job_execution_result`."""

from headrace.runtime.job.client import JobExecutionResult

__all__ = [
    "JobExecutionResult",
]
