"""The contract of sinks as a suite of tests: run it on a sink of your own.

    class TestMySink(SinkContract):
        @pytest.fixture
        def new_sink(self, tmp_path):
            places = itertools.count()

            def make():                                     # called often: each time over an empty place of its own
                store = MyStore(tmp_path / str(next(places)))
                return SinkUnderTest(MySink(store.path), visible=store.numbers)

            return make

Pytest collects the tests from the subclass; `check_sink(make)` runs them all without it. They are stricter where a sink
promises more: see `SinkUnderTest.sink.guarantee`. What it takes to run the sink is `SinkJob`: the runtime's side of the
contract in small, with crashes at every step. Nothing here starts Spark.
"""

from __future__ import annotations

import pickle
import secrets
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, cast

from headrace.checkpoint.handles import HistoryPoint
from headrace.checkpoint.metadata.model import subtask_files
from headrace.checkpoint.storage.filesystem import FileSystemCheckpointStorage
from headrace.checkpoint.storage.paths import WriterScope
from headrace.connectors.sink import CommittedOutput, Committer, Sink, SinkGuarantee, SinkWriter, WriterContext
from headrace.errors import OutputLostError
from headrace.operators.base import OperatorContext, Outputs
from headrace.operators.sink import SinkOperator

CHECKPOINTS = 4
RECORDS_PER_CHECKPOINT = 6
EVERYTHING = list(range(CHECKPOINTS * RECORDS_PER_CHECKPOINT))

LAGGING_CHECKPOINTS = 6
LAGGING_RECORDS = 8_000
"""Enough that a write-ahead log of them is not kept in `_metadata` itself."""

_EXACT = (SinkGuarantee.TWO_PHASE, SinkGuarantee.WRITE_AHEAD, SinkGuarantee.IDEMPOTENT)


@dataclass
class SinkUnderTest:
    """A sink, how its output is read, and what is left over behind the scenes."""

    sink: Sink
    visible: Callable[[], Sequence[int]]
    """The numbers of all records that a reader sees now, in the order in which it sees them."""
    to_record: Callable[[int], Any] = field(default=lambda n: n)
    """The record that stands for a number."""
    leftovers: Callable[[], Sequence[str]] = field(default=lambda: ())
    """Names of staged files, open or prepared transactions and the like. Must be empty when all is done."""
    kill: Callable[[SinkWriter], None] = field(default=lambda writer: None)
    """What the death of a process does to its writer that the suite cannot do: cut a connection, say."""
    travels: bool = True
    """Whether the sink may be pickled, as it is on its way to a task. Only a sink over this process' memory may not."""

    lose: Callable[[], None] | None = None
    """Removes all prepared output without the sink's knowledge. None where the checkpoint holds it all."""
    single_owner: bool = False
    """Whether only one job of a name may write to the place: a second one takes it over or is refused."""

    replaces: bool = False
    """Whether a record takes the place of an older one with the same number."""

    @property
    def exact(self) -> bool:
        """Each record is seen once in the end, whatever failed."""
        return self.sink.guarantee in _EXACT

    @property
    def hides(self) -> bool:
        """Nothing is seen before its checkpoint is complete."""
        return self.sink.create_committer() is not None

    def in_a_task(self) -> Sink:
        """The sink as a task gets it."""
        sink: Sink = pickle.loads(pickle.dumps(self.sink)) if self.travels else self.sink
        return sink


NewSink = Callable[[], SinkUnderTest]
"""Gives a sink over an empty place of its own at every call."""


class Crash(Enum):
    """When the whole job dies."""

    BEFORE_PREPARE = "records written, no barrier yet"
    AFTER_FIRST_PREPARE = "one subtask is prepared"
    AFTER_PREPARE = "prepared, but the checkpoint is not published"
    AFTER_PUBLISH = "published, nothing committed"
    AFTER_FIRST_COMMIT = "one subtask has committed"
    AFTER_COMMIT = "committed, but nobody was told"


class Died(Exception):
    """The crash that a test asked for."""


