"""States of a job, under the name of `pyflink.common.job_status`."""

from headrace.runtime.job.status import JobStatus

__all__ = [
    "JobStatus",
]
