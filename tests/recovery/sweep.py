"""Every failpoint once, each at a moment of its own: the plan of the crash sweeps."""

from __future__ import annotations

import re

IN_TASKS = (
    "record=kill@5#1.0",
    "barrier_aligned=kill@2#1.1",
    "sink_prepared=exit@3#1.0",
    "barrier_injected=kill@2#0.1",
    "after_snapshot_local=kill@3#1.1",
    "after_upload=exit@2#1.0",
    "before_ack=kill@3#0.0",
    "before_sink_commit=kill@1#1.0",
    "sink_committed=kill@2#1.1.0",
    "restore_file=exit@1#1.0",
    "task_open=kill@1#0.1",
)
IN_THE_DRIVER = (
    "after_all_acks=raise@2",
    "before_publish=raise@4",
    "after_publish=raise@6",
    "gc_marked=raise@3",
    "gc_deleted=raise@5",
)
OF_SAVEPOINTS = {"savepoint_written", "savepoint_published"}
"""Hit only where somebody asks for one; `test_savepoints.py` has their crashes."""
OF_DATAFRAMES = {"spool_stored", "spool_published", "before_hand_over", "output_handed_over"}
"""Hit only where Spark feeds a job or takes its output; `test_dataframe_jobs.py` and `test_dataframe_processes.py`."""
OF_KAFKA = {"sink_recovery"}
"""Hit only in the recovery of a Kafka sink; `connectors/kafka/test_paused_processes.py` pauses processes at each."""


def doing(action: str, faults: tuple[str, ...]) -> list[str]:
    """The same moments with another action."""
    return [re.sub(r"=\w+", f"={action}", fault) for fault in faults]


def swapped(faults: tuple[str, ...]) -> list[str]:
    """The same moments, where a process exits it is killed now, and the other way round."""
    return [doing("exit" if "=kill" in fault else "kill", (fault,))[0] for fault in faults]
