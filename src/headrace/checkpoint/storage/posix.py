"""Durable file operations on a POSIX file system.

Nothing here overwrites by accident, and nothing counts as stored before the file *and* its directory
are synced. A failed sync is never retried on the same descriptor: the kernel may have dropped the dirty
pages and would report success the second time.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from headrace.checkpoint.storage.base import AlreadyExistsError, DurabilityUnknownError, MissingFileError
from headrace.checkpoint.storage.paths import UnsafePathError
from headrace.errors import StorageError

TEMPORARY = ".tmp-"
"""Names that start so are half-written; no listing shows them."""

DEFAULT_BUFFER = 256 * 1024

LARGEST_WHOLE = 1 << 30
"""Of what is read in one piece: metadata, attempts, leases. Metadata with all state inside stays far below it."""


@contextmanager
def storage_errors(doing: str, path: Path | str) -> Iterator[None]:
    """Turn what the operating system reports into a `StorageError` that names the path."""
    try:
        yield
    except StorageError:
        raise
    except FileNotFoundError as error:
        raise MissingFileError(f"Cannot {doing} {path}: there is no such file.") from error
    except OSError as error:
        raise StorageError(
            f"Cannot {doing} {path}: {error.strerror or error}. Check space, permissions and that the volume is there."
        ) from error


def sync_directory(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def make_directory(path: Path, *, inside: Path | None = None) -> None:
    """Create `path` and what is missing above it, 0700, each durable in its parent.

    `inside` must be there already: what is missing of it, or above it, is not made.
    """
    missing = []
    at = path
    while not at.is_dir():
        if at == inside:
            raise StorageError(f"{at} is not there: is the volume mounted? It is not created by this.")
        missing.append(at)
        if at.parent == at:
            break
        at = at.parent
    for directory in reversed(missing):
        # Each by itself, never with parents: one that has gone since fails here.
        with contextlib.suppress(FileExistsError):
            os.mkdir(directory, 0o700)
        sync_directory(directory.parent)


@contextmanager
def new_file(path: Path, buffer_size: int = DEFAULT_BUFFER) -> Iterator[IO[bytes]]:
    """A new file (0600, exclusive), synced when the block ends well and removed when it does not."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, stat.S_IRUSR | stat.S_IWUSR)
    try:
        with os.fdopen(fd, "wb", buffering=buffer_size) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(path)
        raise


def create_exclusive(path: Path, data: bytes) -> None:
    """Write a temporary file, sync it, and *link* it: a link never replaces, a rename would."""
    make_directory(path.parent)
    temporary = path.parent / f"{TEMPORARY}{uuid.uuid4().hex}"
    with new_file(temporary) as file:
        file.write(data)
    try:
        try:
            os.link(temporary, path)
        except FileExistsError as error:
            # NFS may repeat a link whose answer was lost; a second name on our own file says that we won.
            if os.stat(temporary).st_nlink < 2:
                raise AlreadyExistsError(f"{path} exists already; it was left as it is.") from error
        try:
            sync_directory(path.parent)
        except OSError as error:
            raise DurabilityUnknownError(
                f"{path} was created, but its directory could not be synced: {error.strerror or error}."
            ) from error
    finally:
        with contextlib.suppress(OSError):
            os.unlink(temporary)


def replace(path: Path, data: bytes) -> None:
    """Write a temporary file, sync it, and rename it over `path`."""
    make_directory(path.parent)
    temporary = path.parent / f"{TEMPORARY}{uuid.uuid4().hex}"
    with new_file(temporary) as file:
        file.write(data)
    try:
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    sync_directory(path.parent)


def second_name(path: Path, name: Path) -> bool:
    """Give a file that never changes another name, which is as good as a copy of it and moves no byte.

    False where that cannot be: the name lies on another file system, or the file is somebody else's.
    """
    try:
        os.link(path, name, follow_symlinks=False)
    except OSError:
        return False
    return True


def inside(root: Path, path: str) -> Path:
    """`root/path`, refused if any part of `path` is a symbolic link.

    We make none, so a link was put there by somebody else and may lead anywhere: to a file that is not part of the
    checkpoint, or out of the root for a delete. The root itself may be reached by links.
    """
    at = root
    for part in path.split("/"):
        at = at / part
        try:
            is_link = stat.S_ISLNK(os.lstat(at).st_mode)
        except (FileNotFoundError, NotADirectoryError):
            return root / path
        if is_link:
            raise UnsafePathError(
                f"{at} is a symbolic link, which checkpoint storage never makes and does not follow. "
                f"Put the file or directory itself there."
            )
    return at


def open_regular(path: Path) -> IO[bytes]:
    """Open a file for reading; a pipe or device, which could block or never end, is refused."""
    # Without O_NONBLOCK, opening a pipe would wait for a writer.
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        mode = os.fstat(fd).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(mode):
            raise UnsafePathError(f"{path} is no regular file. Checkpoint storage reads nothing else.")
        return os.fdopen(fd, "rb")
    except BaseException:
        os.close(fd)
        raise


def read_whole(path: Path) -> bytes:
    """All bytes of a small file. What is larger than any file of a driver is refused before memory is taken for it."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > LARGEST_WHOLE:
            raise StorageError(f"{path} has {size} bytes; a file of that kind has at most {LARGEST_WHOLE}.")
        return file.read()


def unfinished_files(directory: Path) -> Iterator[str]:
    """Paths, relative to `directory`, of the half-written files below it."""
    for folder, _, names in os.walk(directory):
        for name in names:
            if name.startswith(TEMPORARY):
                yield (Path(folder) / name).relative_to(directory).as_posix()


def list_files(directory: Path, start: str) -> Iterator[str]:
    """Paths, relative to `directory`, of all files below it whose relative path begins with `start`."""
    try:
        entries = list(os.scandir(directory))
    except (FileNotFoundError, NotADirectoryError):
        # A directory that is dropped while it is listed has no files.
        return
    for entry in entries:
        if not entry.name.startswith(start) or entry.name.startswith(TEMPORARY):
            continue
        if entry.is_dir(follow_symlinks=False):
            for below in list_files(Path(entry.path), ""):
                yield f"{entry.name}/{below}"
        else:
            yield entry.name


def names_in(directory: Path, start: str) -> Iterator[str]:
    """Names directly in `directory` that begin with `start`, those of directories with a slash behind them."""
    try:
        entries = list(os.scandir(directory))
    except (FileNotFoundError, NotADirectoryError):
        return
    for entry in entries:
        if entry.name.startswith(start) and not entry.name.startswith(TEMPORARY):
            yield f"{entry.name}/" if entry.is_dir(follow_symlinks=False) else entry.name
