"""The two-phase template calls its parts in the promised order, and tells a recovery from a commit."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from headrace.connectors.discard import DiscardSink
from headrace.connectors.idempotent import IdempotentSink
from headrace.connectors.print import PrintSink
from headrace.connectors.sink import SinkGuarantee, WriterContext
from headrace.connectors.two_phase import TwoPhaseCommitSink
from headrace.errors import JobDefinitionError

CONTEXT = WriterContext("job", "sink", 1, 3, 5)
JOURNAL: list[str] = []


@pytest.fixture(autouse=True)
def _empty_journal() -> None:
    JOURNAL.clear()


class JournalSink(TwoPhaseCommitSink[str]):
    """Notes what it is asked to do; the journal is outside, because the sink is copied for each writer."""

    transaction_type = str

    def open(self, context: WriterContext) -> None:
        self.count = 0
        JOURNAL.append(f"open {context.subtask}")

    def begin(self) -> str:
        self.count += 1
        JOURNAL.append(f"begin t{self.count}")
        return f"t{self.count}"

    def invoke(self, txn: str, value: Any, timestamp: int | None) -> None:
        JOURNAL.append(f"invoke {txn} {value} at {timestamp}")

    def flush(self, txn: str) -> None:
        JOURNAL.append(f"flush {txn}")

    def pre_commit(self, txn: str) -> None:
        JOURNAL.append(f"pre_commit {txn}")

    def commit(self, txn: str) -> None:
        JOURNAL.append(f"commit {txn}")

    def abort(self, txn: str) -> None:
        JOURNAL.append(f"abort {txn}")

    def recover_and_commit(self, txn: str) -> None:
        JOURNAL.append(f"recover_and_commit {txn}")

    def recover_and_abort(self, txn: str) -> None:
        JOURNAL.append(f"recover_and_abort {txn}")

    def find_leftovers(self, job_id: str, uid: str, attempt: int) -> list[str]:
        return ["t1", "t2", "t9"]

    def close(self) -> None:
        JOURNAL.append("close")


def test_a_transaction_lives_from_its_first_record_to_the_barrier() -> None:
    writer = JournalSink().create_writer(CONTEXT)
    writer.open()
    writer.flush()
    assert list(writer.prepare_commit(1)) == []
    writer.write("a", 10)
    writer.write_batch(["b", "c"], [11, 12])
    writer.flush()
    assert len(writer.prepare_commit(2)) == 1
    writer.write_batch(["d"], None)
    writer.close()

    assert JOURNAL == [
        "open 1",
        "begin t1",
        "invoke t1 a at 10",
        "invoke t1 b at 11",
        "invoke t1 c at 12",
        "flush t1",
        "pre_commit t1",
        "begin t2",
        "invoke t2 d at None",
        "abort t2",
        "close",
    ]


def test_the_writers_own_process_commits_and_any_other_recovers() -> None:
    sink = JournalSink()
    writer = sink.create_writer(CONTEXT)
    writer.open()
    writer.write("a", None)
    items = writer.prepare_commit(1)
    JOURNAL.clear()

    sink.create_committer().commit(items)
    elsewhere: JournalSink = pickle.loads(pickle.dumps(sink))
    elsewhere.create_committer().commit(items)
    writer.close()
    sink.create_committer().commit(items)

    assert JOURNAL == ["commit t1", "recover_and_commit t1", "close", "recover_and_commit t1"]


def test_leftovers_are_aborted_except_what_the_checkpoint_names() -> None:
    sink = JournalSink()
    writer = sink.create_writer(CONTEXT)
    writer.open()
    items: list[bytes] = []
    for checkpoint in (1, 2):
        writer.write("a", None)
        items += writer.prepare_commit(checkpoint)
    JOURNAL.clear()

    sink.create_committer().abort_leftovers("job", "sink", 6, [items[1]])

    assert JOURNAL == ["recover_and_abort t1", "recover_and_abort t9"]


def test_two_writers_of_one_sink_do_not_share_what_open_made() -> None:
    sink = JournalSink()
    writers = [sink.create_writer(WriterContext("job", "sink", s, 2, 1)) for s in range(2)]
    for writer in writers:
        writer.open()
        writer.write("a", None)

    assert JOURNAL.count("begin t1") == 2


def test_a_sink_without_transaction_type_is_refused_before_the_start() -> None:
    class Nameless(JournalSink):
        transaction_type = None  # type: ignore[assignment]

    with pytest.raises(JobDefinitionError, match=r"Nameless .* transaction_type"):
        Nameless().preflight()


class StoreSink(IdempotentSink):
    def __init__(self, store: dict[Any, Any]) -> None:
        self.store = store

    def open(self, context: WriterContext) -> None:
        self.buffer: list[tuple[Any, Any]] = []

    def key_of(self, value: Any) -> Any:
        return value[0]

    def write(self, key: Any, value: Any, timestamp: int | None) -> None:
        self.buffer.append((key, value[1]))

    def flush(self) -> None:
        self.store.update(self.buffer)
        self.buffer.clear()


def test_replayed_records_leave_an_idempotent_store_as_an_undisturbed_run_does() -> None:
    store: dict[Any, Any] = {}
    sink = StoreSink(store)
    first = sink.create_writer(CONTEXT)
    first.open()
    first.write_batch([("a", 1), ("b", 1), ("a", 2)], None)
    first.flush()
    second = sink.create_writer(CONTEXT)  # the crash lost the checkpoint: everything comes again
    second.open()
    second.write_batch([("a", 1), ("b", 1), ("a", 2), ("c", 1)], None)
    second.flush()
    second.close()

    assert store == {"a": 2, "b": 1, "c": 1}
    assert sink.guarantee is SinkGuarantee.IDEMPOTENT
    assert second.prepare_commit(1) == ()


@pytest.mark.parametrize(
    ("identifier", "parallelism", "prefix"),
    [(None, 1, ""), (None, 3, "2> "), ("out", 1, "out> "), ("out", 3, "out:2> ")],
)
def test_printed_lines_begin_as_flinks_do(
    identifier: str | None, parallelism: int, prefix: str, capsys: pytest.CaptureFixture[str]
) -> None:
    writer = PrintSink(identifier).create_writer(WriterContext("job", "print", 1, parallelism, 1))
    writer.open()
    writer.write_batch(["a", ("b", 1)], None)
    writer.write(None, 5)

    assert capsys.readouterr().out == f"{prefix}a\n{prefix}('b', 1)\n{prefix}None\n"


def test_print_goes_to_stderr_where_stdout_is_gone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdout", None)
    PrintSink("x").create_writer(WriterContext("job", "print", 0, 1, 1)).write("a", None)

    assert capsys.readouterr().err == "x> a\n"


def test_a_discarding_sink_counts() -> None:
    writer = DiscardSink().create_writer(CONTEXT)
    writer.write_batch([1, 2, 3], None)
    writer.write(4, None)

    assert writer.count == 4
