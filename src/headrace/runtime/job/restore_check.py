"""Whether a program can go on from a checkpoint, as far as that is known before any task runs.

Found here, before Spark is started:

- files that are missing or have another size; contents of the smallest files, 64 MiB in all
- state that no operator of the program takes, parallelism, routes
- changed types of states that operators declare by themselves: `reduce`, `map_with_state`, windows, joins, running
  aggregates, broadcast state
- changed types of states that a function asks for in `open()`, where its source says so plainly (`states_in_open`)

Found by the first task that opens, before any source is read:

- contents of all other files
- changed types of all other states that functions ask for in `open()` or `initialize_state()`

`open()` is the user's code and may do anything, so it is never called to find out what it would ask for. Both kinds of
refusal are permanent. `headrace explain --from` reports all that is found here; a start raises it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from headrace.backends.elements import migration_of
from headrace.checkpoint.handles import OperatorStateShare, StateShape
from headrace.checkpoint.metadata.model import CheckpointMetadata, OperatorRecord
from headrace.checkpoint.quick_check import QuickCheck, quick_check
from headrace.checkpoint.storage.base import DAMAGED_WAY_OUT, CheckpointStorage
from headrace.errors import DamagedCheckpointError, HeadraceError, RestoreError, StateConflictError
from headrace.operators.connected_factories import BroadcastFactory
from headrace.plan.graph import JobPlan, Node
from headrace.plan.states_in_open import states_in_open
from headrace.runtime.job.restoration import Restoration
from headrace.state.operator_state import OperatorStates

MOST_NAMED = 10
"""Files that an error lists."""


@dataclass(frozen=True, slots=True)
class RestoreCheck:
    """What a start from the checkpoint would meet."""

    checkpoint_id: int
    files: QuickCheck
    dropped: tuple[str, ...]
    """State that no operator takes and that may be left behind."""
    problems: tuple[HeadraceError, ...]
    """Each would refuse the start."""

    def require(self) -> None:
        """Raise the first problem; its message counts the others."""
        if not self.problems:
            return
        first, *others = self.problems
        if others:
            first.args = (
                f"{first} ({len(others)} more: `headrace explain JOB.py --from CHECKPOINT` lists all of them.)",
            )
        raise first


def check_restore(
    plan: JobPlan, metadata: CheckpointMetadata, storage: CheckpointStorage, *, allow_non_restored: bool
) -> RestoreCheck:
    """Compare the checkpoint with the program, and its files with what was recorded. Nothing is changed."""
    problems: list[HeadraceError] = []
    dropped: tuple[str, ...] = ()
    try:
        restoration = Restoration.of(plan, metadata, storage, allow_non_restored=allow_non_restored)
        dropped = () if restoration.restore is None else tuple(restoration.restore.dropped)
    except RestoreError as error:
        problems.append(error)
    problems += _changed_states(plan, metadata)
    files = quick_check(metadata, storage)
    if files.damaged:
        named = [file.detail for file in files.damaged[:MOST_NAMED]]
        more = len(files.damaged) - len(named)
        problems.append(
            DamagedCheckpointError(
                f"Checkpoint {metadata.checkpoint_id} is damaged: {' '.join(named)}"
                f"{f' {more} more files are damaged.' if more else ''} {DAMAGED_WAY_OUT}"
            )
        )
    return RestoreCheck(metadata.checkpoint_id, files, dropped, tuple(problems))


def _changed_states(plan: JobPlan, metadata: CheckpointMetadata) -> Iterator[StateConflictError]:
    records = {record.uid: record for record in metadata.operators}
    for node in plan.graph.nodes:
        record = records.get(node.uid)
        if record is None:
            continue
        yield from _changed_keyed(node, record)
        yield from _changed_broadcast(node, record)


def _changed_keyed(node: Node, record: OperatorRecord) -> Iterator[StateConflictError]:
    if not node.factory.keyed:
        return
    saved: dict[str, StateShape] = {}
    for subtask in record.subtasks:
        for shape in () if subtask.keyed is None else subtask.keyed.shapes:
            if shape.kind != "timers":
                saved.setdefault(shape.name, shape)
    for descriptor in (*node.factory.create().own_states(), *states_in_open(node.factory.user_function)):
        if descriptor.name in saved:
            try:
                migration_of(node.uid, saved[descriptor.name], descriptor)
            except StateConflictError as error:
                yield error


def _changed_broadcast(node: Node, record: OperatorRecord) -> Iterator[StateConflictError]:
    if not isinstance(node.factory, BroadcastFactory):
        return
    shapes = {share.shape.name: share.shape for subtask in record.subtasks for share in subtask.operator_state}
    states = OperatorStates(node.uid)
    states.restore([OperatorStateShare(shape, ()) for shape in shapes.values()])
    for descriptor in node.factory.descriptors:
        try:
            states.get_broadcast_state(descriptor)
        except StateConflictError as error:
            yield error
