"""What every transactional sink promises: whatever dies whenever, each record is seen once, and none before its
commit."""

from __future__ import annotations

import json
import pickle
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.parquet as pq
import pytest

from headrace.connectors.files import BucketAssigner, Encoder, FileSink, RollingPolicy
from headrace.connectors.files.staging import FileTransaction
from headrace.connectors.sink import Sink, SinkGuarantee, SinkWriter, WriterContext
from headrace.connectors.two_phase import TwoPhaseCommitSink, TwoPhaseCommitSinkFunction
from headrace.types.information import Types

PARALLELISM = 2
CHECKPOINTS = 4
RECORDS_PER_CHECKPOINT = 6
NUMBER = Types.ROW_NAMED(["n"], [Types.LONG()])


class Table:
    """A store with transactions; what is in `rows` is what a reader sees."""

    def __init__(self) -> None:
        self.open: dict[str, list[Any]] = {}
        self.prepared: dict[str, list[Any]] = {}
        self.committed: set[str] = set()
        self.rows: list[Any] = []


class TableTransaction(msgspec.Struct):
    name: str


class TableSink(TwoPhaseCommitSink[TableTransaction]):
    """The template as a user would extend it."""

    transaction_type = TableTransaction

    def __init__(self, table: Table) -> None:
        self.table = table

    def open(self, context: WriterContext) -> None:
        self.count = 0

    def begin(self) -> TableTransaction:
        self.count += 1
        name = f"{self.context.uid}/{self.context.attempt}/{self.context.subtask}/{self.count}"
        self.table.open[name] = []
        return TableTransaction(name)

    def invoke(self, txn: TableTransaction, value: Any, timestamp: int | None) -> None:
        self.table.open[txn.name].append(value)

    def pre_commit(self, txn: TableTransaction) -> None:
        self.table.prepared[txn.name] = self.table.open.pop(txn.name)

    def commit(self, txn: TableTransaction) -> None:
        if txn.name not in self.table.committed:
            self.table.committed.add(txn.name)
            self.table.rows += self.table.prepared.pop(txn.name)

    def abort(self, txn: TableTransaction) -> None:
        self.table.open.pop(txn.name, None)
        self.table.prepared.pop(txn.name, None)

    def find_leftovers(self, job_id: str, uid: str, attempt: int) -> list[TableTransaction]:
        names = [*self.table.open, *self.table.prepared]
        return [TableTransaction(name) for name in names if int(name.split("/")[1]) < attempt]


@dataclass
class Case:
    """A sink, how its output is read, and what is left over behind the scenes."""

    sink: Sink
    visible: Callable[[], list[int]]
    leftovers: Callable[[], list[str]]
    to_record: Callable[[int], Any] = field(default=lambda n: n)


def table(folder: Path) -> Case:
    store = Table()
    return Case(TableSink(store), lambda: list(store.rows), lambda: [*store.open, *store.prepared])


def visible_files(folder: Path) -> list[Path]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return sorted(path for path in files if ".staging" not in path.parts)


def staged_files(folder: Path) -> list[str]:
    staging = folder / ".staging"
    files = (path for path in staging.rglob("*") if path.is_file()) if staging.exists() else ()
    return sorted(path.name for path in files if path.suffix != ".committed")


def lines_of(folder: Path) -> list[int]:
    return [int(line) for path in visible_files(folder) for line in path.read_text().splitlines()]


def text_files(folder: Path) -> Case:
    sink = FileSink.for_row_format(folder, Encoder.simple_string_encoder())
    return Case(sink, lambda: lines_of(folder), lambda: staged_files(folder))


def small_files(folder: Path) -> Case:
    policy = RollingPolicy.default_rolling_policy(part_size=1)
    sink = FileSink.text(folder).with_rolling_policy(policy).build()
    return Case(sink, lambda: lines_of(folder), lambda: staged_files(folder))


class Evenness(BucketAssigner):
    def bucket_of(self, value: Any, timestamp: int | None) -> str:
        return "even" if value % 2 == 0 else "odd/deep"


def bucketed_files(folder: Path) -> Case:
    sink = FileSink.text(folder).with_bucket_assigner(Evenness())
    return Case(sink, lambda: lines_of(folder), lambda: staged_files(folder))


def json_files(folder: Path) -> Case:
    def read() -> list[int]:
        return [json.loads(line)["n"] for path in visible_files(folder) for line in path.read_text().splitlines()]

    return Case(FileSink.json_lines(folder), read, lambda: staged_files(folder), lambda n: {"n": n})


def parquet_files(folder: Path) -> Case:
    def read() -> list[int]:
        return [n for path in visible_files(folder) for n in pq.read_table(path)["n"].to_pylist()]

    return Case(FileSink.parquet(folder, NUMBER), read, lambda: staged_files(folder), lambda n: (n,))


