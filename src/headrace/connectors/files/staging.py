"""Where output waits until it is committed, and what is remembered of it afterwards.

    <path>/part-<subtask>-<attempt>-<counter>-<mark>.jsonl              visible: complete, never changed or overwritten
    <path>/<bucket>/part-…                                              the same, in a bucket
    <path>/.staging/<job>/<uid>-<subtask>-a<attempt>-<mark>-<counter>   written or prepared, not yet committed
    <path>/.staging/<job>/<uid>-<subtask>-a<attempt>-<mark>.committed   what one writer's commits have shown
    <path>/.staging/<job>/<uid>.all.committed                           the same of older attempts, the newest thousand

`mark` is random for each writer, so no two writers ever want one name, whatever job or attempt they belong to.

A ledger (`.committed`) holds a JSON array a line, each behind a line end of its own, so that one half-written line
spoils no other: history, attempt, checkpoint id, final name. It tells a file that a reader took away from one that was
never shown, and whether a checkpoint lies behind output that was shown (see `Committer.committed_since`).

How files become visible differs: see `local_staging.py` and `s3_staging.py`.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol
from urllib.parse import quote

import msgspec

from headrace.checkpoint.handles import HistoryPoint
from headrace.connectors.sink import CommittedOutput
from headrace.errors import CommitFailedError, CommitOutcomeUnknownError

STAGING = ".staging"
LEDGER_SUFFIX = ".committed"
NOTES_KEPT = 1_000
"""How many files of older attempts are remembered. Only those behind a checkpoint that still exists are asked for."""
_LONGEST_NAME = 100
_STAGED = re.compile(r"(?P<uid>.+)-(?P<subtask>\d+)-a(?P<attempt>\d+)-[0-9a-f]+(?:-\d+|\.committed)\Z")


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


class Note(NamedTuple):
    """A line of a ledger: this file was shown."""

    history: str
    attempt: int
    checkpoint_id: int
    final: str


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
    def show(self, file: PreparedFile, ledger: str, touched: set[str]) -> bool:
        """Give it its final name; whether its staged name may still be there, so that step 3 and 4 are due.

        A file of which neither name is there was shown before, if `check_noted` says so. Folders in which a name is new
        are added to `touched`.
        """

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

    def remove_half_written(self, folder: str, attempt: int, uid: str) -> None:  # noqa: B027 - has a name elsewhere
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
        """
        shown: list[PreparedFile] = []
        touched: set[str] = set()
        try:
            for file in txn.files:
                if self.show(file, txn.ledger, touched):  # Step 1
                    shown.append(file)
            self.make_durable(touched)  # Step 2
            if shown:
                notes = [Note(txn.history, txn.attempt, txn.checkpoint_id, file.final) for file in shown]
                self.append(txn.ledger, _lines(notes))  # Step 3
            for file in shown:
                self.remove(file.staged)  # Step 4
        except OSError as error:
            text = (
                f"Committing to {self.shown} failed: {error}. It is tried again on recovery; see that it is writable."
            )
            raise (CommitOutcomeUnknownError(text) if shown else CommitFailedError(text)) from error

    def check_noted(self, file: PreparedFile, ledger: str) -> None:
        """Neither the staged nor the visible file exists: raise unless the ledger says that it was visible once."""
        folder, _, name = ledger.rpartition("/")
        parts = _STAGED.match(name)
        ledgers = [ledger] if parts is None else [ledger, f"{folder}/{parts['uid']}.all{LEDGER_SUFFIX}"]
        if not any(file.final == note.final for path in ledgers for note in _notes(self.read(path))):
            raise CommitFailedError(
                f"{self.shown}/{file.staged} is prepared for {self.shown}/{file.final}, but neither exists and nothing "
                f"says it was ever committed. Restore the folder {STAGING}, or start from another checkpoint."
            )

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

    def remove_leftovers(self, job_id: str, uid: str, attempt: int, keep: Iterable[FileTransaction]) -> list[str]:
        """Remove what attempts older than `attempt` left in staging, except what `keep` names; says what it was.

        What their ledgers say is kept, in one for all.
        """
        kept: set[str] = set()
        for txn in keep:
            kept |= {txn.ledger, *(file.staged for file in txn.files)}
        own = [path for path, by in self._of_operator(job_id, uid) if by < attempt and path not in kept]
        ledgers = [path for path in own if path.endswith(LEDGER_SUFFIX)]
        if ledgers:
            everything = _everything(job_id, uid)
            fresh = sorted({note for path in ledgers for note in _notes(self.read(path))}, key=lambda note: note[1:3])
            # Behind the older ones, though these may have larger numbers, of another history.
            notes = dict.fromkeys([*_notes(self.read(everything)), *fresh])
            self.replace(everything, _lines([*notes][-NOTES_KEPT:]))
        for path in own:
            self.remove(path)
        self.remove_half_written(_folder(job_id), attempt, safe_name(uid))
        return own

    def committed_since(self, job_id: str, uid: str, point: HistoryPoint) -> list[CommittedOutput]:
        """Files of that history that were shown with a later attempt, or with the same and a later checkpoint."""
        try:
            ledgers = [path for path, _ in self._of_operator(job_id, uid) if path.endswith(LEDGER_SUFFIX)]
            notes = {note for path in (_everything(job_id, uid), *ledgers) for note in _notes(self.read(path))}
        except OSError as error:
            raise CommitFailedError(f"What was committed to {self.shown} cannot be read: {error}.") from error
        newer = sorted(note for note in notes if note.history == point.history and note[1:3] > point[1:])
        return [CommittedOutput(note.attempt, note.checkpoint_id, f"{self.shown}/{note.final}") for note in newer]

    def _of_operator(self, job_id: str, uid: str) -> Iterator[tuple[str, int]]:
        """Every staged file and ledger of an operator's writers, with the attempt that made it."""
        for path in self.names(_folder(job_id)):
            parts = _STAGED.match(path.rpartition("/")[2])
            if parts is not None and parts["uid"] == safe_name(uid):
                yield path, int(parts["attempt"])


def safe_name(text: str) -> str:
    """A file name that stands for `text` alone: quoted, and by hash where it would be too long."""
    name = quote(text, safe=" ").replace(".", "%2E")
    return name if len(name) <= _LONGEST_NAME else hashlib.sha256(text.encode()).hexdigest()


def stem_of(job_id: str, uid: str, subtask: int, attempt: int, mark: str) -> str:
    """What the names of one writer's staged files begin with."""
    return f"{_folder(job_id)}/{safe_name(uid)}-{subtask}-a{attempt}-{mark}"


def attempt_of(name: str, uid: str) -> int | None:
    """Which attempt made a staged file of that operator; None if it is none of its files. `uid` as in file names."""
    parts = _STAGED.match(name)
    return int(parts["attempt"]) if parts is not None and parts["uid"] == uid else None


def _folder(job_id: str) -> str:
    return f"{STAGING}/{safe_name(job_id)}"


def _everything(job_id: str, uid: str) -> str:
    return f"{_folder(job_id)}/{safe_name(uid)}.all{LEDGER_SUFFIX}"


def _lines(notes: Sequence[Note]) -> bytes:
    return b"".join(b"\n" + msgspec.json.encode(note) for note in notes) + b"\n"


def _notes(data: bytes) -> list[Note]:
    found: list[Note] = []
    for line in data.split(b"\n"):
        # What a crash left of a line says nothing: its file is still staged.
        with contextlib.suppress(msgspec.MsgspecError):
            found.append(msgspec.json.decode(line, type=Note))
    return found
