"""Checkpoints on HDFS: by the package hdfs-native where it is installed, else by libhdfs and Spark's JVM.

With hdfs-native every process reads and writes for itself, the command line too. Without it tasks need libhdfs, which
comes with Hadoop's own distribution, and the driver creates its few files by the JVM of a running job.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headrace.checkpoint.storage import hdfs_files
from headrace.checkpoint.storage.arrow import ArrowCheckpointStorage, register_exclusive_create
from headrace.checkpoint.storage.paths import check_path
from headrace.checkpoint.storage.posix import TEMPORARY
from headrace.errors import ConfigurationError, MissingDependencyError

HDFS_SCHEMES = ("hdfs", "viewfs")


def offer_native_create() -> None:
    """Let hdfs-native create the driver's files, if it is installed. Called once, when storage is imported."""
    if hdfs_files.installed():
        for scheme in HDFS_SCHEMES:
            register_exclusive_create(scheme, hdfs_files.create_exclusively, replace=hdfs_files.replace_whole)


class HdfsCheckpointStorage(ArrowCheckpointStorage):
    """Checkpoints below `hdfs://namenode:8020/path`, `hdfs://nameservice/path` or `viewfs://cluster/path`."""

    def _connect(self) -> tuple[Any, str]:
        if hdfs_files.installed():
            home, path = hdfs_files.parted(self.uri)
            # Made here, so that a client that cannot be is told by a `ConfigurationError`, once and at once.
            hdfs_files.client_of(home)
            return hdfs_files.HdfsFiles(home), path
        try:
            return super()._connect()
        except ConfigurationError as error:
            raise MissingDependencyError(
                f"{self.uri} cannot be opened: hdfs-native is not installed here, and libhdfs did not do it "
                f'({_first_line(error.__cause__)}). Either pip install "headrace[hdfs]" wherever the job runs, or '
                "set HADOOP_HOME to a Hadoop that has libhdfs, and CLASSPATH to its jars."
            ) from error

    # Half-written files lie beside the others, whoever writes them.

    def list(self, prefix: str) -> list[str]:
        return [path for path in super().list(prefix) if not _is_aside(path)]

    def list_names(self, directory: str, start: str = "") -> Sequence[str]:
        return [name for name in super().list_names(directory, start) if not _is_aside(name)]

    def unfinished(self, prefix: str) -> Sequence[str]:
        return [path for path in super().list(f"{check_path(prefix)}/") if _is_aside(path)]


def _first_line(error: BaseException | None) -> str:
    """Of libhdfs, which goes on with every place where it looked."""
    return str(error).partition("\n")[0]


def _is_aside(path: str) -> bool:
    return path.rpartition("/")[2].startswith(TEMPORARY)
