"""Help for testing jobs and connectors of your own: operators and sources driven by hand, crashes as part of the input.

source = TestSource([1, 2, CHECKPOINT, 3, CRASH, 4])
outcome = run_until_done(running_sum(env.from_source(source, WatermarkStrategy.no_watermarks(), "numbers")))
assert outcome.committed == [1, 3, 6, 10]
assert outcome.restarts == 1
"""

from headrace.testing.clock import ManualClock
from headrace.testing.harness import HarnessSnapshot, OperatorHarness
from headrace.testing.job_harness import JobHarness, JobSnapshot
from headrace.testing.manual_source import ManualSource
from headrace.testing.outcome import RunOutcome, run_until_done
from headrace.testing.scripted import CHECKPOINT, CRASH, TestSource, WaitUntil
from headrace.testing.storage_contract import CheckpointStorageContract

__all__ = [
    "CHECKPOINT",
    "CRASH",
    "CheckpointStorageContract",
    "HarnessSnapshot",
    "JobHarness",
    "JobSnapshot",
    "ManualClock",
    "ManualSource",
    "OperatorHarness",
    "RunOutcome",
    "TestSource",
    "WaitUntil",
    "run_until_done",
]
