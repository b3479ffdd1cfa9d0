"""Commits that lag: output is stored once and named again, the sink takes no more input, and the status says so."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from headrace.checkpoint.handles import SubtaskSnapshot
from headrace.checkpoint.metadata.model import subtask_files
from headrace.checkpoint.storage.filesystem import FileSystemCheckpointStorage
from headrace.connectors.sink import Committer, Sink, SinkGuarantee, SinkWriter, WriterContext
from headrace.operators import sink as sink_operator
from headrace.operators.base import BackgroundWork, Operator, OperatorContext, Outputs
from headrace.operators.collect import CollectOperator
from headrace.operators.sink import SinkOperator, payload_of
from headrace.runtime.job.status_text import lagging_sinks
from headrace.runtime.task.metrics import readings

ITEM = 50_000


class LogSink(Sink):
    """Every record becomes an item of that many bytes."""

    guarantee = SinkGuarantee.WRITE_AHEAD

    def __init__(self) -> None:
        self.committed: list[bytes] = []

    def create_writer(self, context: WriterContext) -> SinkWriter:
        return LogWriter()

    def create_committer(self) -> Committer:
        return LogCommitter(self.committed)


class LogWriter(SinkWriter):
    def __init__(self) -> None:
        self.items: list[bytes] = []

    def write(self, value: Any, timestamp: int | None) -> None:
        self.items.append(str(value).encode() + bytes(ITEM))

    def prepare_commit(self, checkpoint_id: int) -> Sequence[bytes]:
        items, self.items = self.items, []
        return items


class LogCommitter(Committer):
    def __init__(self, committed: list[bytes]) -> None:
        self.committed = committed

    def commit(self, items: Sequence[bytes]) -> None:
        self.committed += items


class Nowhere(Outputs):
    """Sinks emit nothing."""

    def emit(self, value: Any, timestamp: int | None) -> None:
        raise AssertionError("a sink has no output")


def opened(operator: Operator) -> Operator:
    context = OperatorContext(
        job_id="job",
        uid="out",
        name="out",
        declared_at="",
        subtask=0,
        parallelism=1,
        max_parallelism=128,
        attempt=1,
        job_parameters={},
        backend=None,
        now_ms=lambda: 0,
        notify=lambda message: None,
        wake=lambda: None,
        checkpointing=True,
        exactly_once_output=True,
    )
    operator.setup(context, Nowhere())
    operator.open()
    return operator


class Lagging:
    """Checkpoints of one sink subtask whose commits begin and do not end until `catch_up`."""

    def __init__(self, operator: Operator, root: Path) -> None:
        self.operator = opened(operator)
        self.storage = FileSystemCheckpointStorage(str(root))
        self.shared: frozenset[str] = frozenset()
        self.commits: list[BackgroundWork] = []
        self.snapshots: list[SubtaskSnapshot] = []

    def checkpoint(self, number: int, *, canonical: bool = False) -> SubtaskSnapshot:
        self.operator.process(str(number) + "x" * ITEM, None)
        self.operator.prepare_snapshot(number)
        store = self.storage.file_store(f"job/run-000001/chk-{number:06d}/attempt-000001", self.shared)
        snapshot = self.operator.snapshot(number, canonical=canonical).finish(store)
        self.snapshots.append(snapshot)
        return snapshot

    def complete(self, number: int) -> None:
        files = subtask_files(self.snapshots[-1])
        self.shared = frozenset(file.path for file in files if file.shared)
        work = self.operator.complete(number)
        if work is not None:
            self.commits.append(work)

    def catch_up(self) -> None:
        for commit in self.commits:
            done = commit()
            if done is not None:
                done()
        self.commits = []


def stored_bytes(root: Path) -> int:
    return sum(path.stat().st_size for path in root.rglob("*") if path.is_file())


@pytest.mark.parametrize("make", [lambda: SinkOperator(LogSink()), lambda: CollectOperator("c")])
def test_an_item_is_stored_twice_at_most_however_long_its_commit_lags(
    tmp_path: Path, make: Callable[[], Operator]
) -> None:
    lagging = Lagging(make(), tmp_path)
    for number in range(1, 21):
        lagging.checkpoint(number)
        lagging.complete(number)
    payload = ITEM + 1_000
    assert stored_bytes(tmp_path) <= 2 * 20 * 2 * payload, "what a write-ahead log stores grows linearly"
    store = lagging.storage.file_store("job/run-000001/chk-000099/attempt-000001")
    for snapshot in lagging.snapshots:
        assert [item.checkpoint_id for item in snapshot.prepared] == list(
            range(1, snapshot.prepared[-1].checkpoint_id + 1)
        )
        for item in snapshot.prepared:
            assert str(item.checkpoint_id).encode() in payload_of(item, store)[:40], "each is whole by itself"


def test_a_savepoint_shares_no_file(tmp_path: Path) -> None:
    lagging = Lagging(SinkOperator(LogSink()), tmp_path)
    for number in (1, 2, 3):
        lagging.checkpoint(number)
        lagging.complete(number)
    snapshot = lagging.checkpoint(4, canonical=True)
    assert [file.shared for file in subtask_files(snapshot)] == [False] * 4


def test_a_sink_whose_commits_lag_too_far_takes_no_input_until_it_has_caught_up(tmp_path: Path) -> None:
    sink = LogSink()
    sink.max_uncommitted_checkpoints = 3
    lagging = Lagging(SinkOperator(sink), tmp_path)
    for number in range(1, 4):
        lagging.checkpoint(number)
        lagging.complete(number)
        assert lagging.operator.has_room()
    lagging.checkpoint(4)
    assert lagging.operator.has_room(), "checkpoint 4 is not complete: no commit is under way that could make room"
    lagging.complete(4)
    assert not lagging.operator.has_room()
    lagging.catch_up()
    assert lagging.operator.has_room()
    assert len(sink.committed) >= 4


def test_a_sink_with_many_uncommitted_bytes_takes_no_input_unless_all_are_of_one_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sink_operator, "MAX_UNCOMMITTED_BYTES", 60_000)
    lagging = Lagging(SinkOperator(LogSink()), tmp_path)
    lagging.checkpoint(1)
    lagging.complete(1)
    assert lagging.operator.has_room()
    lagging.checkpoint(2)
    lagging.complete(2)
    assert not lagging.operator.has_room()


def test_output_of_checkpoints_that_never_complete_does_not_hold_the_input_back(tmp_path: Path) -> None:
    lagging = Lagging(SinkOperator(LogSink()), tmp_path)
    for number in range(1, 40):
        lagging.checkpoint(number)
        assert lagging.operator.has_room()


def test_the_status_says_which_sink_lags_and_how_far_while_it_does(tmp_path: Path) -> None:
    lagging = Lagging(SinkOperator(LogSink()), tmp_path)
    lagging.checkpoint(1)
    lagging.complete(1)
    assert lagging_sinks(readings([lagging.operator])) == []
    lagging.checkpoint(2)
    lagging.complete(2)
    (text,) = lagging_sinks(readings([lagging.operator]))
    assert text.startswith("sink out lags: 2 checkpoints, ")
    assert text.endswith("KiB uncommitted")
    lagging.catch_up()
    assert readings([lagging.operator]) == {}