@pytest.fixture(
    params=[table, text_files, small_files, bucketed_files, json_files, parquet_files], ids=lambda make: make.__name__
)
def case(request: pytest.FixtureRequest, tmp_path: Path) -> Case:
    make: Callable[[Path], Case] = request.param
    return make(tmp_path / "out")


class Crash(Enum):
    BEFORE_PREPARE = "records written, no barrier yet"
    AFTER_FIRST_PREPARE = "one of two subtasks is prepared"
    AFTER_PREPARE = "prepared, but the checkpoint is not published"
    AFTER_PUBLISH = "published, nothing committed"
    AFTER_FIRST_COMMIT = "one of two subtasks has committed"
    AFTER_COMMIT = "committed, but nobody was told"


class Died(Exception):
    pass


@dataclass
class Checkpoint:
    """What survives: how far the source was, and the prepared items of every subtask."""

    id: int = 0
    position: int = 0
    items: tuple[bytes, ...] = ()


@dataclass
class Job:
    """The runtime's side of a sink, in small: attempts, barriers, publishing, committing, recovery.

    After every step it looks at what a reader sees: nothing that no published checkpoint holds, nothing twice.
    """

    case: Case
    attempt: int = 0
    last: Checkpoint = field(default_factory=Checkpoint)
    alive: list[SinkWriter] = field(default_factory=list)
    zombies: list[SinkWriter] = field(default_factory=list)

    def run(self, crash: Crash | None = None, at: int = 0, *, abort: int | None = None) -> None:
        """One attempt to the end of input, or to its crash at checkpoint `at`; `abort` is never published."""
        self.attempt += 1
        recovery = self.case.sink.create_committer()
        assert recovery is not None
        recovery.commit(self.last.items)
        recovery.abort_leftovers("job", "sink", self.attempt, self.last.items)
        recovery.close()
        self.check()
        # The sink travels to the tasks anew in every attempt.
        sink = self.case.sink if isinstance(self.case.sink, TableSink) else pickle.loads(pickle.dumps(self.case.sink))
        committer = sink.create_committer()
        contexts = [WriterContext("job", "sink", s, PARALLELISM, self.attempt) for s in range(PARALLELISM)]
        self.alive = [sink.create_writer(context) for context in contexts]
        for writer in self.alive:
            writer.open()
        uncommitted: list[bytes] = []
        while self.last.id < CHECKPOINTS:
            checkpoint = self.last.id + 1
            position = checkpoint * RECORDS_PER_CHECKPOINT
            start = self.last.position
            if abort == checkpoint:
                # The barrier of a checkpoint that is then given up: its items go with the next one.
                middle = start + RECORDS_PER_CHECKPOINT // 2
                self.write(start, middle)
                uncommitted += self.prepare(checkpoint, None, 0)
                start = middle
            self.write(start, position)
            self.die_if(crash is Crash.BEFORE_PREPARE and at == checkpoint)
            uncommitted += self.prepare(checkpoint, crash, at)
            self.die_if(crash is Crash.AFTER_PREPARE and at == checkpoint)
            self.last = Checkpoint(checkpoint, position, tuple(uncommitted))
            self.check()
            self.die_if(crash is Crash.AFTER_PUBLISH and at == checkpoint)
            for item in uncommitted:
                committer.commit([item])
                self.check()
                self.die_if(crash is Crash.AFTER_FIRST_COMMIT and at == checkpoint)
            self.die_if(crash is Crash.AFTER_COMMIT and at == checkpoint)
            committer.commit(uncommitted)  # a repeated notice
            uncommitted = []
            assert sorted(self.case.visible()) == list(range(position))
        for writer in self.alive:
            writer.close()

    def write(self, start: int, end: int) -> None:
        for subtask, writer in enumerate(self.alive):
            # The last checkpoint's records all go to one subtask: the other has nothing to prepare.
            mine = [n for n in range(start, end) if n % PARALLELISM == subtask or n >= RECORDS_PER_CHECKPOINT * 3]
            if start >= RECORDS_PER_CHECKPOINT * 3 and subtask == 1:
                mine = []
            records = [self.case.to_record(n) for n in mine]
            writer.write_batch(records[1:], None)
            for record in records[:1]:
                writer.write(record, None)
        self.check()

    def prepare(self, checkpoint: int, crash: Crash | None, at: int) -> list[bytes]:
        items: list[bytes] = []
        for subtask, writer in enumerate(self.alive):
            writer.flush()
            items += writer.prepare_commit(checkpoint)
            self.die_if(crash is Crash.AFTER_FIRST_PREPARE and at == checkpoint and subtask == 0)
        self.check()
        return items

    def die_if(self, dies: bool) -> None:
        if dies:
            self.zombies += self.alive  # killed: nobody calls close
            raise Died

    def check(self) -> None:
        seen = Counter(self.case.visible())
        assert all(count == 1 for count in seen.values()), f"seen twice: {seen}"
        assert set(seen) <= set(range(self.last.position)), "seen before any checkpoint held it"


