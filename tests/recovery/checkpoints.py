"""Looking into the checkpoints a job left behind: which were restored, and what they hold."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from headrace.backends.table import read_table, timers_of_rows
from headrace.checkpoint.location import OpenedCheckpoint, open_checkpoint


def job_home(bench: Any, job_id: str = "ledger", run: int = 1) -> Path:
    """The directory of one run."""
    return Path(bench.directory, "checkpoints", job_id, f"run-{run:06d}")


def restored_by_attempt(bench: Any, job_id: str = "ledger", run: int = 1) -> dict[int, int | None]:
    """Which checkpoint each attempt began from, as the attempts themselves recorded it."""
    files = sorted(job_home(bench, job_id, run).glob("restored-*"))
    return {int(file.name[9:]): json.loads(file.read_text())["checkpoint_id"] for file in files}


def published(bench: Any, job_id: str = "ledger", run: int = 1) -> list[Path]:
    """Directories of all complete checkpoints, oldest first."""
    return sorted(file.parent for file in job_home(bench, job_id, run).glob("chk-*/_metadata"))


def opened(bench: Any, checkpoint_id: int, job_id: str = "ledger", run: int = 1) -> OpenedCheckpoint:
    return open_checkpoint(f"file://{job_home(bench, job_id, run)}/chk-{checkpoint_id:06d}")


def channel_cells(checkpoint: OpenedCheckpoint) -> int:
    """How many cells in flight the checkpoint holds."""
    return sum(channel.count for channel in checkpoint.metadata.channels)


def values_of(checkpoint: OpenedCheckpoint, uid: str, state: str) -> dict[Any, Any]:
    """A value state of one operator by key, read from a table snapshot (heap) of the checkpoint."""
    return {
        key: msgspec.msgpack.decode(value)
        for shape, rows in _rows(checkpoint, uid)
        if shape == state and rows.values is not None
        for key, value in zip(rows.keys, rows.values, strict=True)
    }


def timers_in(checkpoint: OpenedCheckpoint, uid: str) -> int:
    """How many timers of one operator the checkpoint holds."""
    return sum(
        len(list(timers_of_rows(rows)))
        for operator in checkpoint.metadata.operators
        if operator.uid == uid
        for shape, rows in _rows(checkpoint, uid, kind="timers")
    )


def _rows(checkpoint: OpenedCheckpoint, uid: str, kind: str | None = None) -> Iterator[tuple[str, Any]]:
    store = checkpoint.storage.file_store("unused/chk-000000/attempt-000000")
    for operator in checkpoint.metadata.operators:
        for subtask in operator.subtasks if operator.uid == uid else ():
            keyed = subtask.keyed
            if keyed is None:
                continue
            assert keyed.format == "table", "only heap snapshots can be read here"
            file = keyed.files[0] if keyed.files else None
            groups = range(keyed.first_group, keyed.last_group + 1)
            for _, index, rows in read_table(file, keyed.details, len(keyed.shapes), store, groups):
                shape = keyed.shapes[index]
                if kind is None or shape.kind == kind:
                    yield shape.name, rows
