"""Which saved state goes to which subtask of the program that now runs. Pure: reads metadata, opens no file.

| state | same parallelism | another parallelism |
| --- | --- | --- |
| keyed | the snapshots that intersect the subtask's key groups | the same |
| operator list | each subtask its own | all elements in order, dealt out in turn |
| operator union | all elements to all | all elements to all |
| broadcast | each subtask its own | the copy of the first subtask to all |
| splits | all back to the enumerator | all back to the enumerator |
| an operator's `extra` | each subtask its own | none |
| records in flight | to the same subtask of the edge's target | by key or in turn; see `channel_restore` |
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from headrace.checkpoint.channel_restore import ChannelRestore, Width, plan_channels
from headrace.checkpoint.handles import EdgeRecord, KeyedSnapshot, OperatorStateShare, PreparedItem, StateShape
from headrace.checkpoint.metadata.model import CheckpointMetadata, OperatorRecord
from headrace.errors import RestoreError


@dataclass(frozen=True, slots=True)
class OperatorTarget:
    """An operator of the program that is about to run."""

    uid: str
    name: str
    parallelism: int
    max_parallelism: int
    is_source: bool = False
    has_sink_state: bool = False
    is_keyed: bool = False


@dataclass(frozen=True, slots=True)
class SubtaskRestore:
    """What one subtask starts from."""

    keyed: tuple[KeyedSnapshot, ...] = ()
    """All that hold any of its key groups; the backend takes only what is its own."""
    operator_state: tuple[OperatorStateShare, ...] = ()
    ended: bool = False
    """The whole operator had ended: what it emits at the end of input was emitted."""
    watermark: int | None = None
    extra: bytes = b""


@dataclass(frozen=True, slots=True)
class RestorePlan:
    """The state of a checkpoint, dealt out over the targets. Operators that saved nothing start empty."""

    checkpoint_id: int
    dropped: list[str]
    """What no operator claims and was allowed to be left behind, in words."""
    in_flight: ChannelRestore
    _records: dict[str, OperatorRecord] = field(repr=False)
    _targets: dict[str, OperatorTarget] = field(repr=False)
    _enumerators: dict[str, bytes] = field(repr=False)

    def subtask(self, uid: str, index: int) -> SubtaskRestore:
        """The share of subtask `index` of the operator, at its new parallelism."""
        target = self._targets[uid]
        if not 0 <= index < target.parallelism:
            raise ValueError(f"operator {uid} has subtasks 0..{target.parallelism - 1}, not {index}")
        record = self._records.get(uid)
        if record is None:
            return SubtaskRestore()
        olds = record.subtasks
        groups = key_group_range(index, target.parallelism, target.max_parallelism)
        watermarks = [old.watermark for old in olds]
        same = record.parallelism == target.parallelism
        return SubtaskRestore(
            keyed=tuple(old.keyed for old in olds if old.keyed is not None and _intersects(old.keyed, groups))
            if target.is_keyed
            else (),
            operator_state=_deal(record, target.parallelism, index),
            ended=len(olds) == record.parallelism and all(old.ended for old in olds),
            watermark=None
            if None in watermarks
            else min((mark for mark in watermarks if mark is not None), default=None),
            extra=next((old.extra for old in olds if old.subtask == index), b"") if same else b"",
        )

    def splits(self, uid: str) -> list[bytes]:
        """All unfinished splits of a source with their positions, for its enumerator."""
        record = self._records.get(uid)
        return [] if record is None else [split for old in record.subtasks for split in old.splits]

    def enumerator(self, uid: str) -> bytes | None:
        """The saved state of a source's enumerator; None if there is none."""
        return self._enumerators.get(uid)

    def prepared(self, uid: str) -> list[PreparedItem]:
        """All output of a sink that was prepared, in the order in which it is to be committed."""
        record = self._records.get(uid)
        items = [] if record is None else [item for old in record.subtasks for item in old.prepared]
        return sorted(items, key=lambda item: item.checkpoint_id)


def plan_restore(
    metadata: CheckpointMetadata,
    targets: Sequence[OperatorTarget],
    edges: Sequence[EdgeRecord],
    *,
    allow_non_restored: bool,
) -> RestorePlan:
    """Match a checkpoint with a program, by uid; raises `RestoreError` before anything is read from any source."""
    by_uid = {target.uid: target for target in targets}
    records = {record.uid: record for record in metadata.operators}
    for target in targets:
        _check_parallelism(target, records.get(target.uid))
    unclaimed = [
        claim
        for uid in sorted({*records, *metadata.enumerators})
        for claim in _unclaimed(uid, records.get(uid), uid in metadata.enumerators, by_uid.get(uid))
    ]
    widths = {t.uid: Width(t.name, t.parallelism, t.max_parallelism) for t in targets}
    in_flight = plan_channels(metadata, edges, widths)
    unclaimed.extend(in_flight.left_behind)
    if unclaimed and not allow_non_restored:
        raise RestoreError(
            f"Checkpoint {metadata.checkpoint_id} of job {metadata.job_name} holds state that no operator of the "
            f"program claims: {'; '.join(unclaimed)}. Give the operators their former uid, or restore with "
            f"--allow-non-restored to leave that state behind."
        )
    return RestorePlan(
        checkpoint_id=metadata.checkpoint_id,
        dropped=unclaimed,
        in_flight=in_flight,
        _records=records,
        _targets=by_uid,
        _enumerators=metadata.enumerators,
    )


