"""What readers leave out is counted where a user can look, and the log neither overflows nor falls silent."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from headrace import StreamExecutionEnvironment, Types, WatermarkStrategy
from headrace.connectors.files import FileSource
from headrace.connectors.metrics import LOGGED_ONE_BY_ONE, OwnMetrics, Tally
from headrace.runtime.task.metrics import readings
from headrace.testing import JobHarness

NUMBER = Types.ROW_NAMED(["n"], [Types.LONG()])


def test_skipped_records_of_all_subtasks_are_in_the_metrics_of_the_job(tmp_path: Path) -> None:
    for name, lines in (("a", ['{"n": 1}', "oops", "oops"]), ("b", ["oops", '{"n": 2}'])):
        (tmp_path / name).write_text("\n".join(lines))
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(2)
    source = FileSource.json_lines(tmp_path, type_info=NUMBER, on_error="skip")
    stream = env.from_source(source, WatermarkStrategy.no_watermarks(), "numbers").uid("numbers")
    with JobHarness(stream) as job:
        assert sorted(tuple(value) for value in job.run_to_end()) == [(1,), (2,)]
        # What each task reports for the status, where the driver adds it up.
        reported = [readings([operator]) for operator in job.operators("numbers")]
        assert sum(metrics["numbers.recordsSkipped"] for metrics in reported) == 3
        assert all(metrics["numbers.filesSkipped"] == 0 for metrics in reported)


def test_after_the_first_ones_a_sum_is_logged_once_a_minute_and_at_the_end(caplog: pytest.LogCaptureFixture) -> None:
    now, metrics = [1_000.0], OwnMetrics()
    log = logging.getLogger("test.tally")
    tally = Tally("Record skipped", metrics.counter("recordsSkipped"), log, lambda: now[0])
    with caplog.at_level(logging.WARNING):
        for n in range(500):
            tally.add(f"number {n}")
        assert len(caplog.messages) == LOGGED_ONE_BY_ONE
        assert caplog.messages[-1] == "Record skipped: number 19"
        now[0] += 61
        tally.add("number 500")
        assert caplog.messages[-1] == "Record skipped: 481 more, 501 in all. The last one: number 500"
        for n in range(501, 600):
            tally.add(f"number {n}")
        assert len(caplog.messages) == LOGGED_ONE_BY_ONE + 1
        tally.tell()
        tally.tell()
        assert caplog.messages[LOGGED_ONE_BY_ONE + 1 :] == [
            "Record skipped: 99 more, 600 in all. The last one: number 599"
        ]
    assert metrics.counts == {"recordsSkipped": 600}


def test_many_bad_lines_in_many_files_are_summed_up_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name in "abc":
        (tmp_path / name).write_text("oops\n" * 50)
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(1)
    source = FileSource.json_lines(tmp_path, type_info=NUMBER, on_error="skip")
    stream = env.from_source(source, WatermarkStrategy.no_watermarks(), "numbers").uid("numbers")
    with caplog.at_level(logging.WARNING), JobHarness(stream) as job:
        assert job.run_to_end() == []
    skipped = [message for message in caplog.messages if message.startswith("Record skipped")]
    assert sum("130 more, 150 in all" in message for message in skipped) == 1
