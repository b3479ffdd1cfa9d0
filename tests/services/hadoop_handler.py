"""A Hadoop file system as one of `pyarrow.fs`, through Spark's JVM.

`pyarrow.fs.HadoopFileSystem` does the same by libhdfs, which comes with Hadoop's own distribution only. With this the
storage code that is used on HDFS meets a real one where that library is not there; in the driver's process only.
"""

from __future__ import annotations

import io
from typing import Any

import pyarrow as pa
from pyarrow import fs

from headrace.checkpoint.storage.arrow import ArrowCheckpointStorage


class _Output(io.RawIOBase):
    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._stream.write(bytes(data))
        return len(data)

    def close(self) -> None:
        if not self.closed:
            self._stream.close()
        super().close()


class HadoopHandler(fs.FileSystemHandler):
    """What `pyarrow.fs.PyFileSystem` calls."""

    def __init__(self, context: Any, home: str) -> None:
        self._fs = context._jvm.org.apache.hadoop.fs
        self._home = home
        root = self._fs.Path(home)
        self._store = root.getFileSystem(context._jsc.hadoopConfiguration())

    def _path(self, path: str) -> Any:
        return self._fs.Path(f"{self._home}/{path.lstrip('/')}")

    def get_type_name(self) -> str:
        return "hdfs"

    def normalize_path(self, path: str) -> str:
        return path

    def get_file_info(self, paths: list[str]) -> list[fs.FileInfo]:
        return [self._info(path) for path in paths]

    def _info(self, path: str) -> fs.FileInfo:
        where = self._path(path)
        if not self._store.exists(where):
            return fs.FileInfo(path, fs.FileType.NotFound)
        return self._of(self._store.getFileStatus(where))

    def _of(self, status: Any) -> fs.FileInfo:
        path = str(status.getPath().toUri().getPath())
        if status.isDirectory():
            return fs.FileInfo(path, fs.FileType.Directory)
        return fs.FileInfo(path, fs.FileType.File, size=int(status.getLen()))

    def get_file_info_selector(self, selector: fs.FileSelector) -> list[fs.FileInfo]:
        base = self._path(selector.base_dir)
        if not self._store.exists(base):
            if selector.allow_not_found:
                return []
            raise FileNotFoundError(selector.base_dir)
        found: list[fs.FileInfo] = []
        for status in self._store.listStatus(base):
            info = self._of(status)
            found.append(info)
            if selector.recursive and info.type == fs.FileType.Directory:
                found += self.get_file_info_selector(fs.FileSelector(info.path, recursive=True))
        return found

    def create_dir(self, path: str, recursive: bool) -> None:
        self._store.mkdirs(self._path(path))

    def delete_dir(self, path: str) -> None:
        if not self._store.delete(self._path(path), True):
            raise FileNotFoundError(path)

    def delete_dir_contents(self, path: str, missing_dir_ok: bool = False) -> None:
        raise NotImplementedError

    def delete_root_dir_contents(self) -> None:
        raise NotImplementedError

    def delete_file(self, path: str) -> None:
        if not self._store.delete(self._path(path), False):
            raise FileNotFoundError(path)

    def move(self, src: str, dest: str) -> None:
        raise NotImplementedError("nothing is ever renamed")

    def copy_file(self, src: str, dest: str) -> None:
        raise NotImplementedError

    def open_input_stream(self, path: str) -> Any:
        return self.open_input_file(path)

    def open_input_file(self, path: str) -> Any:
        where = self._path(path)
        if not self._store.exists(where):
            raise FileNotFoundError(path)
        stream = self._store.open(where)
        try:
            return pa.BufferReader(bytes(stream.readAllBytes()))
        finally:
            stream.close()

    def open_output_stream(self, path: str, metadata: Any) -> Any:
        return pa.PythonFile(_Output(self._store.create(self._path(path), True)), mode="w")

    def open_append_stream(self, path: str, metadata: Any) -> Any:
        raise NotImplementedError


class HdfsThroughTheJvm(ArrowCheckpointStorage):
    """The storage of `hdfs:` URIs, whose client is Spark's JVM of this process."""

    def __init__(self, uri: str, **settings: Any) -> None:
        super().__init__(uri, **settings)

    def _connect(self) -> tuple[Any, str]:
        from pyspark import SparkContext

        scheme, _, rest = self.uri.partition("://")
        host, _, path = rest.partition("/")
        handler = HadoopHandler(SparkContext._active_spark_context, f"{scheme}://{host}")
        return fs.PyFileSystem(handler), f"/{path}"
