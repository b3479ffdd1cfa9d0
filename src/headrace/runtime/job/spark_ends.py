"""A job between Spark queries: those that feed it, and the functions that get its output as DataFrames.

A plan without either runs as a plain `Attempt`. Otherwise the attempt starts and stops the feeding queries with itself,
and tells its tasks that a checkpoint is complete only when its output has been handed over: until then the output is
part of every further checkpoint, and nothing of the checkpoint is dropped.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from headrace.checkpoint.job_directory import JobDirectory
from headrace.checkpoint.lifecycle import actions as act
from headrace.checkpoint.location import OpenedCheckpoint
from headrace.checkpoint.metadata.model import CheckpointMetadata
from headrace.checkpoint.storage.base import CheckpointStorage
from headrace.errors import HeadraceError, StorageError
from headrace.plan.graph import JobPlan
from headrace.plan.settings import JobSettings
from headrace.runtime.coordinator.outcomes import Outcome
from headrace.runtime.coordinator.savepoints import SavepointOrder
from headrace.runtime.job.attempt import Attempt
from headrace.runtime.job.feeds import FeedAdvanced, FeedFailed, Feeds
from headrace.runtime.job.hand_over import HandOver
from headrace.runtime.job.restoration import Restoration
from headrace.runtime.spark.session import SparkHandle


@dataclass(frozen=True, slots=True)
class HandedOver:
    """The output of one checkpoint was handed over, or could not be."""

    error: HeadraceError | None


class SparkEnds:
    """Both ends of one job, over its attempts. Made and used by the runner."""

    def __init__(self, plan: JobPlan, settings: JobSettings, directory: JobDirectory) -> None:
        self._directory = directory
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
            self.hand_over.hand(handle, metadata, restoration.storage or self._directory.storage, attempt)
        except Exception as error:
            return _not_handed_over(error)
        return None

    def attempt(self, run: int, restoration: Restoration, **others: Any) -> Attempt:
        """The attempt that this job needs; `others` are the further arguments of `Attempt`."""
        if not self.feeds and not self.hand_over:
            return Attempt(run=run, restoration=restoration, **others)
        self.feeds.bind(run, restoration, outside=restoration.storage is not None)
        return AttemptBetweenQueries(self, run=run, restoration=restoration, **others)

    def end_run(self) -> None:
        """The run is over, and its checkpoints are gone. What cannot be removed now costs space only."""
        with contextlib.suppress(StorageError):
            self.feeds.remove()

    def close(self) -> None:
        """The job is over in this process."""
        self.feeds.close()


class AttemptBetweenQueries(Attempt):
    """An attempt with feeding queries, or with output to hand over, or both."""

    def __init__(self, ends: SparkEnds, **others: Any) -> None:
        super().__init__(**others)
        self._feeds = ends.feeds
        self._hand_over = ends.hand_over
        self._outside: dict[int, CheckpointMetadata] = {}
        self._later: deque[_Handing | act.Action] = deque()
        """What waits for the output that is being handed over right now, which is its first entry."""
        self._hander = _Hander(self._events.put)

    def _begin(self) -> None:
        super()._begin()
        self._feeds.start(self.number, self._events.put)

    def _on_event(self, event: Any) -> Outcome | None:
        match event:
            case FeedAdvanced(uid):
                self._enumerators.look(uid)
            case FeedFailed(error):
                return self._failed(error)
            case HandedOver(None):
                self._later.popleft()
                return self._go_on()
            case HandedOver(error):
                assert error is not None
                return self._failed(error)
        return super()._on_event(event)

    def _publish_outside(self, order: SavepointOrder, metadata: CheckpointMetadata) -> None:
        # Before it exists: nothing that it refers to may be removed from the moment it does.
        self._feeds.pin(metadata)
        self._outside[metadata.checkpoint_id] = metadata
        try:
            super()._publish_outside(order, metadata)
        except StorageError:
            if not order.may_exist:
                self._feeds.unpin(metadata)
            raise

    def _do(self, action: act.Action) -> Outcome | None:
        match action:
            case act.NotifyComplete(checkpoint_id, commit) if commit and self._hand_over:
                metadata = self._retained.get(checkpoint_id) or self._outside.get(checkpoint_id)
                if metadata is not None and self._hand_over.has_output(metadata):
                    return self._after_others(_Handing(metadata, self._storage_of(checkpoint_id)), action)
                return self._after_others(action)
            case act.DropCheckpoints():
                return self._after_others(action)
        return super()._do(action)

    def _drop(self, checkpoint_ids: tuple[int, ...]) -> None:
        super()._drop(checkpoint_ids)
        self._feeds.collect(self._retained.values())

    def _tear_down(self) -> None:
        self._feeds.stop()
        super()._tear_down()
        # What is being handed over is left to finish: nobody else may call the function meanwhile.
        self._hander.close()

    def _storage_of(self, checkpoint_id: int) -> CheckpointStorage:
        order = self._savepoints.get(checkpoint_id)
        return self._directory.storage if order is None else order.directory.storage

    def _after_others(self, *entries: _Handing | act.Action) -> Outcome | None:
        idle = not self._later
        self._later.extend(entries)
        return self._go_on() if idle else None

    def _go_on(self) -> Outcome | None:
        """Perform what waits, up to the next output that has to be handed over."""
        while self._later:
            entry = self._later[0]
            if isinstance(entry, _Handing):
                self._hander.take(
                    partial(self._hand_over.hand, self._handle, entry.metadata, entry.storage, self.number)
                )
                return None
            self._later.popleft()
            outcome = super()._do(entry)
            if outcome is not None:
                return outcome
        return None


@dataclass(frozen=True, slots=True)
class _Handing:
    metadata: CheckpointMetadata
    storage: CheckpointStorage


class _Hander:
    """The thread on which the program's functions run, so that the coordinator does not wait for them."""

    def __init__(self, tell: Callable[[Any], None]) -> None:
        self._tell = tell
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def take(self, work: Callable[[], None]) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="hand-over", daemon=True)
            self._thread.start()
        self._work.put(work)

    def close(self) -> None:
        if self._thread is not None:
            self._work.put(None)
            self._thread.join()

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            try:
                work()
                self._tell(HandedOver(None))
            except Exception as error:
                self._tell(HandedOver(_not_handed_over(error)))


def _not_handed_over(error: Exception) -> HeadraceError:
    if isinstance(error, HeadraceError):
        return error
    return HeadraceError(f"Output could not be handed over: {type(error).__name__}: {error}")
