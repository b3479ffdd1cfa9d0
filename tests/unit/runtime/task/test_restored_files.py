"""Which files of the restored checkpoint a task need not store again: it learns them from its own state."""

from __future__ import annotations

from headrace.checkpoint.handles import KeyedSnapshot, StateFile
from headrace.runtime.control.messages import Deploy, SubtaskRestoration
from headrace.runtime.task.main import shared_files


def deploy(checkpoint_id: int | None) -> Deploy:
    tables = (
        StateFile(10, "a" * 64, "job/shared/a.sst", shared=True),
        StateFile(10, "b" * 64, "job/chk-1/b", shared=False),
        StateFile(10, "c" * 64, inline=b"small", shared=True),
    )
    other = (StateFile(10, "d" * 64, "job/shared/d.sst", shared=True),)
    keyed = (KeyedSnapshot("rocksdb", 0, 63, (), tables), KeyedSnapshot("rocksdb", 64, 127, (), other))
    subtasks = (SubtaskRestoration("count", 0, keyed), SubtaskRestoration("map", 0))
    return Deploy(restored=True, subtasks=subtasks, checkpoint_id=checkpoint_id)


def test_shared_files_of_its_own_subtasks_are_known() -> None:
    assert shared_files(deploy(7)) == {"job/shared/a.sst", "job/shared/d.sst"}


def test_files_of_a_checkpoint_outside_of_the_run_are_not_referred_to() -> None:
    assert shared_files(deploy(None)) == frozenset()