@dataclass
class _Checkpoint:
    """What survives a crash: how far the source was, and all prepared items, subtask by subtask."""

    id: int = 0
    position: int = 0
    items: tuple[bytes, ...] = ()


@dataclass
class SinkJob:
    """The runtime's side of a sink, in small: attempts, barriers, publishing, committing, recovery.

    The source gives the numbers of `EVERYTHING` in order, six for each checkpoint; number n goes to subtask
    n mod parallelism, those of the last checkpoint to subtask 0 alone. After every step the job looks at what a reader
    sees: nothing that no published checkpoint holds, nothing twice.
    """

    subject: SinkUnderTest
    parallelism: int = 2
    job_id: str = "job"
    uid: str = "sink"
    attempt: int = 0
    last: _Checkpoint = field(default_factory=_Checkpoint)
    before: Counter[int] = field(default_factory=Counter)
    """What was there before the job began."""
    history: str = field(default_factory=lambda: secrets.token_hex(6))
    """The job directory in which attempts and checkpoints are counted."""
    writers: list[SinkWriter] = field(default_factory=list)
    dead: list[SinkWriter] = field(default_factory=list)

    def run(self, crash: Crash | None = None, at: int = 0, *, abort: int | None = None) -> None:
        """One attempt to the end of input, or to its crash at checkpoint `at`; checkpoint `abort` is given up."""
        self.recover()
        sink = self.subject.in_a_task()
        committer = sink.create_committer()
        self.writers = [sink.create_writer(self._context(subtask)) for subtask in range(self.parallelism)]
        for writer in self.writers:
            writer.open()
        uncommitted: list[bytes] = []
        while self.last.id < CHECKPOINTS:
            checkpoint, start = self.last.id + 1, self.last.position
            end = checkpoint * RECORDS_PER_CHECKPOINT
            if abort == checkpoint:
                # The barrier of a checkpoint that is then given up: its items go with the next one.
                middle = start + RECORDS_PER_CHECKPOINT // 2
                self.write(start, middle)
                uncommitted += self.prepare(2 * checkpoint - 1)
                start = middle
            self.write(start, end)
            self._die_if(crash is Crash.BEFORE_PREPARE and at == checkpoint)
            uncommitted += self.prepare(2 * checkpoint, dies=crash is Crash.AFTER_FIRST_PREPARE and at == checkpoint)
            self._die_if(crash is Crash.AFTER_PREPARE and at == checkpoint)
            self.last = _Checkpoint(checkpoint, end, tuple(uncommitted))
            self.look()
            self._die_if(crash is Crash.AFTER_PUBLISH and at == checkpoint)
            self._commit(committer, uncommitted, dies=crash is Crash.AFTER_FIRST_COMMIT and at == checkpoint)
            self._die_if(crash is Crash.AFTER_COMMIT and at == checkpoint)
            if committer is not None:
                committer.commit(uncommitted)  # a repeated notice
            uncommitted = []
            self._all_is_there()
        for writer in self.writers:
            writer.close()
        if committer is not None:
            committer.close()
        self.look()

    def recover(self) -> None:
        """What the driver does before the tasks of a new attempt begin."""
        self.attempt += 1
        recovery = self.subject.sink.create_committer()
        if recovery is not None:
            recovery.history = self.history
            recovery.attempt_starts(self.job_id, self.uid, self.attempt, self.parallelism)
            if self.last.items:
                recovery.commit(self.last.items)
            recovery.abort_leftovers(self.job_id, self.uid, self.attempt, self.last.items)
            recovery.close()
        self.look()

    def write(self, start: int, end: int) -> None:
        """These records, some one by one, most in a batch."""
        alone = start >= RECORDS_PER_CHECKPOINT * (CHECKPOINTS - 1)
        for subtask, writer in enumerate(self.writers):
            mine = [n for n in range(start, end) if (0 if alone else n % self.parallelism) == subtask]
            records = [self.subject.to_record(n) for n in mine]
            for record in records[:1]:
                writer.write(record, None)
            writer.write_batch(records[1:], None)
        self.look()

    def prepare(self, checkpoint_id: int, *, dies: bool = False) -> list[bytes]:
        """A barrier goes through all subtasks; the job may die after the first of them. Ids grow, and have gaps."""
        items: list[bytes] = []
        for writer in self.writers:
            writer.flush()
            items += writer.prepare_commit(checkpoint_id)
            self._die_if(dies)
        self.look()
        return items

    def look(self) -> None:
        """What a reader sees must be what may be seen."""
        seen = Counter(self.subject.visible())
        new = seen - self.before
        if self.subject.exact:
            assert all(count == 1 for count in new.values()), f"seen twice: {sorted(new - Counter(set(new)))}"
        if self.subject.hides:
            early = set(new) - set(range(self.last.position))
            assert not early, f"seen before any checkpoint held it: {sorted(early)}"
        assert not self.before - seen, f"gone, though it was committed: {sorted(self.before - seen)}"

    def dies(self, crash: Crash, at: int) -> None:
        """One attempt, which must come to this crash."""
        try:
            self.run(crash, at)
        except Died:
            return
        raise AssertionError(f"the job did not come to the crash {crash.name} at checkpoint {at}")

    def _commit(self, committer: Committer | None, items: Sequence[bytes], *, dies: bool) -> None:
        for item in items:
            if committer is not None:
                committer.commit([item])
            self.look()
            self._die_if(dies)
        self._die_if(dies)

    def _all_is_there(self) -> None:
        new = Counter(self.subject.visible()) - self.before
        missing = set(range(self.last.position)) - set(new)
        assert not missing, f"committed, but not seen: {sorted(missing)}"

    def _die_if(self, dies: bool) -> None:
        if dies:
            # Killed: nobody calls close.
            for writer in self.writers:
                self.subject.kill(writer)
            self.dead += self.writers
            self.writers = []
            raise Died

    def _context(self, subtask: int) -> WriterContext:
        return WriterContext(self.job_id, self.uid, subtask, self.parallelism, self.attempt, self.history)

    def committed_since(self, attempt: int, checkpoint: int, history: str | None = None) -> list[CommittedOutput]:
        """What the sink says was committed after that checkpoint of that attempt. Their ids are even numbers."""
        committer = self.subject.sink.create_committer()
        if committer is None:
            return []
        point = HistoryPoint(self.history if history is None else history, attempt, 2 * checkpoint)
        try:
            return list(committer.committed_since(self.job_id, self.uid, point))
        finally:
            committer.close()


