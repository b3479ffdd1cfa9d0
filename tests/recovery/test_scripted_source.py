"""`headrace.testing`: the scripted source by hand, and the example of its documentation on Spark."""

from __future__ import annotations

import multiprocessing
import pickle
import signal
from typing import Any

import pytest

from headrace import WatermarkStrategy
from headrace.testing import CHECKPOINT, CRASH, TestSource, WaitUntil, run_until_done
from headrace.testing.source_driver import SourceDriver


def test_values_come_in_order_and_markers_are_no_records() -> None:
    driver = SourceDriver(TestSource([1, WaitUntil(lambda: True), 2, 3]), parallelism=2)
    driver.run()
    assert driver.values == [1, 2, 3]
    assert driver.ended


def test_a_condition_holds_the_next_value_back_until_it_is_true() -> None:
    open_doors: list[str] = []
    driver = SourceDriver(TestSource([1, WaitUntil(lambda: bool(open_doors)), 2]))
    driver.run()
    assert driver.values == [1]
    open_doors.append("front")
    driver.run()
    assert driver.values == [1, 2]


def test_a_checkpoint_marker_waits_for_one_that_holds_all_before_it() -> None:
    driver = SourceDriver(TestSource([1, 2, CHECKPOINT, 3]))
    (reader,) = driver.readers
    driver.run(records=1, limit=1)
    driver.snapshot()
    driver.run()
    assert driver.values == [1, 2]
    reader.checkpoint_complete(1)
    driver.run()
    assert driver.values == [1, 2], "checkpoint 1 was taken before 2 was read"
    snapshot = driver.snapshot()
    reader.checkpoint_complete(2)
    driver.run()
    assert driver.values == [1, 2, 3]
    assert SourceDriver(driver.source, restored=snapshot).run() == []


def test_a_position_counts_values_only_and_a_copy_in_a_task_leaves_the_crash_log_alone() -> None:
    source = TestSource(["a", CHECKPOINT, "b"])
    driver = SourceDriver(source)
    driver.run()
    (split,) = driver.readers[0].snapshot()
    assert split.position == 1
    copy = pickle.loads(pickle.dumps(source))
    del copy
    assert source.crashes == 0


def read_all(source: TestSource) -> None:
    SourceDriver(source).run()


def test_a_crash_kills_the_process_that_reads_once_and_never_again() -> None:
    source = TestSource([1, CRASH, 2])
    lives = [multiprocessing.get_context("fork").Process(target=read_all, args=(source,)) for _ in range(2)]
    for life in lives:
        life.start()
        life.join(30)
    assert [life.exitcode for life in lives] == [-signal.SIGKILL, 0]
    assert source.crashes == 1


@pytest.mark.spark
@pytest.mark.timeout(120)
def test_the_documented_example_counts_on_after_its_crash(bench: Any) -> None:
    env = bench.env(parallelism=1, interval=50)
    source = TestSource([1, 2, CHECKPOINT, 3, CRASH, 4])
    numbers = env.from_source(source, WatermarkStrategy.no_watermarks(), "numbers")
    sums = numbers.key_by(lambda n: "all").map_with_state(lambda n, s: ((s or 0) + n, (s or 0) + n), state_type=int)
    outcome = run_until_done(sums, "running sum", restarts=1)
    assert outcome.committed == [1, 3, 6, 10]
    assert source.crashes == 1
