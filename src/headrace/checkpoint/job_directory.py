"""A job's directory in checkpoint storage.

    <job_id>/lease-000004                    who runs the job right now (lease.py)
    <job_id>/run-000001/
        attempt-000003                       claims the number (attempts.py)
        restored-000003                      what attempt 3 started from (lineage.py)
        stopping-000003-000012               attempt 3 is about to publish savepoint 12 and stop; JSON: where
        chk-000007/attempt-000003/...        state files, named by the attempt that wrote them
        chk-000007/_metadata                 exclusive create: the one commit point
        published-000003-000007              that it was published (published.py)
        shared/<2 hex>/<sha256>-000003-000007.sst
        _ended                               the run is over; the next start begins run 2

**Fencing.** A new attempt creates `attempt-n`, *then* lists checkpoints, *then* records what it restores from. A
checkpoint of attempt *a* counts only if its id is ≤ what every recorded later attempt restored from: a paused
driver that wakes up and publishes can do no harm. After publishing, and before any commit or delete, a driver
looks for a newer attempt, and for its own file: storage that does not have that is not the storage of this job.
"""

from __future__ import annotations

import contextlib
import copy
import re
import secrets
from collections.abc import Iterable, Sequence
from typing import Literal

from headrace.checkpoint.attempts import Attempts, newest_attempt, numbers_of
from headrace.checkpoint.control_files import DamagedRecordError, decode_record, encode_record
from headrace.checkpoint.handles import AttemptId, CheckpointId, HistoryPoint
from headrace.checkpoint.lineage import MAX_BOUNDS, Lineage
from headrace.checkpoint.metadata.codec import decode_metadata, encode_metadata, files_of
from headrace.checkpoint.metadata.model import CheckpointMetadata
from headrace.checkpoint.needed import Needed, needed_of
from headrace.checkpoint.publication import PublishOutcomeUnknownError, publish_exclusively
from headrace.checkpoint.published import CheckpointRef, Marker, PublishedCheckpoint
from headrace.checkpoint.storage.base import AlreadyExistsError, CheckpointStorage, MissingFileError
from headrace.checkpoint.storage.paths import SharedName, WriterScope
from headrace.checkpoint.survey import Survey, checkpoint_ids
from headrace.clocks import SYSTEM_CLOCKS, Clocks
from headrace.errors import (
    ConfigurationError,
    DamagedCheckpointError,
    FencedError,
    RestoreError,
    StorageError,
    UnsupportedFormatError,
)

__all__ = ["CheckpointRef", "JobDirectory", "PublishOutcomeUnknownError", "PublishedCheckpoint"]

GRACE_MS = 30_000
"""How long a shared file must have been unneeded before it is removed, so that a reader of the last moment finishes."""

ENDED = "_ended"
OLD_STOPPING = ("checkpoint_id", "savepoint")
OLD_ENDED = ("status", "ended_ms")

_JOB_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}")
_CHECKPOINT_FILE = re.compile(r"chk-(\d{1,18})/(.+)")


