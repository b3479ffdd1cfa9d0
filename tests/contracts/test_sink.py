"""The sinks that come with Headrace, and an example of each template, keep the contract of sinks."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from example_sinks import (
    SqliteLogSink,
    SqliteUpsertSink,
    Table,
    TableSink,
    TableTransaction,
    TwoStepLogSink,
    numbers_in,
)

from headrace.connectors.files import BucketAssigner, Encoder, FileSink, RollingPolicy
from headrace.connectors.files.staging import FileTransaction
from headrace.connectors.write_ahead import Marker
from headrace.testing.sink_contract import Crash, NewSink, SinkContract, SinkJob, SinkUnderTest, check_sink
from headrace.types.information import Types

NUMBER = Types.ROW_NAMED(["n"], [Types.LONG()])


def two_phase_table(folder: Path) -> SinkUnderTest:
    store = Table()
    return SinkUnderTest(
        TableSink(store),
        visible=lambda: list(store.rows),
        leftovers=lambda: [*store.open, *store.prepared],
        lose=store.prepared.clear,
        travels=False,
    )


def write_ahead_log(folder: Path) -> SinkUnderTest:
    sink = SqliteLogSink(folder / "numbers.db")
    return SinkUnderTest(sink, visible=sink.numbers)


def write_ahead_log_with_a_marker_apart(folder: Path) -> SinkUnderTest:
    sink = TwoStepLogSink(folder / "numbers.db")
    return SinkUnderTest(sink, visible=sink.numbers)


def idempotent_table(folder: Path) -> SinkUnderTest:
    path = folder / "numbers.db"
    return SinkUnderTest(SqliteUpsertSink(path), visible=lambda: numbers_in(path))


def visible_files(folder: Path) -> list[Path]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return sorted(path for path in files if ".staging" not in path.parts)


def staged_files(folder: Path) -> list[str]:
    staging = folder / ".staging"
    files = (path for path in staging.rglob("*") if path.is_file()) if staging.exists() else ()
    return sorted(path.name for path in files if path.suffix not in (".committed", ".owner"))


def files(
    sink: FileSink,
    folder: Path,
    read: Callable[[Path], list[int]],
    to_record: Callable[[int], Any] = lambda n: n,
) -> SinkUnderTest:
    return SinkUnderTest(
        sink,
        visible=lambda: [n for path in visible_files(folder) for n in read(path)],
        to_record=to_record,
        leftovers=lambda: staged_files(folder),
        lose=lambda: lose_staged(folder),
    )


def lose_staged(folder: Path) -> None:
    for path in (folder / ".staging").rglob("*"):
        if path.name in staged_files(folder):
            path.unlink()


def lines_of(path: Path) -> list[int]:
    return [int(line) for line in path.read_text().splitlines()]


def text_files(folder: Path) -> SinkUnderTest:
    return files(FileSink.for_row_format(folder, Encoder.simple_string_encoder()), folder, lines_of)


def small_files(folder: Path) -> SinkUnderTest:
    policy = RollingPolicy.default_rolling_policy(part_size=1)
    return files(FileSink.text(folder).with_rolling_policy(policy).build(), folder, lines_of)


class Evenness(BucketAssigner):
    def bucket_of(self, value: Any, timestamp: int | None) -> str:
        return "even" if value % 2 == 0 else "odd/deep"


def bucketed_files(folder: Path) -> SinkUnderTest:
    return files(FileSink.text(folder).with_bucket_assigner(Evenness()), folder, lines_of)


def json_files(folder: Path) -> SinkUnderTest:
    def read(path: Path) -> list[int]:
        return [json.loads(line)["n"] for line in path.read_text().splitlines()]

    return files(FileSink.json_lines(folder), folder, read, lambda n: {"n": n})


def parquet_files(folder: Path) -> SinkUnderTest:
    def read(path: Path) -> list[int]:
        return [int(n) for n in pq.read_table(path)["n"].to_pylist()]

    return files(FileSink.parquet(folder, NUMBER), folder, read, lambda n: (n,))


KINDS = [
    *(two_phase_table, write_ahead_log, write_ahead_log_with_a_marker_apart, idempotent_table),
    *(text_files, small_files, bucketed_files, json_files, parquet_files),
]


class TestSinks(SinkContract):
    """Each kind of sink against the whole contract."""

    @pytest.fixture(params=KINDS, ids=lambda kind: kind.__name__)
    def new_sink(self, request: pytest.FixtureRequest, tmp_path: Path) -> NewSink:
        return in_folders(request.param, tmp_path)


def in_folders(kind: Callable[[Path], SinkUnderTest], parent: Path) -> NewSink:
    """Sinks of one kind, each in a folder of its own."""
    numbers = itertools.count()

    def make() -> SinkUnderTest:
        folder = parent / str(next(numbers))
        folder.mkdir()
        return kind(folder)

    return make


# The oracle must be able to fail.


class HastySink(FileSink):
    """Shows its files at the barrier, before the checkpoint is complete."""

    def pre_commit(self, txn: FileTransaction) -> None:
        super().pre_commit(txn)
        self.commit(txn)


class ForgetfulTableSink(TableSink):
    """Shows a transaction again when it is committed again."""

    def commit(self, txn: TableTransaction) -> None:
        self.table.rows += self.table.prepared[txn.name]


class BoastfulLogSink(TwoStepLogSink):
    """Says exactly-once, but its process may die between values and marker; here it does so once."""

    guarantee = SqliteLogSink.guarantee

    def send(self, values: Any, marker: Marker) -> None:
        died = self.path.with_suffix(".died")
        if not died.exists():
            died.touch()
            with self.db:
                self.db.executemany("INSERT INTO numbers VALUES (?)", [[value] for value in values])
            raise ConnectionError("the process died here")
        super().send(values, marker)


class LosingLogSink(SqliteLogSink):
    """Takes the number of a checkpoint for its name, so a job that begins anew finds its output sent already."""

    def send(self, values: Any, marker: Marker) -> None:
        super().send(values, without_token(marker))

    def is_committed(self, marker: Marker) -> bool:
        return super().is_committed(without_token(marker))


def without_token(marker: Marker) -> Marker:
    return Marker(marker.job_id, marker.uid, marker.shard, marker.checkpoint_id, 0, "")


def broken_promise_of(kind: Callable[[Path], SinkUnderTest], parent: Path) -> str:
    with pytest.raises(AssertionError) as broken:
        check_sink(in_folders(kind, parent))
    return str(broken.value)


def test_the_suite_notices_a_sink_that_shows_files_before_their_commit(tmp_path: Path) -> None:
    def hasty(folder: Path) -> SinkUnderTest:
        return files(HastySink(folder, Encoder.simple_string_encoder()), folder, lines_of)

    assert "seen before any checkpoint held it" in broken_promise_of(hasty, tmp_path)


def test_the_suite_notices_a_sink_that_commits_twice(tmp_path: Path) -> None:
    def forgetful(folder: Path) -> SinkUnderTest:
        store = Table()
        return SinkUnderTest(ForgetfulTableSink(store), lambda: list(store.rows), travels=False)

    assert "seen twice" in broken_promise_of(forgetful, tmp_path)


def test_the_suite_notices_a_marker_that_a_new_run_of_the_job_repeats(tmp_path: Path) -> None:
    def losing(folder: Path) -> SinkUnderTest:
        sink = LosingLogSink(folder / "numbers.db")
        return SinkUnderTest(sink, visible=sink.numbers)

    assert "committed, but not seen" in broken_promise_of(losing, tmp_path)


def test_the_suite_notices_values_and_marker_that_are_not_one_transaction(tmp_path: Path) -> None:
    sink = BoastfulLogSink(tmp_path / "numbers.db")
    job = SinkJob(SinkUnderTest(sink, visible=sink.numbers))

    with pytest.raises(ConnectionError):
        job.run()
    with pytest.raises(AssertionError, match="seen twice"):
        job.run()


def test_a_marker_apart_from_its_values_is_at_least_once_and_never_less(tmp_path: Path) -> None:
    sink = TwoStepLogSink(tmp_path / "numbers.db")
    job = SinkJob(SinkUnderTest(sink, visible=sink.numbers))

    job.dies(Crash.AFTER_PUBLISH, 2)
    job.run()

    assert set(sink.numbers()) == set(range(24))


def test_the_suite_can_be_called_without_pytest(tmp_path: Path) -> None:
    check_sink(in_folders(write_ahead_log, tmp_path))
