"""Where output waits until it is committed, and what is remembered of it afterwards.

    <path>/part-<subtask>-<attempt>-<counter>-<mark>.jsonl              visible: complete, never changed or overwritten
    <path>/<bucket>/part-…                                              the same, in a bucket
    <path>/.staging/<job>/…                                             staged files and ledgers: see `staged_names.py`

`mark` is random for each writer, so no two writers ever want one name, whatever job or attempt they belong to. Staged
names hold the history of their writer, so recovery removes leftovers of its own history only: jobs of one name with
two checkpoint directories may write to one path at the same time.

How files become visible differs: see `local_staging.py` and `s3_staging.py`.
"""

from __future__ import annotations

import os
import socket
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

import msgspec

from headrace.checkpoint.handles import HistoryPoint
from headrace.clocks import wall_ms
from headrace.connectors.files.commit_notes import Note, compact, decode_notes, encode_notes
from headrace.connectors.files.staged_names import (
    STAGING,
    StagedName,
    folder_of,
    merged_ledger,
    owner_file,
    safe_history,
    safe_name,
)
from headrace.connectors.sink import CommittedOutput
from headrace.errors import CommitFailedError, CommitOutcomeUnknownError, DamagedCheckpointError, OutputLostError


class PreparedFile(msgspec.Struct, array_like=True):
    """A complete and durable file. Paths are relative to the sink's path, so that the whole tree may be moved."""

    staged: str
    final: str
    size: int
    sha256: bytes


class FileTransaction(msgspec.Struct, array_like=True):
    """All files of one subtask for one checkpoint."""

    ledger: str
    files: list[PreparedFile] = []
    attempt: int = 0
    checkpoint_id: int = 0
    """The first checkpoint that holds it; known from `pre_commit` on."""
    history: str = ""
    base: str = ""
    """The path of the sink that prepared it; empty if a version prepared it that did not say."""

    def check(self) -> None:
        """Raise `DamagedCheckpointError` unless every path stays below the sink's path."""
        for path, start in [(self.ledger, f"{STAGING}/"), *((file.staged, f"{STAGING}/") for file in self.files)]:
            _check_inside(path, start)
        for file in self.files:
            _check_inside(file.final)


class Owner(msgspec.Struct, frozen=True):
    """The job directory whose attempt last started to write an operator's output here."""

    history: str
    attempt: int
    host: str
    pid: int
    started_ms: int


class StagedFile(Protocol):
    """A file being written, that nobody sees."""

    def write(self, data: memoryview) -> None:
        """Append."""

    def flush(self) -> None:
        """Hand over what is buffered, as far as the store can take it."""

    def finish(self) -> None:
        """Make it durable and close it. Called once, or never."""

    def give_up(self) -> None:
        """Close and remove it."""


