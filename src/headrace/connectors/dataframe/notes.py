"""What was handed over as DataFrames, written down beside the checkpoints.

    <job>/run-000001/handed-over/<hash of the sink's uid>
        JSON, replaced after each call: {"points": [[history, attempt, checkpoint id], …], "checksum": …},
        the newest point last

The numbers are those of the checkpoint that held the output: whichever attempt handed it over, it is the same output.
An id alone would not tell: a job that goes on in another directory counts from 1 there, and one that begins from a
savepoint may count the savepoint's own number again. Taken for handed over, such output would be lost.

Of version 0.1.0 are files without a checksum: the list alone, or a plain number, up to which ids were handed over.
"""

from __future__ import annotations

import hashlib
from typing import NamedTuple

import msgspec

from headrace.checkpoint.control_files import DamagedRecordError, decode_record, encode_record
from headrace.checkpoint.handles import HistoryPoint
from headrace.checkpoint.storage.base import CheckpointStorage, MissingFileError
from headrace.errors import DamagedCheckpointError, StorageError, permanent

_DEPTH = 3  # slashes in the path of a note
NOTES_KEPT = 100
"""Of one sink and run, and the last of as many attempts. The newest alone decides whether a start is refused."""


class DamagedNotesError(DamagedCheckpointError, StorageError):
    """Nobody knows what was handed over."""

    recovery = permanent("no attempt mends a file; a person can put it back, or remove it")


class HandOverNotes:
    """The notes of all sinks of a job. Used in the driver, by one thread at a time."""

    def __init__(self, storage: CheckpointStorage) -> None:
        self._storage = storage
        self._elsewhere: list[CheckpointStorage] = []
        self._known: dict[tuple[str, str], _Notes] = {}
        """By storage and path; known in this process, whatever storage says."""

    def look_in(self, storage: CheckpointStorage) -> None:
        """A checkpoint of another job directory is restored: what is noted there was handed over, too."""
        places = {self._storage.location, *(other.location for other in self._elsewhere)}
        if storage.location not in places:
            self._elsewhere.append(storage)

    def knows(self, job_id: str, uid: str, run: int, point: HistoryPoint) -> bool:
        """Whether what was sealed at that moment was handed over: it, or what the same attempt sealed later.

        A later attempt says nothing: it may have made the same rows anew, and somebody may have removed those.
        """
        path = _path(job_id, uid, run)
        own = self._notes(self._storage, path)
        if point.checkpoint_id <= own.before:
            return True
        return own.cover(point) or any(self._notes(other, path).cover(point) for other in self._elsewhere)

    def add(self, job_id: str, uid: str, run: int, point: HistoryPoint) -> None:
        """The function has returned. After a `StorageError` this process knows it all the same."""
        path = _path(job_id, uid, run)
        self._known[self._storage.location, path] = notes = self._notes(self._storage, path).with_newest(point)
        self._storage.replace(path, encode_record({"points": [list(point) for point in notes.points]}))

    def since(self, job_id: str, uid: str, point: HistoryPoint) -> list[HistoryPoint]:
        """What was handed over in that history after that moment, in any run; the newest last."""
        return sorted(
            {
                noted
                for storage in (self._storage, *self._elsewhere)
                for path in _paths(storage, job_id, uid)
                for noted in _read(storage, path).points
                if noted.history == point.history and noted > point
            }
        )

    def _notes(self, storage: CheckpointStorage, path: str) -> _Notes:
        key = storage.location, path
        if key not in self._known:
            self._known[key] = _read(storage, path)
        return self._known[key]


class _Notes(NamedTuple):
    """One file."""

    points: tuple[HistoryPoint, ...] = ()
    before: int = 0
    """Ids up to this one were handed over, of whatever history."""

    def cover(self, point: HistoryPoint) -> bool:
        return any(noted[:2] == point[:2] and noted >= point for noted in self.points)

    def with_newest(self, point: HistoryPoint) -> _Notes:
        points = [*self.points, point]
        kept = points[-NOTES_KEPT:]
        # The last of an earlier attempt stays: its checkpoint may be restored once more.
        last = {noted[:2]: noted for noted in points[:-NOTES_KEPT]}
        for noted in kept:
            last.pop(noted[:2], None)
        return _Notes((*[*last.values()][-NOTES_KEPT:], *kept))


def _read(storage: CheckpointStorage, path: str) -> _Notes:
    try:
        data = storage.read(path)
    except MissingFileError:
        return _Notes()
    try:
        plain = decode_record(data, ())["points"] if data.startswith(b"{") else msgspec.json.decode(data)
        found = msgspec.convert(plain, int | tuple[HistoryPoint, ...])
    except (msgspec.MsgspecError, DamagedRecordError, KeyError) as error:
        raise DamagedNotesError(
            f"{storage.location}/{path} does not say what was handed over: {error}. Restore it from a copy; or remove "
            "it, and the output of the checkpoint that is restored is handed over once more."
        ) from error
    return _Notes(before=found) if isinstance(found, int) else _Notes(found)


def _paths(storage: CheckpointStorage, job_id: str, uid: str) -> list[str]:
    """The notes of one sink, of every run."""
    wanted = f"/handed-over/{_name(uid)}"
    return [path for path in storage.list(f"{job_id}/run-") if path.endswith(wanted) and path.count("/") == _DEPTH]


def _path(job_id: str, uid: str, run: int) -> str:
    return f"{job_id}/run-{run:06d}/handed-over/{_name(uid)}"


def _name(uid: str) -> str:
    return hashlib.sha256(uid.encode()).hexdigest()[:16]