class SinkContract:
    """What every `Sink` promises. The fixture `new_sink` is yours to give."""

    def test_a_crash_at_any_step_of_any_checkpoint_neither_loses_nor_repeats_a_record(self, new_sink: NewSink) -> None:
        for crash in Crash:
            for at in (1, 2, CHECKPOINTS):
                job = SinkJob(new_sink())
                job.dies(crash, at)
                job.run()
                _complete(job.subject, f"{crash.name} at {at}")

    def test_crash_after_crash_neither_loses_nor_repeats_a_record(self, new_sink: NewSink) -> None:
        job = SinkJob(new_sink())
        for crash in [*Crash, *Crash]:
            job.dies(crash, job.last.id + 1)
            if job.last.id == CHECKPOINTS - 1:
                break
        job.run()
        _complete(job.subject)

    def test_output_of_an_aborted_checkpoint_is_committed_with_the_next_one(self, new_sink: NewSink) -> None:
        for abort in range(1, CHECKPOINTS + 1):
            job = SinkJob(new_sink())
            job.run(abort=abort)
            _complete(job.subject, f"abort of {abort}")

    def test_output_of_an_aborted_checkpoint_survives_a_crash_after_the_next_one(self, new_sink: NewSink) -> None:
        for crash in (Crash.AFTER_PUBLISH, Crash.AFTER_FIRST_COMMIT):
            job = SinkJob(new_sink())
            try:
                job.run(crash, 2, abort=2)
            except Died:
                job.run()
            _complete(job.subject, crash.name)

    def test_a_commit_may_come_any_number_of_times_from_any_process(self, new_sink: NewSink) -> None:
        job = SinkJob(new_sink())
        job.dies(Crash.AFTER_COMMIT, 2)
        seen = sorted(job.subject.visible())
        for _ in range(3):
            committer = job.subject.in_a_task().create_committer()
            if committer is not None:
                committer.commit(job.last.items)
                committer.commit(job.last.items)
                committer.close()
        if job.subject.hides:
            assert sorted(job.subject.visible()) == seen
        job.run()
        _complete(job.subject)

    def test_nothing_is_seen_before_its_checkpoint_is_complete(self, new_sink: NewSink) -> None:
        subject = new_sink()
        if not subject.hides:
            return
        writer = subject.in_a_task().create_writer(WriterContext("job", "sink", 0, 1, 1))
        writer.open()
        writer.write_batch([subject.to_record(n) for n in range(3)], None)
        assert list(subject.visible()) == []
        writer.flush()
        assert list(subject.visible()) == []
        items = list(writer.prepare_commit(1))
        assert list(subject.visible()) == []
        _commit(subject, items)
        assert sorted(subject.visible()) == [0, 1, 2]
        writer.close()
        assert sorted(subject.visible()) == [0, 1, 2]

    def test_order_is_kept_within_a_subtask(self, new_sink: NewSink) -> None:
        job = SinkJob(new_sink())
        job.dies(Crash.AFTER_PUBLISH, 2)
        job.run()
        if not job.subject.exact:
            return
        # The numbers of the last checkpoint all came from subtask 0.
        last = RECORDS_PER_CHECKPOINT * (CHECKPOINTS - 1)
        for subtask in range(job.parallelism):
            mine = [n for n in job.subject.visible() if n < last and n % job.parallelism == subtask]
            assert mine == sorted(mine), f"subtask {subtask} wrote in order, but {mine} is seen"

    def test_prepared_output_is_committed_whatever_the_new_parallelism(self, new_sink: NewSink) -> None:
        for before, after in ((3, 1), (1, 3), (2, 4)):
            for crash in (Crash.AFTER_PREPARE, Crash.AFTER_PUBLISH, Crash.AFTER_FIRST_COMMIT):
                job = SinkJob(new_sink(), before)
                job.dies(crash, 2)
                job.parallelism = after
                job.run()
                _complete(job.subject, f"{crash.name}, {before} to {after}")

    def test_a_checkpoint_without_records_prepares_nothing(self, new_sink: NewSink) -> None:
        subject = new_sink()
        writer = subject.in_a_task().create_writer(WriterContext("job", "sink", 0, 1, 1))
        writer.open()
        for checkpoint in (1, 2, 3):
            writer.write_batch([], None)
            writer.flush()
            assert list(writer.prepare_commit(checkpoint)) == []
        assert list(subject.leftovers()) == []
        writer.close()
        assert list(subject.visible()) == []

    def test_a_task_that_fails_gives_up_what_it_has_not_prepared(self, new_sink: NewSink) -> None:
        subject = new_sink()
        if not subject.hides:
            return
        writer = subject.in_a_task().create_writer(WriterContext("job", "sink", 0, 1, 1))
        writer.open()
        writer.write(subject.to_record(1), None)
        writer.flush()
        items = list(writer.prepare_commit(1))
        writer.write(subject.to_record(2), None)
        writer.close()
        _commit(subject, items)
        assert list(subject.visible()) == [1]
        assert list(subject.leftovers()) == []

    def test_recovery_gives_up_what_older_attempts_left_and_spares_its_own(self, new_sink: NewSink) -> None:
        subject = new_sink()
        if not subject.hides:
            return
        old, new = (subject.in_a_task().create_writer(WriterContext("job", "sink", 0, 1, a)) for a in (1, 2))
        for number, writer in enumerate((old, new)):
            writer.open()
            writer.write(subject.to_record(number), None)
        subject.kill(old)
        committer = subject.sink.create_committer()
        assert committer is not None
        committer.abort_leftovers("job", "sink", 2, [])
        committer.close()
        new.flush()
        _commit(subject, list(new.prepare_commit(1)))
        assert list(subject.visible()) == [1]
        new.close()
        assert list(subject.leftovers()) == []

    def test_a_job_that_begins_anew_under_its_old_name_loses_nothing(self, new_sink: NewSink) -> None:
        """Its checkpoints and attempts count from 1 again: what it commits must not be taken for the old one's."""
        subject = new_sink()
        SinkJob(subject).run()
        if not subject.hides or subject.replaces:
            return
        old = Counter(subject.visible())
        again = SinkJob(subject, before=old)
        again.dies(Crash.AFTER_FIRST_COMMIT, 2)
        again.run()
        if subject.exact:
            assert Counter(subject.visible()) - old == Counter(EVERYTHING)

    def test_only_output_from_behind_a_checkpoint_stands_in_the_way_of_a_start_from_it(self, new_sink: NewSink) -> None:
        """A sink need not remember what it committed. If it does, no start is refused that would repeat nothing."""
        job = SinkJob(new_sink())
        job.dies(Crash.AFTER_COMMIT, 2)
        told = job.committed_since(1, 1)
        assert job.committed_since(1, 2) == []
        assert job.committed_since(1, 0, "another directory") == []
        assert {(o.attempt, o.checkpoint_id) for o in told} <= {(1, 4)}
        job.run()
        assert job.committed_since(2, CHECKPOINTS) == []
        later = {(2, 2 * checkpoint) for checkpoint in range(3, CHECKPOINTS + 1)}
        now = {(o.attempt, o.checkpoint_id) for o in job.committed_since(1, 2)}
        assert now <= later, f"it was not committed behind that checkpoint: {sorted(now - later)}"
        if told:
            assert (2, 2 * CHECKPOINTS) in now, "what was committed last is forgotten"
            assert all(o.what for o in job.committed_since(1, 0))

    def test_two_sinks_of_one_job_do_not_take_each_other_s_output(self, new_sink: NewSink) -> None:
        subject = new_sink()
        if not subject.hides:
            return
        first, second = SinkJob(subject, uid="a"), SinkJob(subject, uid="b")
        first.dies(Crash.AFTER_PUBLISH, 1)
        second.before = Counter(subject.visible())
        second.last = _Checkpoint(CHECKPOINTS - 1, RECORDS_PER_CHECKPOINT * (CHECKPOINTS - 1))
        second.attempt = first.attempt
        second.recover()
        first.recover()
        assert sorted(subject.visible()) == list(range(RECORDS_PER_CHECKPOINT))

    def test_jobs_of_one_name_with_two_job_directories_spare_each_other_s_uncommitted_output(
        self, new_sink: NewSink
    ) -> None:
        """Both may be running, and each counts its attempts from 1: the name and the number say nothing about whose."""
        subject = new_sink()
        if not subject.hides or subject.single_owner:
            return
        mine, other = secrets.token_hex(6), secrets.token_hex(6)
        writer = subject.in_a_task().create_writer(WriterContext("job", "sink", 0, 1, 1, mine))
        writer.open()
        writer.write(subject.to_record(0), None)
        writer.flush()
        items = list(writer.prepare_commit(1))
        writer.write(subject.to_record(1), None)
        committer = subject.sink.create_committer()
        assert committer is not None
        committer.history = other
        committer.attempt_starts("job", "sink", 7, 1)
        committer.abort_leftovers("job", "sink", 7, [])
        committer.close()
        _commit(subject, items)
        assert list(subject.visible()) == [0]
        writer.flush()
        _commit(subject, list(writer.prepare_commit(2)))
        writer.close()
        assert sorted(subject.visible()) == [0, 1]
        assert list(subject.leftovers()) == []

    def test_prepared_output_that_is_gone_is_lost_and_not_tried_again(self, new_sink: NewSink) -> None:
        """A restart could not bring it back, and to go on would leave a gap that nobody notices."""
        job = SinkJob(new_sink())
        if job.subject.lose is None:
            return
        job.dies(Crash.AFTER_PUBLISH, 2)
        seen = sorted(job.subject.visible())
        job.subject.lose()
        try:
            job.recover()
        except OutputLostError:
            assert sorted(job.subject.visible()) == seen
            return
        raise AssertionError("prepared output is gone, and recovery did not raise OutputLostError")

    def test_bytes_stored_grow_linearly_while_commits_lag(self, new_sink: NewSink) -> None:
        """Each checkpoint holds all output that is not committed yet; it must not store that output again."""
        subject = new_sink()
        if subject.sink.guarantee not in (SinkGuarantee.WRITE_AHEAD, SinkGuarantee.WRITE_AHEAD_UNMARKED):
            return  # the output itself is not in the checkpoint
        operator = SinkOperator(subject.in_a_task())
        operator.setup(_operator_context(), cast(Outputs, _NoOutputs()))
        operator.open()
        for number in range(LAGGING_RECORDS):
            operator.process(subject.to_record(number), None)
        shared: frozenset[str] = frozenset()
        stored: list[int] = []
        with tempfile.TemporaryDirectory() as folder:
            storage = FileSystemCheckpointStorage(folder)
            for checkpoint in range(1, LAGGING_CHECKPOINTS + 1):
                operator.prepare_snapshot(checkpoint)
                store = storage.file_store(WriterScope("job", checkpoint, 1).prefix, shared)
                files = list(subtask_files(operator.snapshot(checkpoint, canonical=False).finish(store)))
                shared = frozenset(file.path for file in files if file.shared)
                stored.append(sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file()))
        commit = operator.complete(LAGGING_CHECKPOINTS)
        assert commit is not None
        commit()
        operator.close()
        assert stored[-1] <= 2 * stored[0], f"bytes stored after each checkpoint: {stored}"

    def test_it_says_what_it_is(self, new_sink: NewSink) -> None:
        subject = new_sink()
        subject.sink.preflight()
        assert subject.sink.describe()
        assert isinstance(subject.sink.guarantee, SinkGuarantee)
        transactional = (SinkGuarantee.TWO_PHASE, SinkGuarantee.WRITE_AHEAD, SinkGuarantee.WRITE_AHEAD_UNMARKED)
        assert subject.hides == (subject.sink.guarantee in transactional)


