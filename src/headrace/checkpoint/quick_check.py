"""Whether the files of a checkpoint are there, as a start asks before it does anything.

Every file must exist with the size that was recorded. Contents are compared with their hash as far as that is cheap: up
to `HASHED_BYTES` in all, the smallest files first. What is beyond that is hashed where a task fetches it, as always;
`headrace checkpoints verify` reads everything.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import msgspec

from headrace.checkpoint.handles import StateFile
from headrace.checkpoint.metadata.model import CheckpointMetadata, state_files
from headrace.checkpoint.storage.base import CheckpointStorage, MissingFileError
from headrace.checkpoint.storage.paths import UnsafePathError
from headrace.checkpoint.verification import Damage, check_file

HASHED_BYTES = 64 << 20
"""A fraction of a second on a disk, a second or two from an object store."""

THREADS = 16
"""Each asks for one size at a time: a remote store takes its time to answer."""


class DamagedFile(msgspec.Struct, frozen=True):
    """One file that a restore would fail on."""

    path: str
    damage: Damage
    detail: str


class QuickCheck(msgspec.Struct, frozen=True):
    """What was looked at, and what is wrong."""

    files: int
    bytes: int
    hashed: int
    """Bytes whose contents were compared."""
    damaged: tuple[DamagedFile, ...]


def quick_check(metadata: CheckpointMetadata, storage: CheckpointStorage, hashed: int = HASHED_BYTES) -> QuickCheck:
    """Check size of all files and contents of the smallest. `StorageError` if storage does not answer."""
    files = sorted(dict.fromkeys(state_files(metadata)), key=lambda file: (file.size, file.path))
    total, cheap = 0, 0
    for file in files:
        total += file.size
        cheap += total <= hashed
    store = storage.file_store("verify")
    location = storage.location.rstrip("/")
    with ThreadPoolExecutor(THREADS, thread_name_prefix="quick-check") as pool:
        sizes = pool.map(lambda file: _check_size(file, storage, location), files)
        found = [verdict for verdict in sizes if verdict is not None]
        if not found:
            contents = pool.map(lambda file: check_file(file, location, store), files[:cheap])
            found = [DamagedFile(*verdict) for verdict in contents if verdict is not None]
    return QuickCheck(
        files=len(files),
        bytes=total,
        hashed=sum(file.size for file in files[:cheap]),
        # Of a pack that is gone or cut off, every part says the same.
        damaged=tuple(dict.fromkeys(found)),
    )


def _check_size(file: StateFile, storage: CheckpointStorage, location: str) -> DamagedFile | None:
    if file.inline is not None:
        return None  # inside the metadata, whose hash was checked; compared with its own hash below
    where = f"{location}/{file.path}"
    expected = file.pack_size or file.size
    try:
        size = storage.size(file.path)
    except (MissingFileError, FileNotFoundError):
        return DamagedFile(where, Damage.MISSING, f"{where} is missing.")
    except UnsafePathError as error:
        return DamagedFile(where, Damage.UNSAFE, str(error))
    if size == expected:
        return None
    damage = Damage.TRUNCATED if size < expected else Damage.LONGER
    return DamagedFile(where, damage, f"{where} has {size} bytes, but {expected} were recorded.")
