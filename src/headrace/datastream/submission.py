"""The one door from a built plan to the runtime. Only here is the runtime imported, so that a plan needs no Spark."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from headrace.datastream.overrides import current_overrides
from headrace.plan.graph import JobPlan
from headrace.plan.settings import JobSettings


def run(plan: JobPlan, settings: JobSettings, spark: Any | None) -> Any:
    """Run the job to its end and give its result; or hand it to whoever intercepts execution."""
    intercept = current_overrides().on_execute
    return intercept(plan, settings) if intercept else _runner().execute_job(plan, settings, spark)


def start(plan: JobPlan, settings: JobSettings, spark: Any | None) -> Any:
    """Start the job and give its client; or hand it to whoever intercepts execution."""
    intercept = current_overrides().on_execute
    return intercept(plan, settings) if intercept else _runner().start_job(plan, settings, spark)


def start_collecting(plan: JobPlan, settings: JobSettings, spark: Any | None) -> Any | None:
    """The same for `execute_and_collect`; None if execution was intercepted, as there are no results then."""
    client = start(plan, settings, spark)
    return None if current_overrides().on_execute else client


def _runner() -> Any:
    return import_module("headrace.runtime.job.runner")
