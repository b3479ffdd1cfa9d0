"""Settings by key, under the name of `pyflink.common.configuration`."""

from __future__ import annotations

from headrace.datastream.ignored import ignored
from headrace.options import Configuration, all_options

__all__ = [
    "Configuration",
]

_SPARK = "Spark runs the tasks: its own settings decide about memory, processes and the network."
_OF_FLINK = {
    "akka.": _SPARK,
    "blob.": _SPARK,
    "classloader.": "there is no Java to load.",
    "client.": _SPARK,
    "cluster.": _SPARK,
    "env.": _SPARK,
    "execution.": "nothing here corresponds to it.",
    "fs.": "storage is chosen by its URI and configured by its own environment.",
    "heartbeat.": _SPARK,
    "high-availability": "the driver's own restart goes on from the newest checkpoint.",
    "historyserver.": "see `headrace list` and Spark's history server.",
    "io.tmp.dirs": "Spark's local directories are used.",
    "job.": "nothing here corresponds to it.",
    "jobmanager.": _SPARK,
    "jobstore.": _SPARK,
    "kubernetes.": _SPARK,
    "metrics.": "metrics are in the status of the job.",
    "parallelism.": "set the parallelism of the job, or of an operator.",
    "pekko.": _SPARK,
    "pipeline.": "nothing here corresponds to it.",
    "process.": _SPARK,
    "python.": "operators are Python already, in the interpreter of Spark's workers.",
    "queryable-state.": "state is read from checkpoints: see headrace.state_reader.",
    "resourcemanager.": _SPARK,
    "rest.": _SPARK,
    "restart-strategy": "nothing here corresponds to it.",
    "s3.": "storage is chosen by its URI and configured by its own environment.",
    "security.": _SPARK,
    "slot": _SPARK,
    "sql-client.": "tables are Spark's.",
    "state.": "nothing here corresponds to it.",
    "table.": "tables are Spark's.",
    "task.": _SPARK,
    "taskmanager.": _SPARK,
    "web.": _SPARK,
    "yarn.": _SPARK,
    "zookeeper.": _SPARK,
}
"""How keys of Flink begin, and why those of them that are no option here do nothing."""


def tell_ignored_keys(configuration: Configuration) -> None:
    """Say once for each key of Flink's that has no effect. Keys of the program's own are its own affair."""
    known = {key for option in all_options() for key in (option.key, *option.former)}
    for key in configuration.key_set():
        if key in known:
            continue
        reason = next((reason for start, reason in _OF_FLINK.items() if key.startswith(start)), None)
        if reason is not None:
            ignored(f"Configuration key {key!r}", reason)
