"""The interface of checkpoint storage, and the registry that finds one by URI scheme.

A storage has two sides. The *driver side* is a small set of named byte strings with exclusive
create: attempts, metadata, leases. The *task side* is a `FileStore` for the bulk of the state. Both
name everything by relative paths below one root. `headrace.testing.storage_contract` is the contract; a storage
of your own should pass it.
"""

from __future__ import annotations

import hashlib
import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import IO, Protocol, TypeAlias
from urllib.parse import urlsplit

from headrace.checkpoint.handles import StateFile
from headrace.checkpoint.storage.paths import check_path
from headrace.errors import (
    CheckpointError,
    CheckpointFailure,
    ConfigurationError,
    DamagedCheckpointError,
    StorageError,
    retry,
)

INLINE_THRESHOLD = 20 * 1024
"""Files up to this size travel inside `_metadata`: a small file costs more to open than to carry."""


class AlreadyExistsError(StorageError, FileExistsError):
    """Somebody else created that path first. What is there is whole and was not touched."""

    recovery = retry("the next attempt has another number, and its own paths")


class DurabilityUnknownError(StorageError):
    """The file is visible but may not survive a power loss. Count on neither; keep what it names."""

    recovery = retry("storage may answer again")


class StateTooLargeError(CheckpointError):
    """One state passes what the storage takes. The checkpoint fails, the job goes on."""

    recovery = retry("the state may shrink; the job goes on meanwhile")

    def __init__(self, name: str, size: int, limit: int, checkpoint_id: int = 0) -> None:
        super().__init__(
            CheckpointFailure.STATE_TOO_LARGE,
            checkpoint_id,
            f'state "{name}" has reached {size} bytes, but coordinator-memory storage takes at most {limit} bytes per '
            f"state. Set a checkpoint directory (FileSystemCheckpointStorage), or raise max_state_size.",
        )
        self.name = name
        self.size = size
        self.limit = limit

    def __reduce__(self) -> tuple[type[StateTooLargeError], tuple[str, int, int, int]]:
        # The default would hand the finished text to __init__ when the error comes back from a task.
        return type(self), (self.name, self.size, self.limit, self.checkpoint_id)


class FileStore(Protocol):
    """How a task writes and reads the files of a checkpoint. Thread-safe. The same shape as `state`'s protocol,
    which lies above this layer."""

    def write(self, name: str, chunks: Iterable[bytes | memoryview]) -> StateFile:
        """Store a file that belongs to this checkpoint alone; on return it is durable."""

    def write_shared(self, path: Path) -> StateFile:
        """Store a local file under a name made of its content; skip it if a retained checkpoint has it."""

    def open(self, file: StateFile) -> IO[bytes]:
        """A seekable reader over its bytes; checked for presence and size, not for the hash."""

    def read(self, file: StateFile) -> bytes:
        """All its bytes, checked against size and hash."""

    def fetch(self, file: StateFile, to: Path) -> None:
        """Bring it to a local path, checked against size and hash; on failure nothing is left at `to`."""


