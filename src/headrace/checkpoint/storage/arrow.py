"""Checkpoints in any store of `pyarrow.fs`: Google Cloud Storage, Azure; and the base of S3 and HDFS.

The bulk of the state goes by `ArrowFileStore`. The driver's few small files need one thing that `pyarrow.fs` does not
have: to create a file only if it is not there. Only the driver does that, so a way to do it can be given for a scheme
by `register_exclusive_create`; without one the store is refused before anything is written. A plain "look, then
write" would let two drivers own one job. For HDFS hdfs-native brings one; for Google's store, and for HDFS without that
package, a job registers Hadoop's, in the driver's JVM.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Sequence
from typing import Any, Self, TypeAlias
from urllib.parse import urlsplit

from headrace.checkpoint.storage.arrow_files import ArrowFileStore
from headrace.checkpoint.storage.base import INLINE_THRESHOLD, AlreadyExistsError, CheckpointStorage, FileStore
from headrace.checkpoint.storage.filesystem import MAX_INLINE_THRESHOLD
from headrace.checkpoint.storage.operations import Operations, TransferOptions
from headrace.checkpoint.storage.paths import check_path, check_prefix
from headrace.checkpoint.storage.posix import LARGEST_WHOLE
from headrace.errors import ConfigurationError, StorageError

ExclusiveCreate: TypeAlias = Callable[[str, bytes], None]
"""`create(uri, data)`: a new file, whole from the first moment it can be seen; FileExistsError if it is there."""

Replace: TypeAlias = Callable[[str, bytes], None]
"""`replace(uri, data)`: readers see the old or the new bytes, whole."""

_CREATORS: dict[str, ExclusiveCreate] = {}
_REPLACERS: dict[str, Replace] = {}


def register_exclusive_create(scheme: str, create: ExclusiveCreate, *, replace: Replace | None = None) -> None:
    """Let the driver create files of that URI scheme by `create`. The last registration wins.

    Of any number of racing callers, on any machines, exactly one must succeed. Called in the driver's process only.
    `replace` is needed where a file that is written over can be seen half (HDFS): the lease is written every 2 s.
    """
    _CREATORS[scheme.lower()] = create
    _REPLACERS.pop(scheme.lower(), None)
    if replace is not None:
        _REPLACERS[scheme.lower()] = replace


def exclusive_create_for(scheme: str) -> ExclusiveCreate | None:
    """What was registered for the scheme; None if nothing was."""
    return _CREATORS.get(scheme.lower())


class ArrowCheckpointStorage(CheckpointStorage):
    """Checkpoints below a URI that `pyarrow.fs.FileSystem.from_uri` understands.

    Credentials are those of the environment of each process (as the client library finds them); none travel or are
    stored. `file_state_size_threshold`: files up to this size travel inside `_metadata`.
    """

    def __init__(
        self,
        uri: str,
        file_state_size_threshold: int | None = None,
        options: TransferOptions | None = None,
    ) -> None:
        parts = urlsplit(uri)
        if not parts.scheme:
            raise ConfigurationError(
                f"{uri!r} is no URI. Write it with its scheme, such as hdfs://namenode/checkpoints."
            )
        if parts.username or parts.password or parts.query or parts.fragment:
            raise ConfigurationError(
                f"A checkpoint URI names a place and nothing else: {parts.scheme}://{parts.hostname or ''}{parts.path}"
                ". Set credentials and endpoints by the environment of the store's client."
            )
        threshold = INLINE_THRESHOLD if file_state_size_threshold is None else file_state_size_threshold
        if not 0 <= threshold <= MAX_INLINE_THRESHOLD:
            raise ConfigurationError(
                f"file_state_size_threshold is {threshold}; it must lie between 0 and {MAX_INLINE_THRESHOLD} bytes."
            )
        self.uri = uri.rstrip("/")
        self.scheme = parts.scheme.lower()
        self.inline_threshold = threshold
        self.options = options if options is not None else TransferOptions()
        self._reset()

    def _reset(self) -> None:
        self._operations = Operations(self.options)
        self._lock = threading.Lock()
        self._opened: tuple[Any, str] | None = None

    def __getstate__(self) -> dict[str, Any]:
        # Tasks get the settings; a client belongs to the process that made it.
        return {name: value for name, value in self.__dict__.items() if name not in ("_operations", "_lock", "_opened")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._reset()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.uri!r})"

    @property
    def location(self) -> str:
        return self.uri

    @property
    def survives(self) -> str:
        return f"the loss of tasks, of this process and of this machine, as long as {self.uri} is there"

    def below(self, path: str) -> Self:
        # A copy is made as one that travels: it has a client of its own, which begins at its own root.
        other = copy.copy(self)
        other.uri = f"{self.uri}/{check_path(path)}"
        return other

    # The client

    def _connect(self) -> tuple[Any, str]:
        """The file system and the path of the root in it."""
        from pyarrow import fs

        try:
            found: tuple[Any, str] = fs.FileSystem.from_uri(self.uri)
        except (OSError, ValueError, NotImplementedError) as error:
            raise ConfigurationError(
                f"{self.uri} cannot be opened by pyarrow: {error}. Check the URI and that the store's client is "
                "installed."
            ) from error
        return found

    def _filesystem(self) -> tuple[Any, str]:
        with self._lock:
            if self._opened is None:
                filesystem, root = self._connect()
                self._opened = filesystem, root.rstrip("/")
            return self._opened

    def _full(self, path: str) -> tuple[Any, str, str]:
        """The client, the path in it, and the path for people."""
        check_path(path)
        filesystem, root = self._filesystem()
        return filesystem, f"{root}/{path}", f"{self.uri}/{path}"

    # Driver side

    def create_exclusive(self, path: str, data: bytes) -> None:
        create = _CREATORS.get(self.scheme)
        if create is None:
            raise ConfigurationError(
                f"Checkpoints cannot be published to {self.uri}: nothing is known that creates a file of a "
                f"{self.scheme}: URI only if it is not there, and without it two drivers could own one job. A job "
                "brings a way for hdfs:, viewfs: and gs:, by Spark's JVM, as long as it runs; headrace[hdfs] brings "
                "one for hdfs: and viewfs: that needs no JVM. Register one for another store with "
                "headrace.checkpoint.storage.arrow.register_exclusive_create(), or use file: or s3: storage."
            )
        check_path(path)
        where = f"{self.uri}/{path}"
        try:
            # Not repeated: after an unknown outcome a second try would meet its own file.
            self._operations.run("create", where, lambda: _told(create, where, data), again=False)
        except StorageError as error:
            if isinstance(error.__cause__, FileExistsError):
                raise AlreadyExistsError(f"{where} exists already; it was left as it is.") from error
            raise

    def replace(self, path: str, data: bytes) -> None:
        registered = _REPLACERS.get(self.scheme)
        if registered is not None:
            where = f"{self.uri}/{check_path(path)}"
            self._operations.run("replace", where, lambda: registered(where, data))
            return
        filesystem, full, where = self._full(path)

        def put() -> None:
            filesystem.create_dir(full.rpartition("/")[0], recursive=True)
            with filesystem.open_output_stream(full) as stream:
                stream.write(data)

        self._operations.run("replace", where, put)

    def read(self, path: str) -> bytes:
        filesystem, full, where = self._full(path)

        def get() -> bytes:
            with filesystem.open_input_file(full) as stream:
                if stream.size() > LARGEST_WHOLE:
                    raise StorageError(f"{where} has {stream.size()} bytes; a file of that kind has far less.")
                return stream.read()  # type: ignore[no-any-return]

        return self._operations.run("read", where, get)

    def exists(self, path: str) -> bool:
        return self._size(path) is not None

    def size(self, path: str) -> int:
        found = self._size(path)
        if found is None:
            return len(self.read(path))  # raises, with the reason
        return found

    def _size(self, path: str) -> int | None:
        from pyarrow import fs

        filesystem, full, where = self._full(path)
        info = self._operations.run("look for", where, lambda: filesystem.get_file_info(full))
        return int(info.size) if info.type == fs.FileType.File else None

    def list(self, prefix: str) -> list[str]:
        from pyarrow import fs

        directory = check_prefix(prefix).rpartition("/")[0]
        filesystem, root = self._filesystem()
        selector = fs.FileSelector(f"{root}/{directory}".rstrip("/"), allow_not_found=True, recursive=True)
        infos = self._operations.run("list", f"{self.uri}/{directory}", lambda: filesystem.get_file_info(selector))
        names = (info.path[len(root) + 1 :] for info in infos if info.type == fs.FileType.File)
        return sorted(name for name in names if name.startswith(prefix))

    def list_names(self, directory: str, start: str = "") -> Sequence[str]:
        from pyarrow import fs

        filesystem, full, where = self._full(directory)
        selector = fs.FileSelector(full, allow_not_found=True, recursive=False)
        infos = self._operations.run("list", where, lambda: filesystem.get_file_info(selector))
        kinds = {fs.FileType.File: "", fs.FileType.Directory: "/"}
        names = (info.path.rstrip("/").rpartition("/")[2] + kinds.get(info.type, "") for info in infos)
        return sorted(name for name in names if name.startswith(start))

    def delete(self, path: str) -> None:
        filesystem, full, where = self._full(path)

        def remove() -> None:
            try:
                filesystem.delete_file(full)
            except FileNotFoundError:
                return

        self._operations.run("delete", where, remove)

    def delete_tree(self, prefix: str) -> None:
        filesystem, full, where = self._full(prefix)

        def remove() -> None:
            try:
                filesystem.delete_dir(full)
            except FileNotFoundError:
                return

        self._operations.run("delete", where, remove)

    # Task side

    def file_store(self, prefix: str, known_shared: frozenset[str] = frozenset()) -> FileStore:
        check_path(prefix)
        filesystem, root = self._filesystem()
        return ArrowFileStore(filesystem, root, self.uri, prefix, known_shared, self.inline_threshold, self._operations)


def _told(create: ExclusiveCreate, where: str, data: bytes) -> None:
    create(where, data)
