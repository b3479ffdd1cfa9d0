"""The attempts of one run: who may publish, commit and delete, and what each of them started from.

    <job_id>/run-000001/attempt-000003      exclusive create: claims the number; JSON: pid, host, …, history, token
    <job_id>/run-000001/restored-000003     what attempt 3 started from, and what is known of those before it

Numbers are claimed without gaps, so a driver has to look for its own number + 1 only, and then for its own file with
its own token: where that is missing, storage is not what it was, and nothing is published into it. Files of attempts
long past are removed, the oldest first. So a driver that finds neither the next number nor its own asks for the list.
"""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Callable, Iterable, Sequence

from headrace.checkpoint.control_files import DamagedRecordError, decode_record, encode_record
from headrace.checkpoint.handles import AttemptId, HistoryPoint
from headrace.checkpoint.lineage import OLD_FIELDS as OLD_RESTORED
from headrace.checkpoint.lineage import Lineage
from headrace.checkpoint.storage.base import AlreadyExistsError, CheckpointStorage, MissingFileError
from headrace.errors import DamagedCheckpointError, FencedError, RestoreError, StorageError

OLD_ATTEMPT = ("pid", "host", "started_ms", "history")
KEPT = 16
"""Records of the newest attempts that stay, for people and for a case of damage."""
MOST_REMOVED = 200
"""Files that one start removes at most: a directory with many old records must not hold up its first start."""


