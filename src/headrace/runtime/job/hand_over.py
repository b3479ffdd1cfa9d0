"""Hands the output of completed checkpoints to the program's own functions, as Spark DataFrames, in the driver.

For each sink, in the order of ids, and one call at a time in the whole job:

    1  the attempt is still the newest: an older driver hands nothing over
    2  fn(df, id), with what was sealed at barrier id
    3  the id is noted as handed over, beside the checkpoints, if the attempt is still the newest: an older driver would
       replace the notes of its successor
    4  tasks hear that the checkpoint is complete, and forget the output

A driver that dies between 2 and 3 cannot know whether the function did its work: the next one calls it again, with the
same rows and the same id.
"""

from __future__ import annotations

import os
import threading
import traceback
from collections.abc import Iterable
from typing import Any

import msgspec
import pyarrow as pa

from headrace import failpoints
from headrace.checkpoint.handles import HistoryPoint, PreparedItem
from headrace.checkpoint.job_directory import JobDirectory
from headrace.checkpoint.location import OpenedCheckpoint
from headrace.checkpoint.metadata.model import CheckpointMetadata
from headrace.checkpoint.storage.base import CheckpointStorage
from headrace.connectors.dataframe.notes import HandOverNotes
from headrace.connectors.dataframe.sink import DataFrameSink, OutputId, OutputReader
from headrace.errors import ConfigurationError, UserFunctionError
from headrace.operators.factories import SinkFactory
from headrace.plan.graph import JobPlan, Node
from headrace.plan.settings import JobSettings
from headrace.runtime.spark.pieces import dataframe_of_pieces
from headrace.runtime.spark.session import SparkHandle


class HandOver:
    """All sinks of one job that hand their output over.

    One call of the program's functions at a time in the whole job: the next attempt waits for a call that an attempt
    which is over has left running.
    """

    def __init__(self, plan: JobPlan, settings: JobSettings, directory: JobDirectory) -> None:
        self._settings = settings
        self._directory = directory
        self._sinks: list[tuple[Node, DataFrameSink]] = [
            (node, node.factory.sink)
            for node in plan.graph.nodes
            if isinstance(node.factory, SinkFactory) and isinstance(node.factory.sink, DataFrameSink)
        ]
        self._calling = threading.Lock()
        self._notes = HandOverNotes(directory.storage)
        for _, sink in self._sinks:
            sink.notes = self._notes

    def __bool__(self) -> bool:
        return bool(self._sinks)

    def preflight(self) -> None:
        """Refuse a job that would never hand anything over."""
        if self._sinks and not self._settings.checkpointing.enabled:
            raise ConfigurationError(
                f'Sink "{self._sinks[0][0].name}" hands its output over when a checkpoint completes, but checkpointing '
                "is off. Call env.enable_checkpointing(interval)."
            )

    def restores(self, outside: OpenedCheckpoint | None) -> None:
        """The attempt that begins restores this: what the driver of its job directory has handed over counts, too."""
        if outside is not None and outside.inside:
            self._notes.look_in(outside.storage)

    def has_output(self, metadata: CheckpointMetadata) -> bool:
        """Whether there is anything in this checkpoint that may have to be handed over."""
        return any(_items(metadata, node.uid) for node, _ in self._sinks)

    def hand(self, handle: SparkHandle, metadata: CheckpointMetadata, storage: CheckpointStorage, attempt: int) -> None:
        """Hand over all output of this checkpoint that is not known to be handed over.

        `storage`: where the files of the checkpoint lie. Raises `UserFunctionError` with what the function raised.
        """
        with self._calling:
            self._hand(handle, metadata, storage, attempt)

    def _hand(
        self, handle: SparkHandle, metadata: CheckpointMetadata, storage: CheckpointStorage, attempt: int
    ) -> None:
        for node, sink in self._sinks:
            for number, items in sorted(_by_id(_items(metadata, node.uid)).items()):
                # All that a checkpoint holds was sealed by the attempt that took it, whichever hands it over now.
                point = HistoryPoint(metadata.history, metadata.attempt, number)
                if self._notes.knows(metadata.job_id, node.uid, metadata.run, point):
                    continue
                self._directory.assert_current(attempt)  # Step 1
                output = OutputId.of(metadata.job_id, node.uid, point)
                self._call(handle, node, sink, items, storage, output)  # Step 2
                failpoints.hit("output_handed_over")
                self._directory.assert_current(attempt)
                self._notes.add(metadata.job_id, node.uid, metadata.run, point)  # Step 3

    def _call(
        self,
        handle: SparkHandle,
        node: Node,
        sink: DataFrameSink,
        items: list[PreparedItem],
        storage: CheckpointStorage,
        output: OutputId,
    ) -> None:
        assert sink.function is not None
        work = [msgspec.msgpack.encode(item) for item in items]
        frame = self._frame(handle, work, OutputReader(storage), sink.schema)
        failpoints.hit("before_hand_over")
        try:
            sink.function(frame, output)
        except Exception as error:
            raise _failure(node, output, error) from error

    def _frame(self, handle: SparkHandle, work: list[bytes], read: OutputReader, schema: pa.Schema) -> Any:
        return dataframe_of_pieces(handle.user_session, work, read, schema)


def _items(metadata: CheckpointMetadata, uid: str) -> list[PreparedItem]:
    """All output of a sink in a checkpoint, by subtask and in order."""
    record = next((operator for operator in metadata.operators if operator.uid == uid), None)
    return [] if record is None else [item for subtask in record.subtasks for item in subtask.prepared]


def _by_id(items: Iterable[PreparedItem]) -> dict[int, list[PreparedItem]]:
    found: dict[int, list[PreparedItem]] = {}
    for item in items:
        found.setdefault(item.checkpoint_id, []).append(item)
    return found


def _failure(node: Node, output: OutputId, error: Exception) -> UserFunctionError:
    frame: Any = next(iter(reversed(traceback.extract_tb(error.__traceback__)[1:2])), None)
    location = "" if frame is None else f"{os.path.basename(frame.filename)}:{frame.lineno}"
    cause = f"{type(error).__name__}: {error}"
    return UserFunctionError(
        f'The function of "{node.name}" (uid {node.uid}) failed on the output of checkpoint {int(output)}'
        f"{f' at {location}' if location else ''}: {cause}",
        operator=node.name,
        uid=node.uid,
        record=f"(none: the output of checkpoint {int(output)})",
        location=location,
        cause=cause,
    )
