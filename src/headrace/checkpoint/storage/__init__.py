"""Checkpoint storage by URI scheme: directories, coordinator memory, S3, HDFS, and what else `pyarrow.fs` knows."""

from headrace.checkpoint.storage.arrow import ArrowCheckpointStorage
from headrace.checkpoint.storage.base import register_storage
from headrace.checkpoint.storage.filesystem import FileSystemCheckpointStorage
from headrace.checkpoint.storage.hdfs import HDFS_SCHEMES, HdfsCheckpointStorage, offer_native_create
from headrace.checkpoint.storage.memory import JobManagerCheckpointStorage
from headrace.checkpoint.storage.s3 import S3CheckpointStorage

register_storage("file", FileSystemCheckpointStorage)
register_storage("memory", lambda uri: JobManagerCheckpointStorage())
for _scheme in ("s3", "s3a", "s3n"):
    register_storage(_scheme, S3CheckpointStorage)
for _scheme in HDFS_SCHEMES:
    register_storage(_scheme, HdfsCheckpointStorage)
for _scheme in ("gs", "gcs", "abfs", "abfss"):
    register_storage(_scheme, ArrowCheckpointStorage)
offer_native_create()