def check_sink(new_sink: NewSink) -> None:
    """Run the whole contract; the first promise that is broken raises an AssertionError."""
    suite = SinkContract()
    for name in sorted(name for name in dir(suite) if name.startswith("test_")):
        try:
            getattr(suite, name)(new_sink)
        except AssertionError as error:
            raise AssertionError(f"{name.removeprefix('test_').replace('_', ' ')}: {error}") from error


class _NoOutputs:
    """A sink emits nothing."""

    def emit(self, value: Any, timestamp: int | None) -> None:
        raise AssertionError("a sink has no output")


def _operator_context() -> OperatorContext:
    return OperatorContext(
        job_id="job",
        uid="sink",
        name="sink",
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


def _commit(subject: SinkUnderTest, items: Sequence[bytes]) -> None:
    committer = subject.in_a_task().create_committer()
    assert committer is not None
    committer.commit(items)
    committer.close()


def _complete(subject: SinkUnderTest, case: str = "") -> None:
    seen = Counter(subject.visible())
    where = f" ({case})" if case else ""
    lost = set(EVERYTHING) - set(seen)
    assert not lost, f"lost: {sorted(lost)}{where}"
    if subject.exact:
        assert seen == Counter(EVERYTHING), f"seen twice: {sorted((seen - Counter(EVERYTHING)).elements())}{where}"
    assert list(subject.leftovers()) == [], f"left over: {list(subject.leftovers())}{where}"
