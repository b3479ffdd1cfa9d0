"""The end of a job, which comes when a person asks for it, whatever the job's own thread is doing.

The thread goes from step to step: a call of storage, a sink's recovery, a restore. A step that does not end when the
job is to end is abandoned: the job is over for everybody else, and its thread ends when the step returns, before the
next one begins. No step by itself makes anything visible that a later attempt of the job, in whatever process, would
not find and finish, or fence off.
"""

from __future__ import annotations

import threading


class Abandoned(BaseException):
    """The job has ended without this thread, which has nothing more to do."""


class Ending:
    """Shared by the job's thread, which goes through steps, and by whoever has asked it to end."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._step = "starting"
        self._over = False
        self._stopping_spark = False

    def step(self, name: str) -> None:
        """The job's thread begins something that may take long. Raises `Abandoned` if it must not."""
        with self._changed:
            if self._over:
                raise Abandoned
            self._step = name

    def stops_spark(self) -> None:
        """All that is left is to stop Spark, which is waited for: the next job of this process needs it to be gone."""
        with self._changed:
            self._stopping_spark = True

    def ends_within(self, seconds: float) -> bool:
        """Wait for the end; False if it does not come in time."""
        with self._changed:
            return self._changed.wait_for(lambda: self._over, seconds)

    def end(self) -> bool:
        """The job's thread has come to its end; False if the job had ended without it."""
        with self._changed:
            if self._over:
                return False
            self._over = True
            self._changed.notify_all()
            return True

    def abandon(self, spark_limit_s: float) -> str | None:
        """End the job now: the step that its thread is at. None if it has ended.

        Where only Spark is left to be stopped, up to `spark_limit_s` more are waited.
        """
        with self._changed:
            if self._stopping_spark:
                self._changed.wait_for(lambda: self._over, spark_limit_s)
            if self._over:
                return None
            self._over = True
            self._changed.notify_all()
            return self._step
