"""Staging in a file system: a file becomes visible by a link, which never overwrites.

Committing, in the steps of `Staging.commit`: link, fsync the folders it was linked into, note and fsync the ledger,
unlink. Where there are no links a rename takes their place: final names are a writer's own, by its mark, so nothing can
be in the way of one.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import secrets
from pathlib import Path

from headrace.connectors.files.commit_notes import NOTES_KEPT, decode_notes, encode_notes
from headrace.connectors.files.staged_names import STAGING
from headrace.connectors.files.staging import FileTransaction, PreparedFile, StagedFile, Staging

WRITE_BUFFER = 256 * 1024
LEDGER_BYTES = 1 << 20
"""A larger ledger is cut down to its newest notes, so that a job which runs for years keeps a small one."""
_NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}


class LocalStaging(Staging):
    """Below a folder."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.shown = str(base)

    def check(self) -> None:
        probe = self.base / STAGING / f"preflight-{secrets.token_hex(6)}"
        missing = [folder for folder in probe.parents if not folder.exists()]
        probe.parent.mkdir(parents=True, exist_ok=True)
        probe.touch()
        probe.unlink()
        # Something else may refuse the job yet: leave nothing behind.
        for folder in missing:
            with contextlib.suppress(OSError):
                folder.rmdir()

    def create(self, staged: str) -> StagedFile:
        path = self.base / staged
        path.parent.mkdir(parents=True, exist_ok=True)
        return _LocalFile(path)

    def sync(self, stem: str) -> None:
        _sync_folder((self.base / stem).parent)

    def show(self, file: PreparedFile, txn: FileTransaction, touched: set[str]) -> bool:
        staged, final = self.base / file.staged, self.base / file.final
        # Before any folder is made: nothing may be left of a place that is gone.
        if not staged.exists():
            return self._was_shown(file, txn)
        touched |= _make_folders(self.base, final.parent)
        try:
            os.link(staged, final)
        except OSError as error:
            if not staged.exists():
                return self._was_shown(file, txn)  # by another process, a moment ago
            if final.exists():
                # A commit that died between step 1 and step 4, or somebody else's file.
                if not os.path.samefile(staged, final):
                    self._check_same(file, final)
            elif error.errno in _NO_LINKS:
                os.rename(staged, final)
            else:
                raise
        return True

    def _was_shown(self, file: PreparedFile, txn: FileTransaction) -> bool:
        """Raise unless the file, which is not staged any more, was shown; False, as nothing is left to do."""
        final = self.base / file.final
        if final.exists():
            self._check_same(file, final)
        else:
            self.check_noted(file, txn)
        return False

    def _check_same(self, file: PreparedFile, final: Path) -> None:
        with final.open("rb") as existing:
            same = os.fstat(existing.fileno()).st_size == file.size
            same = same and hashlib.file_digest(existing, "sha256").digest() == file.sha256
        if not same:
            raise self.differs(file)

    def make_durable(self, touched: set[str]) -> None:
        for folder in touched:
            _sync_folder(folder)

    def exists(self, path: str) -> bool:
        return (self.base / path).exists()

    def names(self, folder: str) -> list[str]:
        place = self.base / folder
        return [f"{folder}/{name}" for name in sorted(os.listdir(place))] if place.is_dir() else []

    def read(self, path: str) -> bytes:
        with contextlib.suppress(FileNotFoundError):
            return (self.base / path).read_bytes()
        return b""

    def replace(self, path: str, data: bytes) -> None:
        target = self.base / path
        target.parent.mkdir(parents=True, exist_ok=True)
        fresh = target.with_name(f".{target.name}-{secrets.token_hex(4)}")
        with fresh.open("xb") as out:
            out.write(data)
            out.flush()
            os.fsync(out.fileno())
        os.replace(fresh, target)
        _sync_folder(target.parent)

    def append(self, path: str, data: bytes) -> None:
        with (self.base / path).open("ab") as out:
            out.write(data)
            out.flush()
            os.fsync(out.fileno())
            grown = out.tell() > LEDGER_BYTES
        if grown:
            self.replace(path, encode_notes(decode_notes(self.read(path))[-NOTES_KEPT:]))

    def remove(self, path: str) -> None:
        (self.base / path).unlink(missing_ok=True)


class _LocalFile:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = open(path, "xb", buffering=WRITE_BUFFER)  # noqa: SIM115 - closed by finish or give_up

    def write(self, data: memoryview) -> None:
        self._file.write(data)

    def flush(self) -> None:
        self._file.flush()

    def finish(self) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()

    def give_up(self) -> None:
        self._file.close()
        self._path.unlink(missing_ok=True)


def _sync_folder(folder: Path | str) -> None:
    """Make names in the folder durable."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _make_folders(base: Path, folder: Path) -> set[str]:
    """Make the bucket's folder; the folders in which a name is new by that or by the commit itself."""
    changed = {str(folder)}
    above = folder
    while above != base and not above.exists():
        above = above.parent
        changed.add(str(above))
    folder.mkdir(parents=True, exist_ok=True)
    return changed
