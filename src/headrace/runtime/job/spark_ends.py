"""A job between Spark queries: those that feed it, and the functions that get its output as DataFrames."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TypeAlias

from headrace.checkpoint.job_directory import JobDirectory
from headrace.checkpoint.location import OpenedCheckpoint
from headrace.checkpoint.metadata.model import CheckpointMetadata
from headrace.errors import HeadraceError, StorageError
from headrace.plan.graph import JobPlan
from headrace.plan.settings import JobSettings
from headrace.runtime.coordinator.events import FeedAdvanced, FeedFailed
from headrace.runtime.coordinator.savepoints import SavepointOrder
from headrace.runtime.coordinator.store import Spools
from headrace.runtime.job.feeds import Feeds
from headrace.runtime.job.hand_over import HandOver
from headrace.runtime.job.restoration import Restoration
from headrace.runtime.spark.session import SparkHandle

Tell: TypeAlias = Callable[[FeedAdvanced | FeedFailed], None]


class SparkEnds:
    """Both ends of one job, over its attempts. Made and used by the runner."""

    def __init__(self, plan: JobPlan, settings: JobSettings, directory: JobDirectory) -> None:
        self.storage = directory.storage
        self.feeds = Feeds(plan, settings)
        self.hand_over = HandOver(plan, settings, directory)

    def preflight(self, handle: SparkHandle) -> None:
        """Refuse what could not work, before anything starts."""
        self.hand_over.preflight()
        self.feeds.preflight(handle)

    def restores(self, outside: OpenedCheckpoint | None) -> None:
        """An attempt begins from this; None if from a checkpoint of its own run, or from nothing."""
        self.hand_over.restores(outside)

    def recover(self, handle: SparkHandle, restoration: Restoration, attempt: int) -> HeadraceError | None:
        """Hand over what the restored checkpoint holds, before any task starts; what went wrong."""
        metadata = restoration.metadata
        if metadata is None or not self.hand_over.has_output(metadata):
            return None
        try:
            self.hand_over.hand(handle, metadata, restoration.storage or self.storage, attempt)
        except Exception as error:
            return _not_handed_over(error)
        return None

    def for_attempt(
        self, handle: SparkHandle, number: int, run: int, restoration: Restoration, tell: Tell
    ) -> AttemptEnds:
        """Both ends for the attempt that begins. `tell` is called from threads of the feeding queries."""
        if self.feeds:
            self.feeds.bind(run, restoration, outside=restoration.storage is not None)
        return AttemptEnds(self, handle, number, tell)

    def end_run(self) -> None:
        """The run is over, and its checkpoints are gone. What cannot be removed now costs space only."""
        with contextlib.suppress(StorageError):
            self.feeds.remove()

    def close(self) -> None:
        """The job is over in this process."""
        self.feeds.close()


class AttemptEnds:
    """Both ends of one attempt: what its coordinator starts, and hands output to."""

    def __init__(self, ends: SparkEnds, handle: SparkHandle, number: int, tell: Tell) -> None:
        self._ends = ends
        self._handle = handle
        self._number = number
        self._tell = tell

    @property
    def spools(self) -> Spools | None:
        """What the feeding queries have written, if there are any."""
        return self._ends.feeds or None

    def begin(self) -> None:
        self._ends.feeds.start(self._number, self._tell)

    def has_output(self, metadata: CheckpointMetadata) -> bool:
        return self._ends.hand_over.has_output(metadata)

    def hand(self, metadata: CheckpointMetadata, order: SavepointOrder | None) -> None:
        storage = self._ends.storage if order is None else order.directory.storage
        try:
            self._ends.hand_over.hand(self._handle, metadata, storage, self._number)
        except Exception as error:
            raise _not_handed_over(error) from error

    def stop(self, limit_s: float) -> None:
        """End the feeding queries; returns when they are over, or after `limit_s` seconds."""
        self._ends.feeds.stop(limit_s)


def _not_handed_over(error: Exception) -> HeadraceError:
    if isinstance(error, HeadraceError):
        return error
    return HeadraceError(f"Output could not be handed over: {type(error).__name__}: {error}")
