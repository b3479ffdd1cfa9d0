"""What a task says about the size of its part of a checkpoint: all files it names, prepared output included."""

from __future__ import annotations

import queue
from pathlib import Path
from typing import Any

from headrace.checkpoint.handles import KeyedSnapshot, PreparedItem, StateFile, SubtaskSnapshot
from headrace.checkpoint.storage.filesystem import FileSystemCheckpointStorage
from headrace.runtime.control.messages import Acknowledge
from headrace.runtime.task.snapshots import RunningSnapshot, SnapshotWriter

KNOWN = "job/run-000001/shared/00/old.sst"


class Part:
    """The snapshot of one subtask: two table files, one of them known, and output that is too large for metadata."""

    def finish(self, store: Any) -> SubtaskSnapshot:
        keyed = KeyedSnapshot(
            "rocksdb", 0, 127, (), (StateFile(1_000, "a" * 64, KNOWN), store.write("new", [b"x" * 500]))
        )
        prepared = (PreparedItem(7, b"", store.write("prepared", [b"y" * 40_000])), PreparedItem(6, b"small"))
        return SubtaskSnapshot("sink", 0, 1, 128, keyed=keyed, prepared=prepared)

    def cancel(self) -> None: ...


def test_prepared_output_in_files_counts_and_what_is_known_is_not_uploaded_again(tmp_path: Path) -> None:
    told: queue.SimpleQueue[Any] = queue.SimpleQueue()
    writer = SnapshotWriter(
        level=1,
        slot=0,
        storage=FileSystemCheckpointStorage(str(tmp_path)),
        home="job/run-000001",
        attempt=1,
        send=told.put,
    )
    writer.known_shared = frozenset({KNOWN})
    part: Any = Part()
    snapshot = RunningSnapshot(7, [part], 0.0, 0.0, [])
    snapshot.log_complete.set()
    writer.begin(snapshot)
    try:
        answer = told.get(timeout=60)
    finally:
        writer.close()
    assert isinstance(answer, Acknowledge)
    assert answer.snapshot.bytes_total == 1_000 + 500 + 40_000
    assert answer.snapshot.bytes_uploaded == 500 + 40_000
