"""A hold on a running job, under the name of `pyflink.common.job_client`."""

from headrace.runtime.job.client import JobClient

__all__ = [
    "JobClient",
]