def finish(job: Job, crash: Crash, at: int) -> None:
    with pytest.raises(Died):
        job.run(crash, at)
    job.run()


@pytest.mark.parametrize("crash", Crash)
@pytest.mark.parametrize("at", range(1, CHECKPOINTS + 1))
def test_a_crash_at_any_step_of_any_checkpoint_leaves_each_record_visible_once(
    case: Case, crash: Crash, at: int
) -> None:
    job = Job(case)

    finish(job, crash, at)

    assert sorted(case.visible()) == list(range(CHECKPOINTS * RECORDS_PER_CHECKPOINT))
    assert case.leftovers() == []


def test_several_crashes_in_a_row_leave_each_record_visible_once(case: Case) -> None:
    job = Job(case)

    for crash in [*Crash, *Crash]:
        with pytest.raises(Died):
            job.run(crash, job.last.id + 1)
        if job.last.id == CHECKPOINTS - 1:
            break
    job.run()

    assert sorted(case.visible()) == list(range(CHECKPOINTS * RECORDS_PER_CHECKPOINT))
    assert case.leftovers() == []


def test_output_of_an_aborted_checkpoint_is_committed_with_the_next_one(case: Case) -> None:
    Job(case).run(abort=2)

    assert sorted(case.visible()) == list(range(CHECKPOINTS * RECORDS_PER_CHECKPOINT))


def test_a_checkpoint_without_records_opens_no_transaction(case: Case) -> None:
    writer = case.sink.create_writer(WriterContext("job", "sink", 0, 1, 1))
    writer.open()

    for checkpoint in (1, 2, 3):
        writer.write_batch([], None)
        writer.flush()
        assert list(writer.prepare_commit(checkpoint)) == []
    writer.close()

    assert case.visible() == []
    assert case.leftovers() == []


def test_a_task_that_fails_gives_up_what_it_has_not_prepared(case: Case) -> None:
    writer = case.sink.create_writer(WriterContext("job", "sink", 0, 1, 1))
    writer.open()
    writer.write(case.to_record(1), None)
    items = list(writer.prepare_commit(1))
    writer.write(case.to_record(2), None)

    writer.close()

    committer = case.sink.create_committer()
    assert committer is not None
    committer.commit(items)
    assert case.visible() == [1]
    assert case.leftovers() == []


def test_recovery_removes_what_older_attempts_left_and_spares_its_own(case: Case) -> None:
    contexts = [WriterContext("job", "sink", 0, 1, 1), WriterContext("job", "sink", 0, 1, 2)]
    old, new = (case.sink.create_writer(context) for context in contexts)
    for number, writer in enumerate((old, new)):
        writer.open()
        writer.write(case.to_record(number), None)
    committer = case.sink.create_committer()
    assert committer is not None

    committer.abort_leftovers("job", "sink", 2, [])

    items = list(new.prepare_commit(1))
    committer.commit(items)
    assert case.visible() == [1]
    assert case.leftovers() == []


def test_a_two_phase_sink_says_so(case: Case) -> None:
    assert case.sink.guarantee is SinkGuarantee.TWO_PHASE
    assert TwoPhaseCommitSinkFunction is TwoPhaseCommitSink
    case.sink.preflight()


class HastySink(FileSink):
    """Shows its files at the barrier, before the checkpoint is complete."""

    def pre_commit(self, txn: FileTransaction) -> None:
        super().pre_commit(txn)
        self.commit(txn)


class ForgetfulTableSink(TableSink):
    """Shows a transaction again when it is committed again."""

    def commit(self, txn: TableTransaction) -> None:
        self.table.rows += self.table.prepared[txn.name]


def outcome(job: Job, crash: Crash, at: int) -> str:
    try:
        finish(job, crash, at)
    except AssertionError as error:
        return str(error).splitlines()[0]
    return "nothing"


def test_the_oracle_notices_a_sink_that_shows_files_before_their_commit(tmp_path: Path) -> None:
    hasty = HastySink(tmp_path, Encoder.simple_string_encoder())
    case = Case(hasty, lambda: lines_of(tmp_path), lambda: staged_files(tmp_path))

    assert outcome(Job(case), Crash.AFTER_PREPARE, 2) == "seen before any checkpoint held it"


def test_the_oracle_notices_a_sink_that_commits_twice() -> None:
    store = Table()
    case = Case(ForgetfulTableSink(store), lambda: list(store.rows), list)

    assert outcome(Job(case), Crash.AFTER_COMMIT, 1).startswith("seen twice")
