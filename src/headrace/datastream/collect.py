"""Results of `execute_and_collect`, as they come."""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType
from typing import Any


class CloseableIterator:
    """Iterates over results while the job runs; closing it, or leaving its `with` block, ends the job.

    When the job has ended by itself the iteration ends; when it failed, its error is raised at that point.
    """

    def __init__(self, client: Any, collector: str) -> None:
        self._client = client
        self._values: Iterator[Any] = iter(()) if client is None else iter(client.collect(collector))

    def __iter__(self) -> CloseableIterator:
        return self

    def __next__(self) -> Any:
        try:
            return next(self._values)
        except StopIteration:
            self._finish()
            raise

    def take(self, limit: int) -> list[Any]:
        """The first `limit` results, or all if there are fewer; then the job is ended."""
        try:
            return [value for _, value in zip(range(limit), self, strict=False)]
        finally:
            self.close()

    def close(self) -> None:
        """End the job, if it still runs. May be called more than once."""
        client, self._client, self._values = self._client, None, iter(())
        if client is not None:
            client.cancel().result()

    def _finish(self) -> None:
        # Seen to the end: there is nothing left to cancel, but a failure must not pass for an end.
        client, self._client = self._client, None
        if client is not None:
            client.get_job_execution_result().result()

    def __enter__(self) -> CloseableIterator:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