class CheckpointStorage(ABC):
    """Where checkpoints live. Holds settings only, opens nothing until used, and travels to tasks by pickle.

    Paths are relative to the root, with forward slashes; anything else is refused. A failure is a
    `StorageError` that names the path.
    """

    @property
    @abstractmethod
    def location(self) -> str:
        """The root, for people: a URI without secrets."""

    @property
    @abstractmethod
    def survives(self) -> str:
        """What its checkpoints survive, as the rest of a sentence: `run`, `explain` and `doctor` print it."""

    # Driver side

    @abstractmethod
    def create_exclusive(self, path: str, data: bytes) -> None:
        """Create `path` with `data`, durably, unless it exists (`AlreadyExistsError`).

        Of any number of racing callers exactly one succeeds, and a reader never sees half of it.
        After another `StorageError` the file may or may not be there: read back to decide.
        """

    def create_inside(self, directory: str, path: str, data: bytes) -> None:
        """Like `create_exclusive`, but only if `directory`, which lies above `path`, is there already.

        A volume that is not mounted leaves an empty directory: nothing may be published into that. A store without
        directories has nothing to look for, which is the default.
        """
        self.create_exclusive(path, data)

    @abstractmethod
    def replace(self, path: str, data: bytes) -> None:
        """Write `path` whether it exists or not; readers see the old or the new bytes. For lease and status only."""

    @abstractmethod
    def read(self, path: str) -> bytes:
        """All bytes of `path`; `StorageError` (also a `FileNotFoundError` if it is missing)."""

    @abstractmethod
    def exists(self, path: str) -> bool:
        """Whether a file of exactly that path is there."""

    @abstractmethod
    def list(self, prefix: str) -> list[str]:
        """Sorted paths of all files whose path starts with `prefix` (plain text: `a/b` finds `a/bc/d` too)."""

    def list_names(self, directory: str, start: str = "") -> Sequence[str]:
        """Sorted names directly in `directory` that begin with `start`: a file as `name`, a directory as `name/`.

        Empty if there is no such directory. Called every few seconds on directories with large trees below them, so
        a storage should not list those trees. By default it does.
        """
        above = f"{check_path(directory)}/"
        below = (path[len(above) :].partition("/") for path in self.list(above + start))
        return sorted({name + slash for name, slash, _ in below})

    @abstractmethod
    def delete(self, path: str) -> None:
        """Remove one file; nothing happens if it is missing."""

    @abstractmethod
    def delete_tree(self, prefix: str) -> None:
        """Remove the directory `prefix` with all below it (whole path parts: `chk-1` leaves `chk-10` alone)."""

    def size(self, path: str) -> int:
        """Bytes of `path`; `MissingFileError` if it is not there. For those who look, so a slow answer is fine."""
        return len(self.read(path))

    def check_writable(self) -> None:
        """Raise `StorageError` if it is plain, without trying, that nothing can be created here. Nothing is changed.

        Called by a job before it starts Spark. By default nothing is known, and the first file tells.
        """
        return

    def check_exclusive_create(self) -> None:
        """Raise `ConfigurationError` if it is not certain that of two creators of one file the second is refused.

        Called once at the start of a job, and by `headrace doctor`. By default a file is created twice, and removed.
        """
        probe = f"_probe-{secrets.token_hex(6)}"
        self.create_exclusive(probe, b"headrace: the first")
        try:
            self.create_exclusive(probe, b"headrace: the second")
        except AlreadyExistsError:
            return
        finally:
            self.delete(probe)
        raise ConfigurationError(
            f"{self.location} creates a file that is there already, and reports success: it does not honour exclusive "
            "creation (in S3: If-None-Match), without which two drivers could own one job. Update the store, or use "
            "another one."
        )

    def below(self, path: str) -> CheckpointStorage:
        """The directory `path` of this storage as a storage of its own, with the same settings. Nothing is opened.

        By default what its URI stands for, which knows settings of the environment only.
        """
        return storage_for(f"{self.location.rstrip('/')}/{check_path(path)}")

    def unfinished(self, prefix: str) -> Sequence[str]:
        """Sorted paths of half-written files below the directory `prefix`, which no `list` shows; most have none.

        Whoever was writing one died, unless the job is running: `headrace checkpoints gc` removes them.
        """
        return []

    # Task side

    @abstractmethod
    def file_store(self, prefix: str, known_shared: frozenset[str] = frozenset()) -> FileStore:
        """A store that writes below `prefix` and `shared/`, and reads any `StateFile` of this storage.

        `known_shared` names the shared files of completed, retained checkpoints: these alone need not be
        stored again.
        """


class MissingFileError(StorageError, FileNotFoundError):
    """There is no such file in checkpoint storage."""

    recovery = retry("storage may be away; a file that a checkpoint needs is a `DamagedCheckpointError`")


def check_contents(file: StateFile, size: int, sha256: str, where: str) -> None:
    """Raise `DamagedCheckpointError` unless the bytes found are those that were recorded."""
    if size != file.size:
        error = DamagedCheckpointError(
            f"{where} has {size} bytes, but the checkpoint recorded {file.size}. {DAMAGED_WAY_OUT}"
        )
        error.found_size = size
        raise error
    if sha256 != file.sha256:
        raise DamagedCheckpointError(f"{where} has another hash than the checkpoint recorded. {DAMAGED_WAY_OUT}")


DAMAGED_WAY_OUT = "Restore from another checkpoint or a savepoint with --from."


def inline_file(data: bytes) -> StateFile:
    """A `StateFile` that carries its own bytes."""
    return StateFile(size=len(data), sha256=hashlib.sha256(data).hexdigest(), inline=data)


def inline_contents(file: StateFile) -> bytes:
    """The verified bytes of an inline file."""
    data = file.inline if file.inline is not None else b""
    check_contents(file, len(data), hashlib.sha256(data).hexdigest(), "A state inside _metadata")
    return data


StorageFactory: TypeAlias = Callable[[str], CheckpointStorage]

_FACTORIES: dict[str, StorageFactory] = {}


def register_storage(scheme: str, factory: StorageFactory) -> None:
    """Let `storage_for` answer URIs of `scheme` by `factory(uri)`. The last registration wins."""
    _FACTORIES[scheme.lower()] = factory


def storage_for(uri: str) -> CheckpointStorage:
    """The storage that a URI or plain path stands for. Nothing is created or opened."""
    scheme = urlsplit(uri).scheme.lower() or "file"
    factory = _FACTORIES.get(scheme)
    if factory is None:
        known = ", ".join(sorted(f"{name}:" for name in _FACTORIES))
        raise ConfigurationError(
            f"No checkpoint storage is known for {scheme}: URIs. Use {known} or add yours with register_storage()."
        )
    return factory(uri)