def key_group_range(index: int, parallelism: int, max_parallelism: int) -> range:
    """The key groups of a subtask: those with `group * parallelism // max_parallelism == index`."""
    first = -(-index * max_parallelism // parallelism)
    after = -(-(index + 1) * max_parallelism // parallelism)
    return range(first, after)


def _check_parallelism(target: OperatorTarget, record: OperatorRecord | None) -> None:
    if target.parallelism > target.max_parallelism:
        raise RestoreError(
            f'Operator "{target.name}" (uid {target.uid}) has parallelism {target.parallelism}, but its max '
            f"parallelism is {target.max_parallelism}. Run it with at most {target.max_parallelism} subtasks."
        )
    if record is None or record.max_parallelism == target.max_parallelism:
        return
    # Without keyed state nothing was ever divided by it.
    if any(old.keyed is not None for old in record.subtasks):
        raise RestoreError(
            f'Operator "{target.name}" (uid {target.uid}) was saved with max parallelism {record.max_parallelism}, '
            f"but now has {target.max_parallelism}; its keys would no longer be found. "
            f"Call set_max_parallelism({record.max_parallelism})."
        )


def _unclaimed(
    uid: str, record: OperatorRecord | None, has_enumerator: bool, target: OperatorTarget | None
) -> list[str]:
    """What was saved for the uid and has no taker, in words."""
    kinds: list[str] = []
    subtasks = () if record is None else record.subtasks
    if any(s.keyed is not None and s.keyed.shapes for s in subtasks) and not (target and target.is_keyed):
        shapes = {shape for s in subtasks if s.keyed is not None for shape in s.keyed.shapes}
        names = sorted({"timers" if shape.kind == "timers" else shape.name for shape in shapes})
        kinds.append(f"keyed state {', '.join(names)}")
    if target is None:
        names = sorted({share.shape.name for s in subtasks for share in s.operator_state})
        if names:
            kinds.append(f"operator state {', '.join(names)}")
    if (has_enumerator or any(s.splits for s in subtasks)) and not (target and target.is_source):
        kinds.append("source positions")
    if any(s.prepared for s in subtasks) and not (target and target.has_sink_state):
        kinds.append("prepared output")
    label = f'"{record.name}" (uid {uid})' if record is not None else f"uid {uid}"
    return [f"{label}: {', '.join(kinds)}"] if kinds else []


def _intersects(snapshot: KeyedSnapshot, groups: range) -> bool:
    return snapshot.first_group < groups.stop and groups.start <= snapshot.last_group


def _deal(record: OperatorRecord, parallelism: int, index: int) -> tuple[OperatorStateShare, ...]:
    """The operator states of one new subtask; each name once, in order of first appearance."""
    shapes: dict[str, StateShape] = {}
    for old in record.subtasks:
        for share in old.operator_state:
            if shapes.setdefault(share.shape.name, share.shape) != share.shape:
                raise RestoreError(
                    f'Operator state "{share.shape.name}" of "{record.name}" (uid {record.uid}) was saved in two '
                    f"shapes by its subtasks. Restore from another checkpoint with --from."
                )
    return tuple(OperatorStateShare(shape, _elements(record, shape, parallelism, index)) for shape in shapes.values())


def _elements(record: OperatorRecord, shape: StateShape, parallelism: int, index: int) -> tuple[bytes, ...]:
    lists = [
        (old.subtask, share.elements)
        for old in record.subtasks
        for share in old.operator_state
        if share.shape.name == shape.name
    ]
    if shape.kind == "broadcast":
        # Every subtask holds the same entries, but for what is still in flight to it: that goes with its own copy.
        own = next((elements for subtask, elements in lists if subtask == index), lists[0][1])
        return own if record.parallelism == parallelism else lists[0][1]
    everything = tuple(element for _, elements in lists for element in elements)
    if shape.kind == "operator-union":
        return everything
    if record.parallelism == parallelism:
        return next((elements for subtask, elements in lists if subtask == index), ())
    return everything[index::parallelism]
