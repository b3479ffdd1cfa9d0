"""Where output waits until it is committed, and how it becomes visible.

    <path>/part-<subtask>-<attempt>-<counter>-<mark>.jsonl              visible: complete, never changed or overwritten
    <path>/<bucket>/part-…                                              the same, in a bucket
    <path>/.staging/<job>/<uid>-<subtask>-a<attempt>-<mark>-<counter>   written or prepared, not yet committed
    <path>/.staging/<job>/<uid>-<subtask>-a<attempt>-<mark>.committed   final names of what was committed, one a line

`mark` is random for each writer, so no two writers ever want one name, whatever job or attempt they belong to.

Committing a transaction, in this order:
    1. link every staged file to its final name (a link never overwrites)
    2. fsync the folders it was linked into
    3. note the final names in the ledger, and fsync it
    4. unlink the staged files
So a staged file that is gone was committed, and the ledger says so even if a reader has taken the visible file away
since.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from urllib.parse import quote

import msgspec

from headrace.errors import CommitFailedError, CommitOutcomeUnknownError

STAGING = ".staging"
LEDGER_SUFFIX = ".committed"
_LONGEST_NAME = 100
_STAGED = re.compile(r"(?P<uid>.+)-(?P<subtask>\d+)-a(?P<attempt>\d+)-[0-9a-f]+(?:-\d+|\.committed)\Z")
_NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}


class PreparedFile(msgspec.Struct, array_like=True):
    """A closed and synced file. Paths are relative to the sink's path, so that the whole tree may be moved."""

    staged: str
    final: str
    size: int
    sha256: bytes


class FileTransaction(msgspec.Struct, array_like=True):
    """All files of one subtask for one checkpoint."""

    ledger: str
    files: list[PreparedFile] = []


def safe_name(text: str) -> str:
    """A file name that stands for `text` alone: quoted, and by hash where it would be too long."""
    name = quote(text, safe=" ").replace(".", "%2E")
    return name if len(name) <= _LONGEST_NAME else hashlib.sha256(text.encode()).hexdigest()


def commit(base: Path, txn: FileTransaction) -> None:
    """Show the files of a prepared transaction; any number of times, from any process."""
    shown: list[PreparedFile] = []
    folders: set[Path] = set()
    try:
        for file in txn.files:
            final = base / file.final
            folders |= _make_folders(base, final.parent)
            if _show(base, file, txn.ledger):  # Step 1
                shown.append(file)
        for folder in folders:
            sync_folder(folder)  # Step 2
        if shown:
            _note(base / txn.ledger, [file.final for file in shown])  # Step 3
        for file in shown:
            (base / file.staged).unlink(missing_ok=True)  # Step 4
    except OSError as error:
        text = f"Committing to {base} failed: {error}. It is tried again on recovery; see that the folder is writable."
        raise (CommitOutcomeUnknownError(text) if shown else CommitFailedError(text)) from error


def discard(base: Path, txn: FileTransaction) -> None:
    """Remove the staged files of a transaction that will not be committed."""
    for file in txn.files:
        (base / file.staged).unlink(missing_ok=True)


def remove_leftovers(base: Path, job_id: str, uid: str, attempt: int, keep: Iterable[FileTransaction]) -> list[Path]:
    """Remove what attempts older than `attempt` left in staging, except what `keep` names; says what it was."""
    kept: set[str] = set()
    for txn in keep:
        kept |= {txn.ledger, *(file.staged for file in txn.files)}
    folder = base / STAGING / safe_name(job_id)
    removed = []
    for path in sorted(folder.iterdir()) if folder.is_dir() else []:
        parts = _STAGED.match(path.name)
        if parts is None or parts["uid"] != safe_name(uid) or int(parts["attempt"]) >= attempt:
            continue
        if str(path.relative_to(base)) not in kept:
            path.unlink(missing_ok=True)
            removed.append(path)
    return removed


def sync_folder(folder: Path) -> None:
    """Make names in the folder durable."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _show(base: Path, file: PreparedFile, ledger: str) -> bool:
    """Give the file its final name; whether its staged name may still be there, so that step 3 and 4 are due."""
    staged, final = base / file.staged, base / file.final
    try:
        os.link(staged, final)
    except OSError as error:
        if not staged.exists():
            _check_shown(file, final, staged, base / ledger)
            return False
        if final.exists():
            # A commit that died between step 1 and step 4, or somebody else's file.
            if not os.path.samefile(staged, final):
                _check_same(file, final)
        elif error.errno in _NO_LINKS:
            # A file system without links. The final name is ours alone, by its mark, so nothing can be overwritten.
            os.rename(staged, final)
        else:
            raise
    return True


def _check_shown(file: PreparedFile, final: Path, staged: Path, ledger: Path) -> None:
    if final.exists():
        _check_same(file, final)
    elif file.final not in _noted(ledger):
        raise CommitFailedError(
            f"{staged} is prepared for {final}, but neither exists and nothing says it was ever committed. "
            f"Restore the folder {STAGING}, or start from another checkpoint."
        )


def _check_same(file: PreparedFile, final: Path) -> None:
    with final.open("rb") as existing:
        same = os.fstat(existing.fileno()).st_size == file.size
        same = same and hashlib.file_digest(existing, "sha256").digest() == file.sha256
    if not same:
        raise CommitFailedError(
            f"{final} exists with another content than the {file.size} bytes that were prepared for it, and is never "
            "overwritten. Somebody changed it: move it away, and the prepared file takes its place on recovery."
        )


def _note(ledger: Path, names: Sequence[str]) -> None:
    with ledger.open("a", encoding="utf-8") as out:
        out.writelines(f"{name}\n" for name in names)
        out.flush()
        os.fsync(out.fileno())


def _noted(ledger: Path) -> set[str]:
    with contextlib.suppress(FileNotFoundError):
        return set(ledger.read_text(encoding="utf-8").split("\n"))
    return set()


def _make_folders(base: Path, folder: Path) -> set[Path]:
    """Make the bucket's folder; the folders in which a name is new by that or by the commit itself."""
    changed = {folder}
    while folder != base and not folder.exists():
        folder = folder.parent
        changed.add(folder)
    max(changed, key=lambda f: len(f.parts)).mkdir(parents=True, exist_ok=True)
    return changed
