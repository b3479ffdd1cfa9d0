"""The Spark application of one job over its attempts: obtained once, and replaced if it is lost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headrace.errors import ConfigurationError, HeadraceError, SparkLostError, StorageError
from headrace.plan.graph import JobPlan
from headrace.plan.memory import need_of_job
from headrace.plan.settings import JobSettings
from headrace.runtime.job.exclusive_create import offer_exclusive_create
from headrace.runtime.job.reach import reach_of_executors
from headrace.runtime.spark.errors import SparkDiedError
from headrace.runtime.spark.preflight import preflight, require
from headrace.runtime.spark.session import obtain_session


class SparkApplication:
    """Made and used by the runner's thread. `stop` it when the job is over."""

    def __init__(self, plan: JobPlan, settings: JobSettings, existing: Any | None, *, holds_frames: bool) -> None:
        """Obtain the application. `existing`: the program's own session. `holds_frames`: the job reads DataFrames,
        which belong to the application they were made in."""
        self._plan = plan
        self._settings = settings
        self._holds_frames = holds_frames
        self.handle = obtain_session(existing, plan.needed_slots, plan.largest_level, settings.name, settings.master)
        self._equip()

    def check(self, advise: Callable[[str], None]) -> None:
        """Refuse the job for what `headrace doctor` says of Spark; `advise` gets what does not stop it."""
        try:
            need = need_of_job(self._plan, self._settings.backend)
            findings = preflight(self.handle, self._plan.needed_slots, need, len(self._plan.beside_queries[:1]))
            require(findings)
            require(reach_of_executors(self.handle, self._settings.checkpointing.storage))
        except Exception as error:
            raise self.cause_of(error) from error
        for finding in findings:
            if finding.is_advice:
                advise(str(finding))

    def loss(self) -> SparkDiedError | SparkLostError | None:
        """Why the application is gone; None while it is there. `SparkLostError` if it cannot be replaced."""
        reason = self.handle.loss()
        if reason is None:
            return None
        if self.handle.replaceable() and not self._holds_frames:
            return SparkDiedError(reason)
        return SparkLostError(
            f"{reason} Headrace cannot replace it: the SparkSession, or a DataFrame of it, is the program's own. "
            "Run the same command again: the job continues from its last checkpoint."
        )

    def cause_of(self, error: Exception) -> Exception:
        """The loss of the application if that is why this was raised, else the error itself."""
        own_reason = isinstance(error, HeadraceError) and not isinstance(error, ConfigurationError | StorageError)
        return error if own_reason else self.loss() or error

    def revive(self) -> None:
        """Replace the application if it is lost. Called before each attempt; raises why it cannot."""
        loss = self.loss()
        if isinstance(loss, SparkLostError):
            raise loss
        if loss is not None:
            self.handle = self.handle.replaced()
            self._equip()

    def stop(self) -> None:
        """Give it back."""
        self.handle.stop()

    def _equip(self) -> None:
        try:
            self.handle.ship(self._settings.python_files)
        except BaseException:
            self.handle.stop()
            raise
        offer_exclusive_create()