class Staging(ABC):
    """The place under which a sink writes. Light until it is used: it travels to the tasks.

    Paths are relative to it, with forward slashes. What fails raises `OSError`.
    """

    shown: str
    """Fit for messages."""

    @abstractmethod
    def check(self) -> None:
        """See that files can be written here, and leave nothing behind."""

    @abstractmethod
    def create(self, staged: str) -> StagedFile:
        """A new file in staging."""

    @abstractmethod
    def sync(self, stem: str) -> None:
        """Make the names of what was finished beside `stem` durable."""

    @abstractmethod
    def show(self, file: PreparedFile, txn: FileTransaction, touched: set[str]) -> bool:
        """Give it its final name; whether its staged name may still be there, so that step 3 and 4 are due.

        A file of which neither name is there was shown before, if `check_noted` says so. Folders in which a name is new
        are added to `touched`.
        """

    @abstractmethod
    def exists(self, path: str) -> bool:
        """Whether there is such a file."""

    @abstractmethod
    def names(self, folder: str) -> list[str]:
        """Paths of all files of a folder in staging, in order."""

    @abstractmethod
    def read(self, path: str) -> bytes:
        """Contents of a small file; empty if there is none."""

    @abstractmethod
    def replace(self, path: str, data: bytes) -> None:
        """Write a small file, all of it or nothing, durably."""

    @abstractmethod
    def append(self, path: str, data: bytes) -> None:
        """Add to a small file, durably."""

    @abstractmethod
    def remove(self, path: str) -> None:
        """Remove a file in staging; it may be gone already."""

    def make_durable(self, touched: set[str]) -> None:  # noqa: B027 - nothing to do where an answer is a promise
        """See that new names in these folders outlive the machine. Called before the ledger is written."""

    def remove_half_written(  # noqa: B027 - has a name elsewhere
        self, folder: str, is_leftover: Callable[[StagedName], bool]
    ) -> None:
        """Remove what older attempts had begun to write and that has no name yet."""

    # What is the same everywhere.

    def commit(self, txn: FileTransaction) -> None:
        """Show the files of a prepared transaction; any number of times, from any process.

        In this order, so that a staged file that is gone was committed, and the ledger says so even if a reader has
        taken the visible file away since:
            1. give every staged file its final name, without overwriting anything
            2. make the names durable
            3. note them in the ledger
            4. remove the staged files
        `OutputLostError`: a file is gone that was never shown, so no other attempt can help.
        """
        txn.check()
        shown: list[PreparedFile] = []
        touched: set[str] = set()
        try:
            for file in txn.files:
                if self.show(file, txn, touched):  # Step 1
                    shown.append(file)
            self.make_durable(touched)  # Step 2
            if shown:
                notes = [Note(txn.history, txn.attempt, txn.checkpoint_id, file.final) for file in shown]
                self.append(txn.ledger, encode_notes(notes))  # Step 3
            for file in shown:
                self.remove(file.staged)  # Step 4
        except OSError as error:
            text = (
                f"Committing to {self.shown} failed: {error}. It is tried again on recovery; see that it is writable."
            )
            raise (CommitOutcomeUnknownError(text) if shown else CommitFailedError(text)) from error

    def knows(self, txn: FileTransaction) -> bool:
        """Whether anything of the transaction is here: a staged or visible file, or a note that it was visible once."""
        return any(
            self.exists(file.staged) or self.exists(file.final) or self._is_noted(file, txn) for file in txn.files
        )

    def check_noted(self, file: PreparedFile, txn: FileTransaction) -> None:
        """Neither the staged nor the visible file exists: raise unless a ledger says that it was visible once."""
        if not self._is_noted(file, txn):
            raise OutputLostError(
                f"Checkpoint {txn.checkpoint_id} had {self.shown}/{file.staged} prepared for "
                f"{self.shown}/{file.final}, but neither file exists and no ledger says it was ever committed: it was "
                f"removed. Restore the folder {self.shown}/{STAGING} and start the job again, or start it from an "
                "older checkpoint or savepoint with --from to write the records again."
            )

    def _is_noted(self, file: PreparedFile, txn: FileTransaction) -> bool:
        name = StagedName.of(file.staged)
        ledgers = [txn.ledger]
        if name is not None:
            folder = txn.ledger.rpartition("/")[0]
            ledgers += dict.fromkeys(merged_ledger(folder, name.uid, history) for history in (txn.history, ""))
        notes = (note for path in ledgers for note in decode_notes(self.read(path)))
        return any(note.final == file.final or (name is not None and note.covers(name)) for note in notes)

    def differs(self, file: PreparedFile) -> CommitFailedError:
        return CommitFailedError(
            f"{self.shown}/{file.final} exists with another content than the {file.size} bytes that were prepared for "
            "it, and is never overwritten. Somebody changed it: move it away, and the prepared file takes its place on "
            "recovery."
        )

    def discard(self, txn: FileTransaction) -> None:
        """Remove the staged files of a transaction that will not be committed."""
        for file in txn.files:
            self.remove(file.staged)

    def remove_leftovers(
        self, job_id: str, uid: str, history: str, attempt: int, keep: Iterable[FileTransaction]
    ) -> list[str]:
        """Remove what older attempts of this history left in staging, except what `keep` names; says what it was.

        What their ledgers say is kept, in one for all of the history. A file whose name holds no history is removed
        only if a ledger or `keep` shows that a writer of this history made it.
        """
        kept: set[str] = set()
        marks: set[str] = set()
        for txn in keep:
            kept |= {txn.ledger, *(file.staged for file in txn.files)}
            name = StagedName.of(txn.ledger)
            if name is not None and txn.history == history:
                marks.add(name.mark)
        of_operator = list(self._of_operator(job_id, uid))
        marks |= {name.mark for path, name in of_operator if self._is_old_ledger_of(history, path, name)}

        def is_leftover(name: StagedName) -> bool:
            mine = name.history == safe_history(history) or (not name.history and name.mark in marks)
            return mine and name.uid == safe_name(uid) and name.attempt < attempt

        own = [path for path, name in of_operator if is_leftover(name) and path not in kept]
        ledgers = [path for path in own if _is_ledger(path)]
        if ledgers:
            merged = merged_ledger(folder_of(job_id), safe_name(uid), history)
            fresh = sorted({note for path in ledgers for note in self._notes(path)}, key=lambda note: note[1:3])
            # After the older ones, though these may have larger numbers, of another history.
            self.replace(merged, encode_notes(compact([*self._notes(merged), *fresh])))
        for path in own:
            self.remove(path)
        self.remove_half_written(folder_of(job_id), is_leftover)
        return own

    def committed_since(self, job_id: str, uid: str, point: HistoryPoint) -> list[CommittedOutput]:
        """Files of that history that were shown with a later attempt, or with the same and a later checkpoint."""
        histories = ("", safe_history(point.history))
        merged = {merged_ledger(folder_of(job_id), safe_name(uid), history) for history in ("", point.history)}
        try:
            found = self._of_operator(job_id, uid)
            ledgers = [path for path, name in found if name.counter is None and name.history in histories]
            notes = {note for path in (*merged, *ledgers) for note in self._notes(path)}
        except OSError as error:
            raise CommitFailedError(f"What was committed to {self.shown} cannot be read: {error}.") from error
        newer = sorted(note for note in notes if note.history == point.history and note[1:3] > point[1:])
        return [CommittedOutput(note.attempt, note.checkpoint_id, f"{self.shown}/{note.final}") for note in newer]

    def owner(self, job_id: str, uid: str) -> Owner | None:
        """Which job directory last started to write the operator's output here."""
        try:
            return msgspec.json.decode(self.read(owner_file(job_id, uid)), type=Owner)
        except msgspec.MsgspecError:
            return None  # nobody yet, or half a file: it informs, and nothing depends on it

    def take(self, job_id: str, uid: str, history: str, attempt: int) -> None:
        """Record that this attempt writes here. A later attempt of the same history is not overwritten."""
        before = self.owner(job_id, uid)
        if before is None or before.history != history or before.attempt < attempt:
            owner = Owner(history, attempt, socket.gethostname(), os.getpid(), wall_ms())
            self.replace(owner_file(job_id, uid), msgspec.json.encode(owner))

    def _is_old_ledger_of(self, history: str, path: str, name: StagedName) -> bool:
        """Whether a writer of this history made the ledger, though its name does not say so."""
        if name.counter is not None or name.history:
            return False
        notes = self._notes(path)
        return bool(notes) and all(note.history == history for note in notes)

    def _notes(self, path: str) -> list[Note]:
        return decode_notes(self.read(path))

    def _of_operator(self, job_id: str, uid: str) -> Iterator[tuple[str, StagedName]]:
        """Every staged file and ledger of an operator's writers."""
        for path in self.names(folder_of(job_id)):
            name = StagedName.of(path)
            if name is not None and name.uid == safe_name(uid):
                yield path, name


def _is_ledger(path: str) -> bool:
    name = StagedName.of(path)
    return name is not None and name.counter is None


def _check_inside(path: str, start: str = "") -> None:
    if not path.startswith(start) or any(part in ("", ".", "..") for part in path.split("/")):
        raise DamagedCheckpointError(
            f"The checkpoint holds prepared output with the path {path!r}, which is not below the sink's path. Restore "
            "from another checkpoint or a savepoint with --from."
        )
