"""A job's directory in checkpoint storage.

    <job_id>/lease-000004                    who runs the job right now (lease.py)
    <job_id>/run-000001/
        attempt-000003                       exclusive create: claims the number; JSON: pid, host, started_ms, history
        restored-000003                      what attempt 3 started from; JSON: checkpoint_id or null, source, origin
        stopping-000003                      attempt 3 is about to publish a savepoint and stop; JSON: where
        chk-000007/attempt-000003/...        state files, named by the attempt that wrote them
        chk-000007/_metadata                 exclusive create: the one commit point
        shared/<2 hex>/<sha256>-000003-000007.sst
        _ended                               FINISHED or CANCELED; the next start begins run 2

**Fencing.** A new attempt creates `attempt-n`, *then* lists checkpoints, *then* records what it restores from. A
checkpoint of attempt *a* counts only if its id is ≤ what every recorded later attempt restored from: a paused
driver that wakes up and publishes can do no harm. After publishing, and before any commit or delete, a driver
looks for a newer attempt. Numbers are claimed without gaps, so it has to look for its own number + 1 only.
"""

from __future__ import annotations

import contextlib
import copy
import json
import os
import re
import secrets
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from headrace.checkpoint.handles import AttemptId, CheckpointId, HistoryPoint
from headrace.checkpoint.metadata.codec import decode_metadata, encode_metadata, files_of
from headrace.checkpoint.metadata.model import CheckpointKind, CheckpointMetadata
from headrace.checkpoint.publication import PublishOutcomeUnknownError, publish_exclusively
from headrace.checkpoint.storage.base import AlreadyExistsError, CheckpointStorage, MissingFileError
from headrace.checkpoint.storage.paths import SharedName, WriterScope
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

_JOB_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}")
_CHECKPOINT_FILE = re.compile(r"chk-(\d{1,18})/(.+)")


@dataclass(frozen=True, slots=True)
class CheckpointRef:
    """A checkpoint that is complete and counts."""

    checkpoint_id: CheckpointId
    attempt: AttemptId
    kind: CheckpointKind
    path: str
    """Of its `_metadata`, in the job's storage."""
    created_ms: int


@dataclass(frozen=True, slots=True)
class PublishedCheckpoint:
    """A `_metadata` that was found in a run."""

    checkpoint_id: CheckpointId
    path: str
    """Of its `_metadata`, in the job's storage."""
    metadata: CheckpointMetadata | None
    """None if it is damaged."""
    counts: bool
    """Whether a restore may take it: it is whole, and no later attempt began before it was published."""
    problem: RestoreError | None = None