class JobDirectory:
    """The checkpoints of one job. Used by one thread of the driver at a time; the state is on disk.

    In order: `open_run`, `claim_attempt`, `survey`, `record_restored`, then any number of `publish` and `drop`.
    """

    def __init__(
        self,
        storage: CheckpointStorage,
        job_id: str,
        *,
        clocks: Clocks = SYSTEM_CLOCKS,
        grace_ms: int = GRACE_MS,
    ) -> None:
        if _JOB_ID.fullmatch(job_id) is None:
            raise ConfigurationError(
                f"Job id {job_id!r} cannot name a directory: use up to 200 letters, digits, '_', '-' and '.'."
            )
        self.storage = storage
        self.job_id = job_id
        self._clocks = clocks
        self._grace_ms = grace_ms
        self._run = 0
        self._run_attempts: Attempts | None = None
        self._attempt: AttemptId | None = None
        self._retired = False
        self.attempts_before = 0
        """The last attempt of earlier runs; known from `claim_attempt` on."""
        self.history = ""
        """Names this directory's numbering of attempts, over all its runs; known from `claim_attempt` on."""
        self._inherited = Lineage()
        """What earlier runs leave to a run without a record of its own."""
        self._unneeded_since: dict[str, int] = {}
        self._highest_tried: CheckpointId = 0
        self._kept: Needed | None = None
        """What must stay whatever the driver retains: as it was when shared files were first collected."""

    # Runs and attempts

    def open_run(self) -> int:
        """The newest run, or a new one if that has ended. Called once, before anything else."""
        run = max(self.runs(), default=1)
        if self.storage.exists(f"{self.job_id}/run-{run:06d}/{ENDED}"):
            run += 1
        self.look_at(run)
        return run

    def runs(self) -> list[int]:
        """The numbers of all runs that left something, ended ones too."""
        return numbers_of((name.rstrip("/") for name in self.storage.list_names(self.job_id, "run-")), "run-")

    def look_at(self, run: int) -> None:
        """Read this run from now on, instead of the newest that `open_run` finds. Not for a driver."""
        self._run = run
        self._run_attempts = Attempts(self.storage, self.job_id, run)
        self._kept = None

    def claim_attempt(self) -> AttemptId:
        """Take the next attempt number; from now on every older attempt is fenced off.

        A run goes on counting where the one before it ended, so that what a sink names by attempt is named once.
        """
        names = self._attempts.names()
        lineage, _ = self._attempts.lineage(names)
        earlier = Attempts(self.storage, self.job_id, self._run - 1)
        names_earlier = earlier.names() if self._run > 1 else ()
        self.attempts_before = newest_attempt(names_earlier)
        self._inherited = earlier.lineage(names_earlier)[0].for_next_run()
        self.history = (
            lineage.history
            or self._attempts.history(names)
            or self._inherited.history
            or earlier.history(names_earlier)
            or self._history_of_checkpoints(names)
            or secrets.token_hex(6)
        )
        self._kept = None
        self._attempt = self._attempts.claim(
            self.attempts_before, self.history, self._clocks.wall_ms(), self._refuse_if_retired
        )
        return self._attempt

    def retire(self) -> None:
        """The job has ended in this process, whose thread may be waiting for storage: it must not fence off the next.

        May be called from any thread.
        """
        self._retired = True

    def _refuse_if_retired(self) -> None:
        if self._retired:
            raise FencedError(f"Job {self.job_id} has ended in this process, which claims no further attempt.")

    def known_history(self) -> str:
        """The history of this directory as its newest attempt recorded it; empty if there is none. Claims nothing."""
        attempts = Attempts(self.storage, self.job_id, max(self.runs(), default=1))
        names = attempts.names()
        return attempts.lineage(names)[0].history or attempts.history(names)

    def _history_of_checkpoints(self, names: tuple[str, ...]) -> str:
        """What is left of the name where the files of attempts are damaged or gone."""
        found = (checkpoint.metadata for checkpoint in self._published(names, Lineage()))
        return next((metadata.history for metadata in found if metadata is not None and metadata.history), "")

    def newest_attempt(self) -> AttemptId:
        """The highest number claimed in this run; 0 if there is none."""
        return newest_attempt(self._attempts.names())

    def assert_current(self, attempt: AttemptId) -> None:
        """Raise `FencedError` if a newer attempt exists. Called after publishing and before any commit or delete.

        `StorageError` if storage does not answer, or does not have the attempt's own file: it is not this job's.
        """
        self._attempts.assert_current(attempt)

    def record_restored(
        self,
        attempt: AttemptId,
        checkpoint_id: CheckpointId | None,
        source: str = "",
        origin: HistoryPoint | None = None,
        *,
        accepts_duplicates: bool = False,
    ) -> None:
        """Say what the attempt starts from, once, before its tasks start.

        `source` names a place outside this run, and `origin` what was restored from there. `accepts_duplicates`:
        output that earlier attempts committed may be written again.
        """
        names = self._attempts.names()
        before, damage = self._lineage(names)
        lineage = before.after(
            attempt, checkpoint_id, source, origin, job_id=self.job_id, accepted=accepts_duplicates
        ).seen(self.history, max(self._ids(names), default=0))
        if len(lineage.bounds) > MAX_BOUNDS:
            counting = [c.metadata for c in self._published(names, lineage) if c.counts and c.metadata is not None]
            lineage = lineage.trimmed(min((metadata.attempt for metadata in counting), default=attempt))
        self._attempts.record(lineage, origin)
        self.assert_current(attempt)
        if before.cumulative and damage is None:
            self._attempts.remove_old(names, attempt)

    def lineage(self) -> Lineage:
        """What the newest attempt that recorded it started from, and what is known of those before it."""
        lineage, damage = self._lineage(self._attempts.names())
        if damage is not None:
            raise damage
        return lineage

    def _lineage(self, names: tuple[str, ...]) -> tuple[Lineage, RestoreError | None]:
        found, damage = self._attempts.lineage(names)
        return found if found.attempt else self._inherited, damage

    def first_attempt_from(self, point: HistoryPoint) -> AttemptId | None:
        """The first attempt of any run here that began from that moment of another history, or from a later one."""
        return self._lineage(self._attempts.names())[0].first_attempt_from(point)

    def restored_source(self) -> str:
        """Where the newest recorded attempt started from if outside this run; needed until a checkpoint completes."""
        return self.lineage().source

    def record_stopping(self, attempt: AttemptId, checkpoint_id: CheckpointId, location: str) -> None:
        """Say, before a savepoint that stops the job is published outside, where it will be.

        Its sinks commit once it is published: a start after a crash in between must go on from it, and not from an
        older checkpoint, or output would be written twice.
        """
        self.assert_current(attempt)
        record = {"checkpoint_id": checkpoint_id, "savepoint": location}
        self._create(f"stopping-{attempt:06d}-{checkpoint_id:06d}", encode_record(record))

    def stopping_savepoint(self) -> str | None:
        """The savepoint that the last attempt that ran was about to publish in order to stop, if there was one.

        It may never have been published: the caller looks whether it is there.
        """
        names = self._attempts.names()
        last = max(numbers_of(names, "restored-"), default=0)
        stopping = sorted(name for name in names if name.startswith(f"stopping-{last:06d}-"))
        if not last or not stopping:
            return None
        path = self._path(stopping[-1])
        try:
            record = decode_record(self.storage.read(path), OLD_STOPPING)
            if record["checkpoint_id"] != int(path.rpartition("-")[2]):
                raise DamagedRecordError(f"it belongs to savepoint {record['checkpoint_id']}")
            return str(record["savepoint"])
        except (DamagedRecordError, KeyError) as error:
            raise DamagedCheckpointError(
                f"{self.storage.location}/{path} is damaged ({error}), so it is not known with which savepoint the job "
                "was about to stop. Start from that savepoint with --from."
            ) from error

    def for_attempt(self, attempt: AttemptId) -> JobDirectory:
        """A view for the I/O threads of one attempt: refused as soon as a newer one exists, also of this process."""
        view = copy.copy(self)
        view._attempt = attempt
        view._unneeded_since = dict(self._unneeded_since)
        return view

    # Checkpoints

    def survey(self) -> Survey:
        """Everything in this run at this moment. Reads each record and each `_metadata` once."""
        names = self._attempts.names()
        lineage, damage = self._lineage(names)
        markers = sorted(marker for name in names if (marker := Marker.named(name)) is not None)
        published = self._published(names, lineage, markers)
        where = f"{self.storage.location}/{self._home}"
        return Survey(self._run, where, names, lineage, damage, tuple(published), tuple(markers))

    def _published(
        self, names: tuple[str, ...], lineage: Lineage, markers: Iterable[Marker] = ()
    ) -> list[PublishedCheckpoint]:
        """Everything in this run that has a `_metadata`, oldest first, also what is damaged or does not count."""
        found: list[PublishedCheckpoint] = []
        of_id = {marker.checkpoint_id: marker for marker in markers}
        for checkpoint_id in sorted(checkpoint_ids(names)):
            path = self._metadata_path(checkpoint_id)
            try:
                data = self.storage.read(path)
                metadata = self._decode(data, path, checkpoint_id)
                self._compare(data, path, of_id.get(checkpoint_id), metadata)
            except MissingFileError:
                continue  # not published, or dropped since it was listed
            except (DamagedCheckpointError, UnsupportedFormatError) as error:
                found.append(PublishedCheckpoint(checkpoint_id, path, None, False, error))
                continue
            counts = lineage.counts(metadata.attempt, checkpoint_id)
            found.append(PublishedCheckpoint(checkpoint_id, path, metadata, counts))
        return found

    def _compare(self, data: bytes, path: str, marker: Marker | None, metadata: CheckpointMetadata) -> None:
        """Raise if the marker of that checkpoint names other metadata."""
        if marker is None or marker.attempt != metadata.attempt:
            return
        try:
            differs = marker.differs(self.storage.read(self._path(marker.name)), data)
        except MissingFileError:
            return
        if differs:
            raise DamagedCheckpointError(
                f"{self.storage.location}/{path} is not what was published: {marker.name} names another hash. Put the "
                "right file back, or restore from another checkpoint with --from."
            )

    def completed(self) -> list[CheckpointRef]:
        """All checkpoints of this run that count, oldest first; see `Survey.completed`."""
        return [CheckpointRef.of(c.metadata, c.path) for c in self.survey().completed() if c.metadata is not None]

    def published(self) -> list[PublishedCheckpoint]:
        """Everything in this run that has a `_metadata`, oldest first, also what is damaged or does not count.

        For those who look at a directory; a restore goes by `completed`.
        """
        survey = self.survey()
        if survey.damage is not None:
            raise survey.damage
        return list(survey.published)

    def newest(self) -> CheckpointRef | None:
        """What a new attempt restores from."""
        return self.survey().newest()

    def load(self, ref: CheckpointRef) -> CheckpointMetadata:
        """The metadata, checked by hash; its state files are checked when they are fetched."""
        return self._decode(self.storage.read(ref.path), ref.path, ref.checkpoint_id)

    def next_checkpoint_id(self) -> CheckpointId:
        """Larger than any id in the directory, published, abandoned or restored from, and than any tried from here.

        What storage did not answer may still be on its way to it.
        """
        names = self._attempts.names()
        known = self._lineage(names)[0].highest_id
        return max({*self._ids(names), known, self._highest_tried}) + 1

    def prefix_for(self, checkpoint_id: CheckpointId, attempt: AttemptId) -> str:
        """Where tasks of that attempt store files of that checkpoint: the argument of `storage.file_store`.

        Only state files belong there: a sink's own log must outlive an abandoned checkpoint.
        """
        return WriterScope(self._home, checkpoint_id, attempt).prefix

    def publish(self, metadata: CheckpointMetadata) -> CheckpointRef:
        """Make the checkpoint complete: the commit point. Then note beside it that it was published.

        `FencedError`: a newer attempt exists, do nothing more. `PublishOutcomeUnknownError`: it may have happened, keep
        every file. Any other `StorageError`: it did not happen.
        """
        path = self._metadata_path(metadata.checkpoint_id)
        self.assert_current(metadata.attempt)
        self._highest_tried = max(self._highest_tried, metadata.checkpoint_id)
        data = encode_metadata(metadata)
        try:
            publish_exclusively(self.storage, path, data, inside=self._home)
        except StorageError:
            # A zombie may learn here that its id is taken; being fenced off is then the answer that matters. If that
            # cannot be known, what became of the checkpoint still can.
            with contextlib.suppress(StorageError):
                self.assert_current(metadata.attempt)
            raise
        marker = Marker(metadata.checkpoint_id, metadata.attempt)
        try:
            publish_exclusively(self.storage, self._path(marker.name), marker.encode(data), inside=self._home)
            self.assert_current(metadata.attempt)
        except StorageError as error:
            raise PublishOutcomeUnknownError(
                f"{path} was published, but whether that lasts, and whether attempt {metadata.attempt} still owned the "
                f"job, is unknown: {error}"
            ) from error
        return CheckpointRef.of(metadata, path)

    # Removal

    def drop(self, checkpoint_ids: Iterable[CheckpointId]) -> None:
        """Delete checkpoints with all files that are theirs alone; shared ones are left to `collect_shared`."""
        self._assert_own()
        dropped = set(checkpoint_ids)
        markers = self._markers() if dropped else []
        for checkpoint_id in sorted(dropped):
            # Metadata first: what has none is no checkpoint, whatever a crash leaves of the rest.
            self.storage.delete(self._metadata_path(checkpoint_id))
            self.storage.delete_tree(self._path(f"chk-{checkpoint_id:06d}"))
        for marker in markers[:-1]:  # the newest tells the next start what it must find
            if marker.checkpoint_id in dropped:
                self.storage.delete(self._path(marker.name))

    def orphans(self) -> list[CheckpointId]:
        """Ids below the newest checkpoint that left files and that nothing needs; a new attempt may drop them."""
        return self.survey().orphans()

    def discard(self, files: Iterable[str]) -> None:
        """Delete files of abandoned checkpoints or late acknowledgements.

        Shared files and whatever a published checkpoint names are left alone, so a mistake in the caller
        costs space, not state.
        """
        self._assert_own()
        named: dict[int, set[str]] = {}
        for path in files:
            match = _CHECKPOINT_FILE.fullmatch(path.removeprefix(f"{self._home}/"))
            if match is None or not path.startswith(f"{self._home}/") or match[2] == "_metadata":
                continue
            checkpoint_id = int(match[1])
            if checkpoint_id not in named:
                named[checkpoint_id] = self._files_published(checkpoint_id)
            if path not in named[checkpoint_id]:
                self.storage.delete(path)

    def collect_shared(
        self,
        retained: Iterable[CheckpointMetadata],
        attempt: AttemptId,
        *,
        pending: Iterable[CheckpointId] = (),
        known_shared: Iterable[str] = (),
        next_id: CheckpointId | None = None,
        grace_ms: int | None = None,
    ) -> list[str]:
        """Delete shared files that nothing needs, and return their paths. List, mark, wait, sweep; nothing is counted.

        `retained`: every checkpoint of the driver's own that is still there; what else must stay, such as a checkpoint
        that was restored by name, is known here. `pending`: open and undecided ones, whose tasks may have stored
        files that nobody has named yet. `known_shared`: names that were given to their tasks as known.
        `next_id`: checkpoints of this attempt from that id on were triggered after the caller decided.
        A file is removed if none of these needs it, an attempt ≤ `attempt` stored it, and the same was so
        `grace_ms` ago.
        """
        needed = set(known_shared)
        for metadata in retained:
            needed |= files_of(metadata)
        kept = self._what_stays()
        open_ids = set(pending)
        wait_ms = self._grace_ms if grace_ms is None else grace_ms
        now = self._clocks.steady_ms()
        marks: dict[str, int] = {}
        due: list[str] = []
        for path in self.storage.list(self._path("shared/")):
            name = SharedName.of(path)
            if name is None or path in needed or name.attempt > attempt or kept.spares_shared(path):
                continue
            newer = next_id is not None and name.checkpoint_id >= next_id
            if name.attempt == attempt and (newer or name.checkpoint_id in open_ids):
                continue
            marks[path] = self._unneeded_since.get(path, now)
            if now - marks[path] >= wait_ms:
                due.append(path)
        self._unneeded_since = marks
        if due:
            self.assert_current(attempt)
        for path in due:
            self.storage.delete(path)
            del marks[path]
        return due

    def _what_stays(self) -> Needed:
        """What was restored by name, is damaged or superseded stays as long as this attempt: known from one look.

        A superseded checkpoint goes as a whole or not at all: one without its shared files could still be chosen.
        """
        if self._kept is None:
            survey = self.survey()
            chosen = survey.lineage.chosen_in(self._run)
            others = [c for c in survey.published if not c.counts or c.checkpoint_id in chosen]
            self._kept = needed_of(others, {c.checkpoint_id for c in others})
        return self._kept

    def tidy(self) -> None:
        """The run has ended and its checkpoints are kept: delete what nothing needs. No task writes any more."""
        self._assert_own()
        survey = self.survey()
        self.drop(survey.checkpoint_ids() - survey.needed().checkpoints)
        self._kept = None
        if self._attempt is not None:
            retained = [c.metadata for c in survey.completed() if c.metadata is not None]
            self.collect_shared(retained, self._attempt, grace_ms=0)

    def delete_checkpoints(self) -> None:
        """Delete every checkpoint of the run with its shared files: what cancelling does unless they are retained."""
        self._assert_own()
        self.drop(checkpoint_ids(self._attempts.names()))
        self.storage.delete_tree(self._path("shared"))

    def end(self, status: Literal["FINISHED", "CANCELED", "ABANDONED"]) -> None:
        """The run is over: the same command begins a new one. Harmless if it had ended already."""
        self._assert_own()
        try:
            self._create(ENDED, encode_record({"status": status, "ended_ms": self._clocks.wall_ms()}))
        except AlreadyExistsError:
            return

    # Names

    @property
    def _attempts(self) -> Attempts:
        if self._run_attempts is None:
            raise ValueError("open_run() comes first")
        return self._run_attempts

    @property
    def _home(self) -> str:
        return self._attempts.home

    def _path(self, name: str) -> str:
        return f"{self._home}/{name}"

    def _metadata_path(self, checkpoint_id: CheckpointId) -> str:
        return self._path(f"chk-{checkpoint_id:06d}/_metadata")

    def _create(self, name: str, data: bytes) -> None:
        self.storage.create_inside(self._home, self._path(name), data)

    def _markers(self) -> list[Marker]:
        names = self.storage.list_names(self._home, "published-")
        return sorted(marker for name in names if (marker := Marker.named(name)) is not None)

    @staticmethod
    def _ids(names: Sequence[str]) -> set[CheckpointId]:
        """Every checkpoint that a name in the run's directory tells of."""
        markers = {marker.checkpoint_id for name in names if (marker := Marker.named(name)) is not None}
        return checkpoint_ids(tuple(names)) | markers

    def _files_published(self, checkpoint_id: CheckpointId) -> set[str]:
        path = self._metadata_path(checkpoint_id)
        try:
            return files_of(self._decode(self.storage.read(path), path, checkpoint_id))
        except MissingFileError:
            return set()

    def _assert_own(self) -> None:
        if self._attempt is not None:
            self.assert_current(self._attempt)

    def _decode(self, data: bytes, path: str, checkpoint_id: CheckpointId) -> CheckpointMetadata:
        where = f"{self.storage.location}/{path}"
        metadata = decode_metadata(data, where)
        if metadata.job_id != self.job_id or metadata.checkpoint_id != checkpoint_id:
            raise DamagedCheckpointError(
                f"{where} belongs to checkpoint {metadata.checkpoint_id} of job {metadata.job_id}: it was copied "
                f"there. Put it back, or restore from it with --from."
            )
        return metadata
