"""Which checkpoint storages need Spark's JVM before the first file of a job can be created in them."""

from __future__ import annotations

from headrace.checkpoint.storage.arrow import ArrowCheckpointStorage, exclusive_create_for, register_exclusive_create
from headrace.checkpoint.storage.base import CheckpointStorage
from headrace.runtime.spark.hadoop_files import HADOOP_SCHEMES, MOVED_INTO_PLACE, create_exclusively, replace_whole


def offer_exclusive_create() -> None:
    """Let the driver create files by Hadoop in Spark's JVM, where nobody registered another way. Harmless twice.

    Called whenever a job has its Spark application. The way works as long as any application is up in this process.
    """
    for scheme, hadoop_name in HADOOP_SCHEMES.items():
        if exclusive_create_for(scheme) is None:
            replace = replace_whole if hadoop_name in MOVED_INTO_PLACE else None
            register_exclusive_create(scheme, create_exclusively, replace=replace)


def goes_by_the_jvm(storage: CheckpointStorage) -> bool:
    """Whether the storage creates files exclusively by Spark's JVM, so that nothing is asked of it before a session."""
    return (
        isinstance(storage, ArrowCheckpointStorage)
        and storage.scheme in HADOOP_SCHEMES
        and exclusive_create_for(storage.scheme) in (None, create_exclusively)
    )
