"""Everything in a run of a job at one moment, read once: which checkpoints count, and what must stay.

A survey holds facts and decides; it touches no storage. `JobDirectory.survey` makes one.
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace.checkpoint.handles import CheckpointId
from headrace.checkpoint.lineage import Lineage
from headrace.checkpoint.metadata.model import CheckpointMetadata
from headrace.checkpoint.needed import Needed, needed_of
from headrace.checkpoint.published import CheckpointRef, Marker, PublishedCheckpoint
from headrace.errors import CheckpointLostError, RestoreError


@dataclass(frozen=True, slots=True)
class Survey:
    """One run."""

    run: int
    home: str
    """Its directory in the storage, for messages with the storage's location in front."""
    names: tuple[str, ...]
    """What lies directly in it."""
    lineage: Lineage
    damage: RestoreError | None
    """Why it is not known which checkpoints count, if the newest record of an attempt cannot be read."""
    published: tuple[PublishedCheckpoint, ...]
    """Oldest first."""
    markers: tuple[Marker, ...]
    """Oldest first, also of checkpoints that do not count."""

    def completed(self) -> list[PublishedCheckpoint]:
        """All checkpoints that count, oldest first.

        A damaged or missing one is left out if a newer one counts; otherwise it is an error: going back further than
        the newest checkpoint could show output twice, and must be somebody's decision.
        """
        if self.damage is not None:
            raise self.damage
        found = [checkpoint for checkpoint in self.published if checkpoint.counts]
        newest = found[-1].checkpoint_id if found else 0
        damaged = [c for c in self.published if c.problem is not None and self._would_count(c.checkpoint_id)]
        if damaged and damaged[-1].problem is not None and damaged[-1].checkpoint_id > newest:
            raise damaged[-1].problem
        markers = [m for m in self.markers if self.lineage.counts(m.attempt, m.checkpoint_id)]
        if markers and markers[-1].checkpoint_id > newest:
            lost = markers[-1]
            raise CheckpointLostError(
                f"Checkpoint {lost.checkpoint_id} (attempt {lost.attempt}) was the last one published in {self.home}, "
                f"but its chk-{lost.checkpoint_id:06d}/_metadata is gone. Its output may be committed, so the job does "
                "not go on from anything older by itself. Put the file back; or start from a checkpoint or savepoint "
                "of your choice with --from, or from the very beginning with --fresh."
            )
        return found

    def _would_count(self, damaged: CheckpointId) -> bool:
        """Whether a damaged checkpoint would count if it were whole: nobody has chosen to begin from an older one."""
        marker = next((marker for marker in self.markers if marker.checkpoint_id == damaged), None)
        if marker is not None:
            return self.lineage.counts(marker.attempt, damaged)
        # Without a marker: if the newest attempt saw it when it began, it is as old as what that attempt began from.
        return damaged > self.lineage.highest_id or damaged <= (self.lineage.checkpoint_id or 0)

    def newest(self) -> CheckpointRef | None:
        """What a new attempt restores from."""
        found = self.completed()
        if not found or found[-1].metadata is None:
            return None
        return CheckpointRef.of(found[-1].metadata, found[-1].path)

    def metadata(self, ref: CheckpointRef) -> CheckpointMetadata:
        """Of a checkpoint that counts."""
        (found,) = (c.metadata for c in self.published if c.checkpoint_id == ref.checkpoint_id)
        assert found is not None
        return found

    def checkpoint_ids(self) -> set[CheckpointId]:
        """Ids of all checkpoints that left any file, published or not."""
        return checkpoint_ids(self.names)

    def needed(self, chosen: frozenset[CheckpointId] = frozenset()) -> Needed:
        """What must stay; `chosen`: checkpoints of this run that other runs of the job began from."""
        return needed_of(self.published, chosen | self.lineage.chosen_in(self.run))

    def orphans(self) -> list[CheckpointId]:
        """Ids below the newest checkpoint that left files and that nothing needs; a new attempt may drop them."""
        counted = self.completed()
        if not counted:
            return []
        left = {marker.checkpoint_id for marker in self.markers} | self.checkpoint_ids()
        needed = self.needed().checkpoints
        return sorted(n for n in left - needed if n < counted[-1].checkpoint_id)


def checkpoint_ids(names: tuple[str, ...]) -> set[CheckpointId]:
    """The checkpoints among the names in the directory of a run."""
    numbers = (name[4:].rstrip("/") for name in names if name.startswith("chk-"))
    return {int(number) for number in numbers if number.isascii() and number.isdigit()}
