"""Help for testing jobs and connectors of your own: crashes as part of the input, sources driven by hand.

source = TestSource([1, 2, CHECKPOINT, 3, CRASH, 4])
outcome = run_until_done(running_sum(env.from_source(source, WatermarkStrategy.no_watermarks(), "numbers")))
assert outcome.committed == [1, 3, 6, 10]
assert outcome.restarts == 1
"""

from headrace.testing.outcome import RunOutcome, run_until_done
from headrace.testing.scripted import CHECKPOINT, CRASH, TestSource, WaitUntil

__all__ = ["CHECKPOINT", "CRASH", "RunOutcome", "TestSource", "WaitUntil", "run_until_done"]
