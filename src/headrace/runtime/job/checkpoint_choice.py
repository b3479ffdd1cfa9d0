"""Which checkpoint an attempt begins from, whether it may, and whose that checkpoint is then."""

from __future__ import annotations

import contextlib

from headrace.checkpoint.claims import claim, claimant
from headrace.checkpoint.job_directory import JobDirectory
from headrace.checkpoint.location import MissingCheckpointError, OpenedCheckpoint, open_checkpoint
from headrace.checkpoint.metadata.model import CheckpointMetadata
from headrace.checkpoint.survey import Survey
from headrace.plan.graph import JobPlan
from headrace.plan.settings import JobSettings
from headrace.runtime.job.rewind_check import refuse_rewind


class CheckpointChoice:
    """Made once for a job in its process, and asked by its runner at the beginning of each attempt."""

    def __init__(self, plan: JobPlan, settings: JobSettings, directory: JobDirectory) -> None:
        self._plan = plan
        self._settings = settings
        self._directory = directory
        self._asked = ""
        """Where the checkpoint that --from names lies."""
        self.stopped_with = ""
        """Where the savepoint lies that was to stop this job, and that it goes on from."""

    def choose(self, survey: Survey, *, first: bool) -> tuple[CheckpointMetadata | None, OpenedCheckpoint | None]:
        """The checkpoint to restore, and where it lies if outside.

        In this order: what was asked for, at the first start; a savepoint that was to stop the job, if the driver died
        before it had stopped; the newest of this run; what this run began from.
        """
        asked = self._settings.restore_from
        if asked and first:
            return self.open(asked)
        stopping = self._directory.stopping_savepoint()
        if stopping is not None:
            # Not published: then nothing was committed, and the newest checkpoint is the one to go on from.
            with contextlib.suppress(MissingCheckpointError):
                metadata, opened = self.open(stopping)
                self.stopped_with = opened.path
                return metadata, opened
        newest = survey.newest()
        if newest is not None:
            return survey.metadata(newest), None
        source = survey.lineage.source
        return self.open(source) if source else (None, None)

    def open(self, path: str) -> tuple[CheckpointMetadata, OpenedCheckpoint]:
        """A checkpoint or savepoint by its path."""
        opened = open_checkpoint(path)
        if path == self._settings.restore_from:
            self._asked = opened.path
        return opened.metadata, opened

    def refuse_rewind(self, metadata: CheckpointMetadata | None, survey: Survey, number: int, asked: str) -> None:
        """Raise if sinks have committed newer output. `asked`: where the checkpoint lies if a person chose it."""
        directory = self._directory
        if metadata is None and (number == directory.attempts_before + 1 or not self._settings.checkpointing.enabled):
            return  # the first attempt of a run has nothing to rewind; without checkpoints a job goes on where it was
        accepted_before = 0 if asked else survey.lineage.accepted_before
        refuse_rewind(self._plan, metadata, directory, asked, accepted_before=accepted_before)

    def claim(self, outside: OpenedCheckpoint | None) -> OpenedCheckpoint | None:
        """What of outside this job owns from now on: what --claim says, or said when this run began from it."""
        if outside is None:
            return None
        settings, storage = self._settings, self._settings.checkpointing.storage
        if outside.path == self._asked:
            if not settings.claim:
                return None
            claim(outside, settings.job_id, storage)
            return outside
        owner = claimant(outside)
        is_ours = owner is not None and (owner.job_id, owner.storage) == (settings.job_id, storage.location)
        return outside if is_ours else None