class Attempts:
    """The control files of one run. Used by one thread at a time."""

    def __init__(self, storage: CheckpointStorage, job_id: str, run: int) -> None:
        self._storage = storage
        self._job_id = job_id
        self.home = f"{job_id}/run-{run:06d}"
        self._tokens: dict[AttemptId, str] = {}

    def names(self) -> tuple[str, ...]:
        """What lies directly in the run's directory."""
        return tuple(self._storage.list_names(self.home))

    def claim(
        self, before: AttemptId, history: str, started_ms: int, allow: Callable[[], None] = lambda: None
    ) -> AttemptId:
        """Create the file of the next number. `before`: the last number of earlier runs.

        `allow` is called directly before that, and raises if it must not be.
        """
        token = secrets.token_hex(8)
        claim = {"pid": os.getpid(), "host": socket.gethostname(), "started_ms": started_ms}
        while True:
            names = self.names()
            self._check_own(names)
            attempt = max(newest_attempt(names), before) + 1
            record = {**claim, "attempt": attempt, "history": history, "token": token}
            allow()
            try:
                self._storage.create_exclusive(self._path(attempt), encode_record(record))
            except AlreadyExistsError:
                continue
            if newest_attempt(self.names()) > attempt:
                # What was listed was old: the number was free again because its successors had cleaned up.
                self._storage.delete(self._path(attempt))
                continue
            self._tokens[attempt] = token
            return attempt

    def _check_own(self, names: Sequence[str]) -> None:
        """A process that claimed a number before finds it, or a later one. An empty directory is another storage."""
        if self._tokens and newest_attempt(names) < max(self._tokens):
            raise self._away(max(self._tokens))

    def assert_current(self, attempt: AttemptId) -> None:
        """Raise `FencedError` if a newer attempt exists, `StorageError` if that cannot be known."""
        # In this order: of two files that are removed, the older goes first.
        if self._storage.exists(self._path(attempt + 1)):
            raise self._fenced(attempt, newest_attempt(self.names()))
        try:
            data = self._storage.read(self._path(attempt))
        except MissingFileError:
            newest = newest_attempt(self.names(), "attempt-")
            if newest > attempt:
                raise self._fenced(attempt, newest) from None
            raise self._away(attempt) from None
        token = self._tokens.get(attempt)
        try:
            found = decode_record(data, OLD_ATTEMPT).get("token")
        except DamagedRecordError:
            return  # it lies where it was put, which is what matters here
        if token is not None and found != token:
            raise self._fenced(attempt, attempt)

    def _fenced(self, attempt: AttemptId, newest: AttemptId) -> FencedError:
        by = f"attempt {newest} took over" if newest > attempt else "another process claimed the same number"
        return FencedError(
            f"Attempt {attempt} of job {self._job_id} is fenced off: {by}. "
            "This driver publishes, commits and deletes nothing more."
        )

    def _away(self, attempt: AttemptId) -> StorageError:
        return StorageError(
            f"{self._storage.location} does not hold this job's own files: {self._path(attempt)} is missing. Is the "
            "volume mounted? Nothing is published or committed until it is back."
        )

    # What attempts started from

    def lineage(self, names: Iterable[str]) -> tuple[Lineage, RestoreError | None]:
        """What the newest record says; if it is damaged, what the one before says, and the error."""
        numbers = sorted(numbers_of(names, "restored-"), reverse=True)
        damage: RestoreError | None = None
        found: list[Lineage] = []
        for number in numbers:
            try:
                lineage = self._read(number)
            except MissingFileError:
                continue  # removed since it was listed
            except DamagedCheckpointError as error:
                damage = damage or error
                continue
            found.append(lineage)
            # One of an older version knows nothing of those before it.
            if lineage.cumulative:
                break
        if not found:
            return Lineage(), damage
        folded = found.pop()
        while found:
            folded = found.pop().folded(folded)
        return folded, damage

    def _read(self, attempt: AttemptId) -> Lineage:
        path = f"{self.home}/restored-{attempt:06d}"
        data = self._storage.read(path)
        try:
            return Lineage.of_record(attempt, decode_record(data, OLD_RESTORED), job_id=self._job_id)
        except (DamagedRecordError, KeyError, TypeError, ValueError) as error:
            raise DamagedCheckpointError(
                f"{self._storage.location}/{path} is damaged ({error}), so it is not known which checkpoints of older "
                "attempts count. Put it back, or start from a checkpoint of your choice with --from."
            ) from error

    def record(self, lineage: Lineage, origin: HistoryPoint | None) -> None:
        """Write down what an attempt starts from, once."""
        path = f"{self.home}/restored-{lineage.attempt:06d}"
        self._storage.create_inside(self.home, path, encode_record(lineage.to_record(origin)))

    def history(self, names: Iterable[str]) -> str:
        """What the file of the newest attempt calls the history; empty if there is none, or it is damaged."""
        newest = newest_attempt(names, "attempt-")
        if not newest:
            return ""
        try:
            return str(decode_record(self._storage.read(self._path(newest)), OLD_ATTEMPT).get("history", ""))
        except (MissingFileError, DamagedRecordError):
            return ""

    def remove_old(self, names: Iterable[str], newest: AttemptId) -> None:
        """Delete what attempts long past have left, the oldest first. The newest record must be cumulative."""
        old = [(number, name) for name in names if (number := attempt_of(name)) and number <= newest - KEPT]
        for _, name in sorted(item for item in old if not item[1].startswith("published-"))[:MOST_REMOVED]:
            self._storage.delete(f"{self.home}/{name}")

    def _path(self, attempt: AttemptId) -> str:
        return f"{self.home}/attempt-{attempt:06d}"


def attempt_of(name: str) -> AttemptId:
    """The attempt that a control file belongs to; 0 for any other name."""
    kind, _, rest = name.partition("-")
    number = rest.partition("-")[0]
    is_ours = kind in ("attempt", "restored", "stopping", "published")
    return int(number) if is_ours and number.isascii() and number.isdigit() else 0


def newest_attempt(names: Iterable[str], start: str = "") -> AttemptId:
    """The highest number of an attempt in any name that begins with `start`; 0 if there is none."""
    return max((attempt_of(name) for name in names if name.startswith(start)), default=0)


def numbers_of(names: Iterable[str], start: str) -> list[int]:
    """The numbers behind `start` in names that have nothing else."""
    rest = (name[len(start) :] for name in names if name.startswith(start))
    return sorted(int(number) for number in rest if number.isascii() and number.isdigit())
