"""Create a file of a Hadoop file system only if it is not there, by the driver's JVM.

`pyarrow.fs` has no exclusive create, Hadoop has. What "create only if it is not there" is made of differs by store,
because a name must not be seen before its contents are whole:

    hdfs, viewfs   `create(overwrite=false)` shows an empty file at once, and a driver that dies then leaves it behind
                   under its final name. So the contents are written aside, synced and closed, and moved by the name
                   node in one step, which refuses if the name is taken (`FileContext.rename` without OVERWRITE).
    gs             an object appears when it is closed, if there is none of that name at that moment (a generation
                   match of 0): `create(overwrite=false)` is all it takes.

Hadoop's own local file system (`file:`) has neither: it looks, then writes. It is not offered.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, TypeAlias
from urllib.parse import urlsplit

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import SparkContext

from headrace.errors import ConfigurationError

JavaObject: TypeAlias = Any
"""An object inside the JVM. Py4J has no types."""

HADOOP_SCHEMES: Mapping[str, str] = MappingProxyType({"hdfs": "hdfs", "viewfs": "viewfs", "gs": "gs", "gcs": "gs"})
"""URI schemes on which `create_exclusively` keeps its promise, with the name that Hadoop has for each."""

MOVED_INTO_PLACE = ("hdfs", "viewfs")
"""Hadoop's names of those where a file is written aside first."""

_PRIVATE_DIRECTORY = 0o700
_PRIVATE_FILE = 0o600
_TAKEN = ("org.apache.hadoop.fs.FileAlreadyExistsException", "java.nio.file.FileAlreadyExistsException")
_DENIED = ("org.apache.hadoop.security.AccessControlException", "java.nio.file.AccessDeniedException")
_UNKNOWN_SCHEME = ("org.apache.hadoop.fs.UnsupportedFileSystemException", "java.lang.ClassNotFoundException")
# What Google's store answers at the close of an object whose name was taken meanwhile.
_PRECONDITION = ("412 Precondition Failed", "conditionNotMet")


def create_exclusively(uri: str, data: bytes) -> None:
    """Create `uri` with `data`, whole from the first moment it can be seen; `FileExistsError` if it is there.

    Of any number of callers on any machines exactly one succeeds. Called in the driver, on any thread, while its Spark
    application is up. After another `OSError` the file may be there or not. Missing directories are made private to
    the user, so a job's directory is closed to others whatever the store's umask says.
    """
    context, known = _context_for(uri)
    with _python_errors(uri):
        if known in MOVED_INTO_PLACE:
            _write_aside_and_move(context, _renamed(uri, known), data, overwrite=False)
        else:
            store, path = _opened(context, _renamed(uri, known))
            _write(store, path, data)


def replace_whole(uri: str, data: bytes) -> None:
    """Write `uri` whether it exists or not; readers see the old or the new bytes. For those `MOVED_INTO_PLACE`.

    There a plain write over a file empties it first, and somebody who looks then would take a live lease for none.
    """
    context, known = _context_for(uri)
    with _python_errors(uri):
        _write_aside_and_move(context, _renamed(uri, known), data, overwrite=True)


def _context_for(uri: str) -> tuple[SparkContext, str]:
    """The application to do it, and what Hadoop calls the scheme."""
    scheme = urlsplit(uri).scheme.lower()
    known = HADOOP_SCHEMES.get(scheme)
    if known is None:
        raise ConfigurationError(
            f"{uri}: no way to create a file of a {scheme}: URI only if it is not there is known through Hadoop. Use "
            f"{', '.join(f'{name}:' for name in HADOOP_SCHEMES)}, file: or s3:."
        )
    context = SparkContext._active_spark_context
    if context is None or context._jsc is None:
        raise ConfigurationError(
            f"{uri} can be written by the JVM of a Spark application only, and there is none in this process. Do this "
            "while a job or a Spark session of yours is up."
        )
    return context, known


def _renamed(uri: str, scheme: str) -> str:
    return scheme + uri[uri.index(":") :]


@contextlib.contextmanager
def _python_errors(uri: str) -> Iterator[None]:
    try:
        yield
    except Py4JJavaError as error:
        raise _as_python(error, uri) from error
    except Py4JError as error:
        raise OSError(f"the driver's JVM did not answer: {error}") from error


def _opened(context: SparkContext, uri: str) -> tuple[JavaObject, JavaObject]:
    """The file system and the path; the directory it lies in is there afterwards."""
    fs: JavaObject = context._jvm.org.apache.hadoop.fs
    path: JavaObject = fs.Path(uri)
    store: JavaObject = path.getFileSystem(context._jsc.hadoopConfiguration())
    if not store.exists(path.getParent()):
        store.mkdirs(path.getParent(), fs.permission.FsPermission(_PRIVATE_DIRECTORY))
    return store, path


def _write_aside_and_move(context: SparkContext, uri: str, data: bytes, *, overwrite: bool) -> None:
    fs: JavaObject = context._jvm.org.apache.hadoop.fs
    store, final = _opened(context, uri)
    if not overwrite and store.exists(final):
        # Cheaper than to write aside first. It is the move that decides.
        raise FileExistsError(f"{uri} exists")
    aside: JavaObject = fs.Path(final.getParent(), f".tmp-{uuid.uuid4().hex}")
    try:
        _write_durably(store, aside, data)
        store.setPermission(aside, fs.permission.FsPermission(_PRIVATE_FILE))
        options: JavaObject = context._gateway.new_array(fs.Options.Rename, int(overwrite))
        if overwrite:
            options[0] = fs.Options.Rename.OVERWRITE
        files: JavaObject = fs.FileContext.getFileContext(final.toUri(), context._jsc.hadoopConfiguration())
        files.rename(aside, final, options)
    except BaseException:
        # After an unknown outcome it may have been moved: then there is nothing of that name.
        with contextlib.suppress(Py4JError):
            store.delete(aside, False)
        raise


def _write(store: JavaObject, path: JavaObject, data: bytes) -> None:
    stream: JavaObject = store.create(path, False)
    # Closed only after a write that went well: to close an object is to publish it, with what it has.
    stream.write(data)
    stream.close()


def _write_durably(store: JavaObject, path: JavaObject, data: bytes) -> None:
    stream: JavaObject = store.create(path, False)
    try:
        stream.write(data)
        stream.hsync()
    finally:
        stream.close()


def _as_python(error: Py4JJavaError, uri: str) -> Exception:
    """What a store of ours would raise. Only the name of the Java class and its message tell."""
    java: JavaObject = error.java_exception
    name = str(java.getClass().getName())
    message = str(java.getMessage() or name).splitlines()[0]
    if name in _TAKEN or any(mark in message for mark in _PRECONDITION):
        return FileExistsError(f"{uri} exists: {message}")
    if name in _DENIED:
        return PermissionError(message)
    if name in _UNKNOWN_SCHEME or "ClassNotFoundException" in message:
        return ConfigurationError(
            f"Hadoop in the driver's JVM cannot open {uri}: {message}. Put the store's Hadoop connector on Spark's "
            "class path (spark.jars.packages)."
        )
    return OSError(f"{name}: {message}")