class JobDirectory:
    """The checkpoints of one job. Used by one thread of the driver; the state is on disk, so it may be made anew.

    In order: `open_run`, `claim_attempt`, `newest`, `record_restored`, then any number of `publish` and `drop`.
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
        self._attempt: AttemptId | None = None
        self._retired = False
        self.history = ""
        """Names this directory's numbering of attempts, over all its runs; known from `claim_attempt` on."""
        self._unneeded_since: dict[str, int] = {}
        self._highest_tried: CheckpointId = 0

    # Runs and attempts

    def open_run(self) -> int:
        """The newest run that has not ended, or a new one. Called once, before anything else."""
        run = 1
        while self.storage.exists(f"{self.job_id}/run-{run:06d}/_ended"):
            run += 1
        self._run = run
        return run

    def runs(self) -> list[int]:
        """The numbers of all runs that left something, ended ones too."""
        start = f"{self.job_id}/run-"
        numbers = {path[len(start) :].partition("/")[0] for path in self.storage.list(start)}
        return sorted(int(number) for number in numbers if number.isascii() and number.isdigit())

    def look_at(self, run: int) -> None:
        """Read this run from now on, instead of the newest that `open_run` finds. Not for a driver."""
        self._run = run

    def claim_attempt(self) -> AttemptId:
        """Take the next attempt number; from now on every older attempt is fenced off.

        A run goes on counting where the one before it ended, so that what a sink names by attempt is named once.
        """
        before = self._last_attempt_of_run(self._run - 1)
        claim = {"pid": os.getpid(), "host": socket.gethostname(), "started_ms": self._clocks.wall_ms()}
        while True:
            newest = self.newest_attempt()
            attempt = (newest or before) + 1
            claim["history"] = self.history = self._history_of(self._run if newest else self._run - 1, attempt - 1)
            if self._retired:
                raise FencedError(f"Job {self.job_id} has ended in this process, which claims no further attempt.")
            try:
                self.storage.create_exclusive(self._path(f"attempt-{attempt:06d}"), _json(claim))
            except AlreadyExistsError:
                continue
            self._attempt = attempt
            return attempt

    def retire(self) -> None:
        """The job has ended in this process, whose thread may be waiting for storage: it must not fence off the next.

        May be called from any thread.
        """
        self._retired = True

    def _history_of(self, run: int, attempt: AttemptId) -> str:
        """The name of this directory's history, which its first attempt invents and every other takes over."""
        known = self._recorded_history(run, attempt) if attempt else ""
        return known or secrets.token_hex(6)

    def _recorded_history(self, run: int, attempt: AttemptId) -> str:
        with contextlib.suppress(MissingFileError, ValueError, AttributeError):
            record = json.loads(self.storage.read(f"{self.job_id}/run-{run:06d}/attempt-{attempt:06d}"))
            if isinstance(known := record.get("history"), str):
                return known
        return ""

    def known_history(self) -> str:
        """The history of this directory as its newest attempt recorded it; empty if there is none. Claims nothing."""
        run = max(self.runs(), default=0)
        attempt = self._last_attempt_of_run(run)
        return self._recorded_history(run, attempt) if attempt else ""

    def _last_attempt_of_run(self, run: int) -> AttemptId:
        start = f"{self.job_id}/run-{run:06d}/attempt-"
        return max((int(path.removeprefix(start)) for path in self.storage.list(start)), default=0) if run else 0

    def newest_attempt(self) -> AttemptId:
        """The highest number claimed in this run; 0 if there is none."""
        return max(self._numbers("attempt-"), default=0)

    def assert_current(self, attempt: AttemptId) -> None:
        """Raise `FencedError` if a newer attempt exists. Called after publishing and before any commit or delete."""
        if self.storage.exists(self._path(f"attempt-{attempt + 1:06d}")):
            raise FencedError(
                f"Attempt {attempt} of job {self.job_id} is fenced off: attempt {self.newest_attempt()} took over. "
                f"This driver publishes, commits and deletes nothing more."
            )

    def record_restored(
        self,
        attempt: AttemptId,
        checkpoint_id: CheckpointId | None,
        source: str = "",
        origin: HistoryPoint | None = None,
    ) -> None:
        """Say what the attempt starts from, once, before its tasks start.

        `source` names a place outside this run, and `origin` what was restored from there.
        """
        record: dict[str, Any] = {"checkpoint_id": checkpoint_id, "source": source}
        if origin is not None:
            record["origin"] = [origin.history, origin.attempt, origin.checkpoint_id]
        self.storage.create_exclusive(self._path(f"restored-{attempt:06d}"), _json(record))
        self.assert_current(attempt)

    def first_attempt_from(self, point: HistoryPoint) -> AttemptId | None:
        """The first attempt of any run here that began from that moment of another history, or from a later one."""
        start = f"{self.job_id}/run-"
        for path in sorted(path for path in self.storage.list(start) if "/restored-" in path):
            with contextlib.suppress(MissingFileError, ValueError, TypeError, AttributeError):
                origin = HistoryPoint(*json.loads(self.storage.read(path)).get("origin"))
                if origin.history == point.history and origin[1:] >= point[1:]:
                    return int(path.rpartition("-")[2])
        return None

    def restored_source(self) -> str:
        """Where the newest recorded attempt started from if outside this run; needed until a checkpoint completes."""
        newest = max(self._numbers("restored-"), default=0)
        return str(self._read_restored(newest).get("source", "")) if newest else ""

    def record_stopping(self, attempt: AttemptId, checkpoint_id: CheckpointId, location: str) -> None:
        """Say, before a savepoint that stops the job is published outside, where it will be.

        Its sinks commit once it is published: whoever comes after a crash in between must go on from it, and not
        from an older checkpoint, or output would be written twice.
        """
        self.assert_current(attempt)
        record = {"checkpoint_id": checkpoint_id, "savepoint": location}
        self.storage.create_exclusive(self._path(f"stopping-{attempt:06d}-{checkpoint_id:06d}"), _json(record))

    def stopping_savepoint(self) -> str | None:
        """The savepoint that the last attempt that ran was about to publish in order to stop, if there was one.

        It may never have been published: whoever asks looks whether it is there.
        """
        last = max(self._numbers("restored-"), default=0)
        names = self.storage.list(self._path(f"stopping-{last:06d}-"))
        if not last or not names:
            return None
        record = json.loads(self.storage.read(names[-1]))
        return str(record["savepoint"])

    def restored_ids(self) -> set[CheckpointId]:
        """Ids of the checkpoints of this run that attempts of this run started from."""
        records = (self._read_restored(attempt) for attempt in self._numbers("restored-"))
        return {record["checkpoint_id"] for record in records if record["checkpoint_id"] is not None}

    def for_attempt(self, attempt: AttemptId) -> JobDirectory:
        """A view for the I/O threads of one attempt: refused as soon as a newer one exists, also of this process."""
        view = copy.copy(self)
        view._attempt = attempt
        view._unneeded_since = dict(self._unneeded_since)
        return view

    # Checkpoints

    def completed(self) -> list[CheckpointRef]:
        """All checkpoints of this run that count, oldest first.

        A damaged one is left out if a newer one counts; if none does it is an error: going back further than
        the newest checkpoint could show output twice, and must be somebody's decision.
        """
        found: list[CheckpointRef] = []
        damaged: tuple[CheckpointId, RestoreError] | None = None
        for checkpoint in self.published():
            if checkpoint.problem is not None:
                damaged = (checkpoint.checkpoint_id, checkpoint.problem)
            elif checkpoint.counts and checkpoint.metadata is not None:
                found.append(_ref(checkpoint.metadata, checkpoint.path))
        if damaged is not None and (not found or damaged[0] > found[-1].checkpoint_id):
            raise damaged[1]
        return found

    def published(self) -> list[PublishedCheckpoint]:
        """Everything in this run that has a `_metadata`, oldest first, also what is damaged or does not count.

        For those who look at a directory; a restore goes by `completed`.
        """
        restored = {attempt: self._read_restored(attempt) for attempt in self._numbers("restored-")}
        found: list[PublishedCheckpoint] = []
        for checkpoint_id in self._published_ids():
            path = self._metadata_path(checkpoint_id)
            try:
                metadata = self._decode(path, checkpoint_id)
            except MissingFileError:
                continue  # dropped since it was listed
            except (DamagedCheckpointError, UnsupportedFormatError) as error:
                found.append(PublishedCheckpoint(checkpoint_id, path, None, False, error))
                continue
            bounds = [r["checkpoint_id"] or 0 for attempt, r in restored.items() if attempt > metadata.attempt]
            counts = all(checkpoint_id <= bound for bound in bounds)
            found.append(PublishedCheckpoint(checkpoint_id, path, metadata, counts))
        return found

    def newest(self) -> CheckpointRef | None:
        """What a new attempt restores from."""
        return max(self.completed(), key=lambda ref: ref.checkpoint_id, default=None)

    def load(self, ref: CheckpointRef) -> CheckpointMetadata:
        """The metadata, checked by hash; its state files are checked when they are fetched."""
        return self._decode(ref.path, ref.checkpoint_id)

    def next_checkpoint_id(self) -> CheckpointId:
        """Larger than any id in the directory, published, abandoned or restored from, and than any tried from here.

        What storage did not answer may still be on its way to it.
        """
        ids = {int(match[1]) for match in self._checkpoint_files()} | {self._highest_tried}
        ids.update(self._read_restored(attempt)["checkpoint_id"] or 0 for attempt in self._numbers("restored-"))
        return max(ids, default=0) + 1

    def prefix_for(self, checkpoint_id: CheckpointId, attempt: AttemptId) -> str:
        """Where tasks of that attempt store files of that checkpoint: the argument of `storage.file_store`.

        Only state files belong there: a sink's own log must outlive an abandoned checkpoint.
        """
        return WriterScope(self._home, checkpoint_id, attempt).prefix

    def publish(self, metadata: CheckpointMetadata) -> CheckpointRef:
        """Make the checkpoint complete: the commit point.

        `FencedError`: a newer attempt exists, do nothing more. `PublishOutcomeUnknownError`: it may have happened, keep
        every file. Any other `StorageError`: it did not happen.
        """
        path = self._metadata_path(metadata.checkpoint_id)
        self.assert_current(metadata.attempt)
        self._highest_tried = max(self._highest_tried, metadata.checkpoint_id)
        try:
            publish_exclusively(self.storage, path, encode_metadata(metadata))
        except StorageError:
            # A zombie may learn here that its id is taken; being fenced off is then the answer that matters.
            self.assert_current(metadata.attempt)
            raise
        try:
            self.assert_current(metadata.attempt)
        except StorageError as error:
            raise PublishOutcomeUnknownError(
                f"{path} was published, but whether attempt {metadata.attempt} still owned the job is unknown: {error}"
            ) from error
        return _ref(metadata, path)

    # Removal

    def drop(self, checkpoint_ids: Iterable[CheckpointId]) -> None:
        """Delete checkpoints with all files that are theirs alone; shared ones are left to `collect_shared`."""
        self._assert_own()
        for checkpoint_id in checkpoint_ids:
            # Metadata first: what has none is no checkpoint, whatever a crash leaves of the rest.
            self.storage.delete(self._metadata_path(checkpoint_id))
            self.storage.delete_tree(self._path(f"chk-{checkpoint_id:06d}"))

    def orphans(self) -> list[CheckpointId]:
        """Ids below the newest checkpoint that left files but do not count; a new attempt may drop them."""
        counted = [ref.checkpoint_id for ref in self.completed()]
        if not counted:
            return []
        # One that a person restored from by name is theirs to keep.
        chosen = [str(self._read_restored(attempt).get("source", "")) for attempt in self._numbers("restored-")]
        return sorted(
            checkpoint_id
            for checkpoint_id in {int(match[1]) for match in self._checkpoint_files()} - set(counted)
            if checkpoint_id < counted[-1]
            and not any(source.endswith(f"/{self._path(f'chk-{checkpoint_id:06d}')}") for source in chosen)
        )

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
    ) -> list[str]:
        """Delete shared files that nothing needs, and return their paths. List, mark, wait, sweep; nothing is counted.

        `retained`: every checkpoint that is still there. `pending`: open and undecided ones, whose tasks may have
        stored files that nobody has named yet. `known_shared`: names that were given to their tasks as known.
        `next_id`: checkpoints of this attempt from that id on were triggered after the caller decided.
        A file is removed if none of these needs it, an attempt ≤ `attempt` stored it, and the same was so
        `grace_ms` ago.
        """
        needed = set(known_shared)
        for metadata in retained:
            needed |= files_of(metadata)
        open_ids = set(pending)
        now = self._clocks.steady_ms()
        marks: dict[str, int] = {}
        due: list[str] = []
        for path in self.storage.list(self._path("shared/")):
            name = SharedName.of(path)
            if name is None or path in needed or name.attempt > attempt:
                continue
            newer = next_id is not None and name.checkpoint_id >= next_id
            if name.attempt == attempt and (newer or name.checkpoint_id in open_ids):
                continue
            marks[path] = self._unneeded_since.get(path, now)
            if now - marks[path] >= self._grace_ms:
                due.append(path)
        self._unneeded_since = marks
        if due:
            self.assert_current(attempt)
        for path in due:
            self.storage.delete(path)
            del marks[path]
        return due

    def delete_checkpoints(self) -> None:
        """Delete every checkpoint of the run with its shared files: what cancelling does unless they are retained."""
        self._assert_own()
        self.drop(self._published_ids())
        self.drop(sorted({int(match[1]) for match in self._checkpoint_files()}))
        self.storage.delete_tree(self._path("shared"))

    def end(self, status: Literal["FINISHED", "CANCELED"]) -> None:
        """The run is over: the same command begins a new one. Harmless if it had ended already."""
        self._assert_own()
        try:
            self.storage.create_exclusive(
                self._path("_ended"), _json({"status": status, "ended_ms": self._clocks.wall_ms()})
            )
        except AlreadyExistsError:
            return

    # Names

    @property
    def _home(self) -> str:
        if not self._run:
            raise ValueError("open_run() comes first")
        return f"{self.job_id}/run-{self._run:06d}"

    def _path(self, name: str) -> str:
        return f"{self._home}/{name}"

    def _metadata_path(self, checkpoint_id: CheckpointId) -> str:
        return self._path(f"chk-{checkpoint_id:06d}/_metadata")

    def _numbers(self, start: str) -> list[int]:
        names = (path[len(self._home) + 1 + len(start) :] for path in self.storage.list(self._path(start)))
        return sorted(int(name) for name in names if name.isascii() and name.isdigit())

    def _checkpoint_files(self) -> list[re.Match[str]]:
        names = (path[len(self._home) + 1 :] for path in self.storage.list(self._path("chk-")))
        return [match for name in names if (match := _CHECKPOINT_FILE.fullmatch(name)) is not None]

    def _published_ids(self) -> list[CheckpointId]:
        return sorted(int(match[1]) for match in self._checkpoint_files() if match[2] == "_metadata")

    def _files_published(self, checkpoint_id: CheckpointId) -> set[str]:
        try:
            return files_of(self._decode(self._metadata_path(checkpoint_id), checkpoint_id))
        except MissingFileError:
            return set()

    def _assert_own(self) -> None:
        if self._attempt is not None:
            self.assert_current(self._attempt)

    # Contents

    def _decode(self, path: str, checkpoint_id: CheckpointId) -> CheckpointMetadata:
        where = f"{self.storage.location}/{path}"
        metadata = decode_metadata(self.storage.read(path), where)
        if metadata.job_id != self.job_id or metadata.checkpoint_id != checkpoint_id:
            raise DamagedCheckpointError(
                f"{where} belongs to checkpoint {metadata.checkpoint_id} of job {metadata.job_id}: it was copied "
                f"there. Put it back, or restore from it with --from."
            )
        return metadata

    def _read_restored(self, attempt: AttemptId) -> dict[str, Any]:
        path = self._path(f"restored-{attempt:06d}")
        try:
            record = json.loads(self.storage.read(path))
            if isinstance(record, dict) and isinstance(record.get("checkpoint_id"), int | None):
                return record
        except ValueError:
            pass
        raise StorageError(
            f"{self.storage.location}/{path} is damaged, so it is not known which checkpoints of older attempts count. "
            f"Start from a checkpoint of your choice with --from."
        )


def _ref(metadata: CheckpointMetadata, path: str) -> CheckpointRef:
    return CheckpointRef(metadata.checkpoint_id, metadata.attempt, metadata.kind, path, metadata.created_ms)


def _json(record: dict[str, Any]) -> bytes:
    return json.dumps(record, sort_keys=True).encode()
