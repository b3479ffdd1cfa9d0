"""Files of HDFS by the package hdfs-native, which speaks its protocol without libhdfs and without a JVM.

Every file is written aside, synced, closed and moved into place by the name node in one step: nobody sees half a file,
and two tasks that store the same content do not take the file out of each other's hands. The move is the protocol's
`rename2`, which refuses a name that is taken unless it is told to replace it: that makes the exclusive create.

    <directory>/.tmp-<random>    what is being written, private to its user; left behind by a process that died
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any, Self, TypeAlias
from urllib.parse import urlsplit

from headrace.checkpoint.storage.posix import TEMPORARY
from headrace.errors import ConfigurationError, HeadraceError, MissingDependencyError, StorageError

Client: TypeAlias = Any
"""An `hdfs_native.Client`. Thread-safe."""

_PRIVATE_DIRECTORY = 0o700
_PRIVATE_FILE = 0o600

# The client has classes of its own for few of the name node's refusals; of the others it gives the Java class in text.
_TAKEN = ("AlreadyExists", "FileAlreadyExistsException")
_MISSING = ("FileNotFoundException",)
_NO_DIRECTORY = ("ParentNotDirectoryException", "(is not a directory)")
_DENIED = ("AccessControlException", "AuthorizationException")

_clients: dict[str, Client] = {}
_lock = threading.Lock()
_forked = False
"""Whether the process that this one was forked from had a client."""


def installed() -> bool:
    """Whether hdfs-native is here. It is imported when the first file is opened, not before."""
    return find_spec("hdfs_native") is not None


def client_of(home: str) -> Client:
    """This process's client of `scheme://authority`, made at the first call. Connects when it is used.

    What it knows of the cluster it reads itself: `core-site.xml` and `hdfs-site.xml` in `HADOOP_CONF_DIR`.
    `StorageError` in a fork of a process that had one: the package keeps connections to data nodes for all clients of
    a process, so both would talk on the same ones. The child waits for ever then, and the parent may read its answers.
    """
    if _forked:
        raise StorageError(
            f"{home} cannot be used here: this process was forked from one that had HDFS open, and hdfs-native would "
            "share that one's connections. Start it anew (the method 'spawn' of multiprocessing), or fork it before "
            "HDFS is opened."
        )
    with _lock:
        client = _clients.get(home)
        if client is None:
            client = _clients[home] = _new_client(home)
        return client


def _new_client(home: str) -> Client:
    try:
        import hdfs_native
    except ImportError as error:
        raise MissingDependencyError(
            f'{home} needs hdfs-native, which cannot be imported here ({error}): pip install "headrace[hdfs]".'
        ) from error
    try:
        with os_errors():
            client = hdfs_native.Client(home)
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"{home} cannot be opened by hdfs-native: {error}. Check the URI, and that HADOOP_CONF_DIR names the "
            "directory with the core-site.xml and hdfs-site.xml of that cluster."
        ) from error
    # Never freed: its end waits for its threads, which a fork does not have. A child that ends as an interpreter does
    # would hang there.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(client))
    return client


def _leave_to_the_parent() -> None:
    global _forked
    _forked = _forked or bool(_clients)


os.register_at_fork(after_in_child=_leave_to_the_parent)


def parted(uri: str) -> tuple[str, str]:
    """`scheme://authority` and the path of a URI."""
    parts = urlsplit(uri)
    return f"{parts.scheme.lower()}://{parts.netloc}", parts.path or "/"


@contextmanager
def os_errors() -> Iterator[None]:
    """Turn what the client raises into the errors of an operating system, which `Operations` tells apart."""
    try:
        yield
    except (OSError, NotImplementedError, HeadraceError):
        raise
    except (RuntimeError, ValueError) as error:
        raise _as_os_error(str(error)) from error
    except BaseException as error:
        # A panic of the Rust code is no `Exception`: it would pass all who wait for one.
        if type(error).__name__ != "PanicException":
            raise
        raise OSError(f"hdfs-native failed: {error}") from error


def _as_os_error(text: str) -> OSError:
    for marks, kind in (
        (_TAKEN, FileExistsError),
        (_MISSING, FileNotFoundError),
        (_NO_DIRECTORY, NotADirectoryError),
        (_DENIED, PermissionError),
    ):
        if any(mark in text for mark in marks):
            return kind(text)
    return OSError(text)


def create_exclusively(uri: str, data: bytes) -> None:
    """Create `uri` with `data`, whole from the first moment it can be seen; `FileExistsError` if it is there.

    Of any number of callers on any machines exactly one succeeds. After another `OSError` the file may be there or
    not. Missing directories are made private to the user.
    """
    home, path = parted(uri)
    client = client_of(home)
    with os_errors():
        if _is_there(client, path):
            # Cheaper than to write aside first. It is the move that decides.
            raise FileExistsError(f"{uri} exists")
        _make_directory_of(client, path)
        _write(client, path, data, overwrite=False)


def replace_whole(uri: str, data: bytes) -> None:
    """Write `uri` whether it exists or not; readers see the old or the new bytes."""
    home, path = parted(uri)
    client = client_of(home)
    with os_errors():
        _make_directory_of(client, path)
        _write(client, path, data, overwrite=True)


def _is_there(client: Client, path: str) -> bool:
    try:
        with os_errors():
            client.get_file_info(path)
    except FileNotFoundError:
        return False
    return True


def _make_directory_of(client: Client, path: str) -> None:
    client.mkdirs(path.rpartition("/")[0] or "/", _PRIVATE_DIRECTORY, True)


def _write(client: Client, path: str, data: bytes, *, overwrite: bool) -> None:
    with FileAside(client, path, overwrite=overwrite) as file:
        file.write(data)


class FileAside:
    """A new file, which is seen under its name once it was closed. Left by an error, it leaves nothing behind."""

    def __init__(self, client: Client, path: str, *, overwrite: bool) -> None:
        from hdfs_native import WriteOptions

        self._client = client
        self._path = path
        self._overwrite = overwrite
        self._aside = f"{path.rpartition('/')[0]}/{TEMPORARY}{uuid.uuid4().hex}"
        self._written = 0
        self._closed = False
        try:
            with os_errors():
                # Directories are made beforehand: those that come with a file are as open as the one above them.
                self._writer = client.create(self._aside, WriteOptions(permission=_PRIVATE_FILE, create_parent=False))
        except FileExistsError as error:
            # Nobody else makes up this name: the client asked twice, because the first answer was lost. It must not
            # look as if the name that the file is for were taken.
            raise OSError(f"{self._aside} was there when it was to be created, by a first try") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self._discard()

    def write(self, data: bytes) -> None:
        with os_errors():
            self._writer.write(data)
        self._written += len(data)

    def close(self) -> None:
        """Make it durable and move it into place; `FileExistsError` if it may not replace what is there."""
        if self._closed:
            return
        self._closed = True
        try:
            with os_errors():
                self._finish()
        except BaseException:
            self._discard()
            raise

    def _finish(self) -> None:
        if self._written:
            # Where files are erasure-coded there is no such call; the close alone has to do.
            with contextlib.suppress(NotImplementedError):
                self._writer.hsync()
        self._writer.close()
        try:
            self._move()
        except FileNotFoundError as error:
            # The client may have asked twice, because the first answer was lost: then the first has moved it. Whether
            # what is there now is ours is for the caller to find out.
            raise OSError(f"{self._aside} was gone when it was moved to {self._path}, by us or by others") from error

    def _move(self) -> None:
        with os_errors():
            self._client.rename(self._aside, self._path, self._overwrite)

    def _discard(self) -> None:
        self._closed = True
        with contextlib.suppress(Exception), os_errors():
            # After an unknown outcome it may have been moved: then there is nothing of that name.
            self._client.delete(self._aside, False)


class HdfsFile:
    """An open file as `ArrowFileStore` reads it: any part, on several threads at once."""

    def __init__(self, reader: Any) -> None:
        self._reader = reader
        self._size = len(reader)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return

    def size(self) -> int:
        return self._size

    def read_at(self, length: int, offset: int) -> bytes:
        """Fewer bytes than `length` at the end of the file."""
        length = min(length, self._size - offset)
        if length <= 0:
            return b""
        with os_errors():
            return self._reader.read_range(offset, length)  # type: ignore[no-any-return]

    def read(self) -> bytes:
        return self.read_at(self._size, 0)


class HdfsFiles:
    """What storage uses of a `pyarrow.fs.FileSystem`, by hdfs-native.

    Not one of `pyarrow.fs.PyFileSystem`: its files have one lock each, so parts would come one after another, and a
    data node that falls silent would hold up every further try too. Holds no client: it asks for it at every call.
    """

    type_name = "hdfs"

    def __init__(self, home: str) -> None:
        self._home = home

    def create_dir(self, path: str, *, recursive: bool = True) -> None:
        with os_errors():
            client_of(self._home).mkdirs(path or "/", _PRIVATE_DIRECTORY, recursive)

    def open_output_stream(self, path: str) -> FileAside:
        return FileAside(client_of(self._home), path, overwrite=True)

    def open_input_file(self, path: str) -> HdfsFile:
        with os_errors():
            return HdfsFile(client_of(self._home).read(path))

    def delete_file(self, path: str) -> None:
        self._delete(path, recursive=False)

    def delete_dir(self, path: str) -> None:
        self._delete(path, recursive=True)

    def _delete(self, path: str, *, recursive: bool) -> None:
        with os_errors():
            if not client_of(self._home).delete(path, recursive):
                raise FileNotFoundError(path)

    def get_file_info(self, what: Any) -> Any:
        """Of one path its `pyarrow.fs.FileInfo`; of a `pyarrow.fs.FileSelector` all that it selects."""
        return self._info(what) if isinstance(what, str) else list(self._selected(what))

    def _info(self, path: str) -> Any:
        from pyarrow import fs

        try:
            with os_errors():
                return _info_of(client_of(self._home).get_file_info(path))
        except (FileNotFoundError, NotADirectoryError):
            return fs.FileInfo(path, fs.FileType.NotFound)

    def _selected(self, selector: Any) -> Iterator[Any]:
        below = [selector.base_dir or "/"]
        while below:
            directory = below.pop()
            try:
                with os_errors():
                    found = list(client_of(self._home).list_status(directory, False))
            except (FileNotFoundError, NotADirectoryError):
                if directory == (selector.base_dir or "/") and not selector.allow_not_found:
                    raise
                continue  # deleted since its parent was listed
            yield from map(_info_of, found)
            if selector.recursive:
                below += [status.path for status in found if status.isdir]


def _info_of(status: Any) -> Any:
    from pyarrow import fs

    if status.isdir:
        return fs.FileInfo(status.path, fs.FileType.Directory)
    return fs.FileInfo(status.path, fs.FileType.File, size=status.length)
