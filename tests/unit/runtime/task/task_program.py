"""One task as a process of its own, without Spark: `task_program.py PORT MARK`. Its function never opens."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import Any

from headrace import MapFunction, StreamExecutionEnvironment
from headrace.runtime.task.deployment import LevelDeployment
from headrace.runtime.task.main import Task

SECRET = b"s" * 32


class NeverOpens(MapFunction):
    def __init__(self, mark: str) -> None:
        self._mark = mark

    def open(self, runtime_context: Any) -> None:
        Path(self._mark).touch()
        threading.Event().wait()

    def map(self, value: Any) -> Any:
        return value


def main(port: int, mark: str) -> None:
    env = StreamExecutionEnvironment.get_execution_environment()
    env.from_collection([1]).map(NeverOpens(mark)).print()
    plan, settings = env.build("alone")
    deployment = LevelDeployment(
        level=0,
        plan=plan,
        job_id=settings.job_id,
        attempt=1,
        host="127.0.0.1",
        port=port,
        secret=SECRET,
        checkpointing=settings.checkpointing,
        backend=settings.backend,
        home="alone",
        object_reuse=False,
        buffer_timeout_ms=5,
        job_parameters={},
        announce_positions=False,
    )
    for _ in Task(deployment, 0, iter(())).run():
        pass


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
