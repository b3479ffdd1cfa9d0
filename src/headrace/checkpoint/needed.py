"""What of a run must stay: the one rule that retention, collection, claims and `checkpoints gc` go by.

A checkpoint is needed if

    it counts           the next start, or a person, may restore it
    it was chosen       somebody restored it by name: it is theirs, and a start may need it again
    it is damaged       nobody knows what it names; a person may repair it or remove it

With a checkpoint every file that it names is needed, shared ones too. A damaged one may name any file of its own
directory, and any shared file that was first stored for it or before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from dataclasses import dataclass

from headrace.checkpoint.handles import CheckpointId
from headrace.checkpoint.metadata.model import files_of
from headrace.checkpoint.published import PublishedCheckpoint
from headrace.checkpoint.storage.paths import SharedName


@dataclass(frozen=True, slots=True)
class Needed:
    """The checkpoints and files of one run that must stay."""

    checkpoints: frozenset[CheckpointId]
    files: frozenset[str]
    """Paths in the storage, `_metadata` included."""
    damaged: frozenset[CheckpointId]
    """Of `checkpoints` those whose files are not known."""

    def spares_shared(self, path: str) -> bool:
        """Whether a shared file must stay."""
        if path in self.files:
            return True
        name = SharedName.of(path)
        first_stored = 0 if name is None else name.checkpoint_id
        return any(first_stored <= checkpoint_id for checkpoint_id in self.damaged)


def needed_of(published: Iterable[PublishedCheckpoint], chosen: Set[CheckpointId]) -> Needed:
    """The rule. `published`: everything in the run that has a `_metadata`; `chosen`: what was restored by name."""
    checkpoints: set[CheckpointId] = set(chosen)
    files: set[str] = set()
    damaged: set[CheckpointId] = set()
    for checkpoint in published:
        if checkpoint.metadata is None:
            damaged.add(checkpoint.checkpoint_id)
            files.add(checkpoint.path)
        elif checkpoint.counts or checkpoint.checkpoint_id in chosen:
            checkpoints.add(checkpoint.checkpoint_id)
            files |= {checkpoint.path, *files_of(checkpoint.metadata)}
    return Needed(frozenset(checkpoints | damaged), frozenset(files), frozenset(damaged))
