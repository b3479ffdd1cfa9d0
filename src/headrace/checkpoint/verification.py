"""Whether every byte of a checkpoint is still what was written.

Each file is streamed once, however many checkpoints name it: a few threads read into large buffers and hash outside
of Python's lock, so that the disk sets the pace. Nothing is written, and nothing is read into memory whole.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from enum import Enum
from typing import IO

import msgspec

from headrace.checkpoint.control_check import control_files_of
from headrace.checkpoint.handles import StateFile
from headrace.checkpoint.metadata.model import state_files
from headrace.checkpoint.places import METADATA, FoundCheckpoint, JobPlace
from headrace.checkpoint.storage.base import CheckpointStorage, FileStore, MissingFileError
from headrace.checkpoint.storage.parts import open_part
from headrace.checkpoint.storage.paths import UnsafePathError, check_path
from headrace.errors import DamagedCheckpointError, StorageError

BUFFER = 1 << 20
DEFAULT_THREADS = min(4, os.cpu_count() or 1)


class Damage(Enum):
    """What is wrong with a file."""

    METADATA = "metadata damaged"
    CONTROL = "control file damaged"
    MISSING = "missing"
    TRUNCATED = "truncated"
    LONGER = "longer than recorded"
    CHANGED = "contents changed"
    UNREADABLE = "cannot be read"
    UNSAFE = "not a plain file inside the checkpoint"


class Finding(msgspec.Struct, frozen=True):
    """One damaged file."""

    path: str
    damage: Damage
    detail: str
    checkpoints: tuple[str, ...]
    """Of all verified checkpoints those that need the file."""


class Verification(msgspec.Struct, frozen=True):
    """The outcome over all checkpoints that were looked at."""

    checkpoints: int
    files: int
    bytes: int
    seconds: float
    findings: tuple[Finding, ...]

    @property
    def whole(self) -> bool:
        return not self.findings


def verify(
    found: Iterable[FoundCheckpoint], threads: int = DEFAULT_THREADS, jobs: Iterable[JobPlace] = ()
) -> Verification:
    """Check metadata, size and sha256 of everything that the checkpoints need, and the control files of `jobs`."""
    started = time.monotonic()
    checkpoints = list(found)
    control = [report for job in jobs for report in control_files_of(job)]
    findings: list[Finding] = [
        Finding(r.path, Damage.MISSING if r.missing else Damage.CONTROL, r.problem, ()) for r in control if r.problem
    ]
    users: dict[tuple[int, StateFile], list[str]] = {}
    stores: dict[int, tuple[str, FileStore]] = {}
    for checkpoint in checkpoints:
        metadata = checkpoint.checkpoint.metadata
        if metadata is None:
            where = f"{checkpoint.path}/{METADATA}"
            detail = str(checkpoint.checkpoint.problem)
            findings.append(Finding(where, Damage.METADATA, detail, (checkpoint.path,)))
            continue
        storage = checkpoint.storage
        # One store for each storage, so that a file that several checkpoints share is read once.
        stores.setdefault(id(storage), (storage.location.rstrip("/"), _store(storage)))
        for file in state_files(metadata):
            by = users.setdefault((id(storage), file), [])
            if checkpoint.path not in by:
                by.append(checkpoint.path)
    with ThreadPoolExecutor(threads, thread_name_prefix="verify") as pool:
        verdicts = pool.map(lambda item: check_file(item[1], *stores[item[0]]), users)
        for verdict, names in zip(verdicts, users.values(), strict=True):
            if verdict is not None:
                path, damage, detail = verdict
                finding = Finding(path, damage, detail, tuple(names))
                # Of a pack that is gone or cut off, every part says the same.
                if finding not in findings:
                    findings.append(finding)
    return Verification(
        checkpoints=len(checkpoints),
        files=len(users) + len(checkpoints) + sum(not report.missing for report in control),
        bytes=sum(file.size for _, file in users),
        seconds=time.monotonic() - started,
        findings=tuple(findings),
    )


def _store(storage: CheckpointStorage) -> FileStore:
    # The prefix names where it would write, which it does not.
    return storage.file_store("verify")


def check_file(file: StateFile, location: str, store: FileStore) -> tuple[str, Damage, str] | None:
    """Read all of it. None if it is whole; else its path, what is wrong with it, and the same as a sentence."""
    where = f"{location}/{file.path}" if file.path else f"{location}: a state inside {METADATA}"
    if file.inline is not None:
        return _verdict(file, where, len(file.inline), hashlib.sha256(file.inline).hexdigest())
    digest = hashlib.sha256()
    buffer = memoryview(bytearray(BUFFER))
    size = 0
    try:
        check_path(file.path)
        with closing(_open(store, file)) as stream:
            while count := stream.readinto(buffer):  # type: ignore[attr-defined]  # every binary stream has it
                # Behind a part the pack goes on.
                count = min(count, file.size - size) if file.pack_size else count
                size += count
                if size > file.size or not count:
                    break
                digest.update(buffer[:count])
    except DamagedCheckpointError as error:
        # What was found is the size of the stored object.
        stored = msgspec.structs.replace(file, size=file.pack_size or file.size)
        return _verdict(stored, where, error.found_size or 0, "")
    except (MissingFileError, FileNotFoundError):
        return where, Damage.MISSING, f"{where} is missing."
    except UnsafePathError as error:
        return where, Damage.UNSAFE, str(error)
    except (StorageError, OSError) as error:
        return where, Damage.UNREADABLE, f"{where} cannot be read: {error}"
    return _verdict(file, where, size, digest.hexdigest())


def _open(store: FileStore, file: StateFile) -> IO[bytes]:
    """Like `FileStore.open`, but says which kind of damage it met; of a part it opens the pack."""
    try:
        return open_part(store, file) if file.pack_size else store.open(file)
    except DamagedCheckpointError as error:
        if error.found_size is not None:
            raise
        if isinstance(error.__cause__, MissingFileError | UnsafePathError):
            raise error.__cause__ from None
        raise StorageError(str(error)) from error


def _verdict(file: StateFile, where: str, size: int, sha256: str) -> tuple[str, Damage, str] | None:
    if size < file.size:
        return where, Damage.TRUNCATED, f"{where} has {size} bytes, but {file.size} were recorded."
    if size > file.size:
        return where, Damage.LONGER, f"{where} has more than the {file.size} bytes that were recorded."
    if sha256 != file.sha256:
        part = f" from byte {file.offset} to {file.offset + file.size}" if file.pack_size else ""
        return where, Damage.CHANGED, f"{where} has another hash than was recorded{part}."
    return None
