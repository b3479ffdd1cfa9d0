"""The Spark settings a job needs, each with its reason.

Spark's defaults are made for batches: with them a checkpoint under load takes seconds and a hop 50 ms. The numbers
behind the values are in docs/design/engine-notes.md. Three groups:

* `STATIC_SETTINGS` belong to the Spark application and are fixed when it starts. `spark_conf()` gives them, and a
  session that a user brings is checked against them.
* `SESSION_SETTINGS` go into a private `newSession()`, so that the user's other queries keep their own.
* `LOCAL_SETTINGS` are for the application Headrace itself starts, and a matter of taste to everyone else.
"""

from __future__ import annotations

from collections.abc import Mapping

from headrace.errors import ConfigurationError
from headrace.plan.buffers import LARGEST_BUFFER, READER_BYTES, WRITER_BYTES, network_buffer_size, writer_bytes
from headrace.runtime.spark.errors import SettingMismatch

WORKING_VERSIONS = "4.3"
"""PySpark versions whose pipelined shuffle is known to work here."""

DAEMON_MODULE = "headrace.runtime.spark.daemon"

NETWORK_BUFFER_SIZE = "spark.shuffle.streaming.networkBufferSize"
WRITER_MAX_MEMORY = "spark.shuffle.streaming.writerMaxMemory"
READER_MAX_MEMORY = "spark.shuffle.streaming.readerMaxMemory"

STATIC_SETTINGS: dict[str, str] = {
    # A writer thread of its own towards Python: output is read while input waits. Without it a task that has
    # nothing to read cannot emit either.
    "spark.python.udf.pipelined.enabled": "true",
    # TCP's receive buffers grow to megabytes by themselves and hold seconds of data under back-pressure.
    "spark.python.unix.domain.socket.enabled": "true",
    # Spark's reader thread may outlive a failed task and read the next task's input. Tasks are long-lived: the
    # fork costs nothing.
    "spark.python.worker.reuse": "false",
    # Forks workers that have everything imported already: a restart takes a fraction of a second, not three.
    "spark.python.daemon.module": DAEMON_MODULE,
    # The daemon above is the only one that knows; without any daemon each task would start a bare interpreter.
    "spark.python.use.daemon": "true",
    # An idle stream is no hung worker.
    "spark.python.worker.killOnIdleTimeout": "false",
    # How long a cancelled task's Python worker may go on, and keep its slot, before it is killed. Nothing that it
    # could still do counts for the next attempt, which waits for the slot.
    "spark.python.task.killTimeout": "100ms",
    # Bytes in flight between two tasks. A barrier has to pass them all: 32 MB each by default.
    WRITER_MAX_MEMORY: str(WRITER_BYTES),
    READER_MAX_MEMORY: str(READER_BYTES),
    # The latency of a hop: a buffer that is not full leaves after this long. 50 by default.
    "spark.shuffle.streaming.networkBufferMaxWaitTimeMs": "2",
    # At least the usual cell. See `plan/buffers.py`.
    NETWORK_BUFFER_SIZE: str(LARGEST_BUFFER),
    # All tasks of a job start at once or not at all: a half-started one would wait for the rest for ever.
    "spark.scheduler.pipelinedGroup.slotCheck.enabled": "true",
    # A second copy of a task would write a second copy of its state.
    "spark.speculation": "false",
    # Executors that come and go change the slots under a job that holds them for its whole life.
    "spark.dynamicAllocation.enabled": "false",
    # Slots are counted as cores.
    "spark.task.cpus": "1",
}

SESSION_SETTINGS: dict[str, str] = {
    # A cell is a row is a batch: nothing waits for a fuller one.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "1",
    # Flush after every batch: below the smallest Arrow batch (280 bytes), yet not so small that every read is tiny.
    "spark.sql.execution.pandas.udf.buffer.size": "128",
    # Exchanges must stay `ShuffleExchangeExec`, one stage for each level, in one job.
    "spark.sql.adaptive.enabled": "false",
    # The binary column of a cell is never larger than 2 GiB.
    "spark.sql.execution.arrow.useLargeVarTypes": "false",
    # Cells are encoded already; what leaves a worker goes no further than the JVM beside it.
    "spark.sql.execution.arrow.compression.codec": "none",
}

LOCAL_SETTINGS: dict[str, str] = {
    # One web server and port less; Headrace reports about its job itself.
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # One process, one machine: no listener off loopback.
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}

LOCAL_JVM_OPTIONS = (
    # The JVM beside the workers only copies cells. The optimising compiler and a concurrent collector would take the
    # cores that the workers need: without them a job started sooner and ran 1.5 times as fast on two cores.
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
)

_SPARK_DEFAULTS: dict[str, str] = {
    # Where a setting that is absent is as good as set.
    "spark.python.use.daemon": "true",
    "spark.python.worker.killOnIdleTimeout": "false",
    "spark.scheduler.pipelinedGroup.slotCheck.enabled": "true",
    "spark.speculation": "false",
    "spark.dynamicAllocation.enabled": "false",
    "spark.task.cpus": "1",
}

_UPPER_BOUNDS = frozenset(
    {
        # Less is as safe: several jobs of different width may share one application.
        NETWORK_BUFFER_SIZE,
        WRITER_MAX_MEMORY,
        READER_MAX_MEMORY,
        "spark.shuffle.streaming.networkBufferMaxWaitTimeMs",
    }
)

_NOT_REQUIRED = frozenset(
    {
        # Only makes restarts quicker.
        "spark.python.task.killTimeout",
    }
)


def spark_conf(total_slots: int, largest_level_slots: int) -> dict[str, str]:
    """All static settings for a job, to be given to Spark before it starts.

    `total_slots` is the sum over all levels, `largest_level_slots` the widest of them; `headrace explain` prints both.
    """
    if not 1 <= largest_level_slots <= total_slots:
        raise ConfigurationError(
            f"largest_level_slots is {largest_level_slots} and total_slots is {total_slots}: wanted at least 1, "
            "and no level wider than the job."
        )
    return {
        **STATIC_SETTINGS,
        NETWORK_BUFFER_SIZE: str(network_buffer_size(largest_level_slots)),
        WRITER_MAX_MEMORY: str(writer_bytes(largest_level_slots)),
    }


def wrong_settings(found: Mapping[str, str], wanted: Mapping[str, str]) -> list[SettingMismatch]:
    """Compare an application's settings with those a job wants; each one that cannot work, in the order of `wanted`.

    Absent is right where Spark's default is. Sizes and waits are upper bounds.
    """
    wrong = []
    for name, value in wanted.items():
        if name in _NOT_REQUIRED:
            continue
        actual = found.get(name)
        effective = _SPARK_DEFAULTS.get(name) if actual is None else actual.strip()
        if effective is None or not _fits(name, effective, value):
            wrong.append(SettingMismatch(name, actual, value))
    return wrong


def _fits(name: str, actual: str, wanted: str) -> bool:
    if name in _UPPER_BOUNDS and actual.isdecimal():
        return 0 < int(actual) <= int(wanted)
    return actual.lower() == wanted.lower()
