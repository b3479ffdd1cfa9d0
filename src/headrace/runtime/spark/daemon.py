"""Forks the Python workers of a job, with everything a task imports already imported.

Spark starts this module on each executor (`spark.python.daemon.module`) in place of `pyspark.daemon`. A worker of the
stock daemon imports pyspark.worker, numpy and pyarrow after its fork, and from zip files: over half a second of CPU for
each task, all tasks at once. Here they are in memory before the fork.

A fork copies only the thread that calls it: no other may run here, or a lock it holds stays locked in every worker.
OpenBLAS and jemalloc start threads when they are loaded, so both are told not to before anything is imported.
"""

from __future__ import annotations

import gc
import importlib
import os
import socket
import sys
import threading
from importlib.machinery import PathFinder
from zipimport import zipimporter

PRELOADED = (
    "numpy",
    "pyarrow",
    "pyarrow.compute",
    "pyarrow.ipc",
    "msgspec",
    "rocksdict",
    "pandas",
    "pyspark.worker",
    "pyspark.sql.pandas.types",
    "headrace.runtime.spark.submit",
    "headrace.runtime.task.main",
)
"""What a task imports. Each is loaded if it can be: a worker that lacks one says so when it needs it."""


def prepare() -> None:
    """Set up this process for forking. Called once, before the first worker."""
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    os.environ["JE_ARROW_MALLOC_CONF"] = "background_thread:false"
    # The session's buffer size (128, so that the JVM flushes every batch) is handed to workers as well. For them it
    # would mean a system call for every 128 bytes; they flush after every batch by themselves.
    os.environ["SPARK_BUFFER_SIZE"] = "65536"
    # Spark puts its own zipped pyspark and a jar first. Every worker reads their directories anew at its start, a tenth
    # of a second of CPU; the installed pyspark, where there is one, serves as well.
    unzipped = [entry for entry in sys.path if not entry.endswith((".zip", ".jar"))]
    if all(PathFinder.find_spec(name, unzipped) for name in ("pyspark", "py4j")):
        sys.path[:] = unzipped
        for entry, finder in list(sys.path_importer_cache.items()):
            if isinstance(finder, zipimporter):
                del sys.path_importer_cache[entry]
    for name in PRELOADED:
        try:
            importlib.import_module(name)
        except ImportError as error:
            if error.name is None or not name.startswith(error.name):
                # It is there but cannot be loaded: the reason would be lost in the worker that trips over it.
                print(f"headrace: cannot preload {name}: {error}", file=sys.stderr)
    if threading.active_count() > 1:
        names = ", ".join(sorted(thread.name for thread in threading.enumerate()))
        raise RuntimeError(
            f"Importing {', '.join(PRELOADED)} started threads ({names}): workers cannot be forked safely."
        )
    # What is loaded now lives as long as the process: the collector need not visit it in any worker, which would
    # also copy the pages it shares with this one.
    gc.collect()
    gc.freeze()


def main() -> None:
    """Run Spark's own daemon in the prepared process, until Spark closes its standard input."""
    prepare()
    from pyspark import daemon

    run_worker = daemon.worker

    def worker(sock: socket.socket, authenticated: bool) -> int:
        try:
            return int(run_worker(sock, authenticated))
        except (BrokenPipeError, ConnectionResetError):
            # Spark has cancelled the task and closed its end: nobody is left to be told, and a stack trace on the
            # user's terminal would tell of nothing that went wrong.
            return 1

    daemon.worker = worker
    daemon.manager()


if __name__ == "__main__":
    main()
