"""The write-ahead template keeps values with the checkpoint, asks for the marker first and sends in order."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import headrace
from headrace import Row
from headrace.checkpoint.handles import PreparedItem, SubtaskSnapshot
from headrace.checkpoint.metadata.model import subtask_files
from headrace.checkpoint.storage.filesystem import FileSystemCheckpointStorage
from headrace.connectors.sink import SinkGuarantee, WriterContext
from headrace.connectors.two_phase import TwoPhaseCommitSink
from headrace.connectors.write_ahead import Marker, WriteAheadSink, marker_of
from headrace.errors import CommitFailedError, CommitOutcomeUnknownError, TypeMismatchError
from headrace.operators.sink import LARGEST_INLINE_ITEM, SinkWork, commit_with_retries, payload_of

CONTEXT = WriterContext("job", "sink", 1, 3, 5)
JOURNAL: list[str] = []


@pytest.fixture(autouse=True)
def _empty_journal() -> None:
    JOURNAL.clear()


class JournalSink(WriteAheadSink):
    """Notes what it is asked to do."""

    sent: dict[str, list[Any]]
    failing: list[Exception]

    def __init__(self, *failing: Exception) -> None:
        self.sent = {}
        self.failing = list(failing)

    def open(self) -> None:
        JOURNAL.append("open")

    def send(self, values: Sequence[Any], marker: Marker) -> None:
        JOURNAL.append(f"send {len(values)} of {marker.checkpoint_id}")
        error = self.failing.pop(0) if self.failing else None
        if isinstance(error, CommitFailedError):
            raise error
        self.sent[str(marker)] = list(values)
        if error is not None:
            raise error

    def is_committed(self, marker: Marker) -> bool:
        JOURNAL.append(f"ask {marker.checkpoint_id}")
        return str(marker) in self.sent

    def close(self) -> None:
        JOURNAL.append("close")


def sealed(sink: WriteAheadSink, values: Sequence[Any], checkpoint: int = 7) -> list[bytes]:
    writer = sink.create_writer(CONTEXT)
    writer.open()
    writer.write_batch(values, None)
    return list(writer.prepare_commit(checkpoint))


def test_names_of_the_documents_are_aliases() -> None:
    assert headrace.GenericWriteAheadSink is headrace.WriteAheadSink is WriteAheadSink
    assert headrace.TwoPhaseCommitSinkFunction is headrace.TwoPhaseCommitSink is TwoPhaseCommitSink


def test_without_a_word_about_its_marker_a_write_ahead_sink_is_at_least_once() -> None:
    assert JournalSink().guarantee is SinkGuarantee.WRITE_AHEAD_UNMARKED


def test_a_writer_neither_opens_nor_sends_anything() -> None:
    sealed(JournalSink(), range(10))
    assert JOURNAL == []


def test_a_committer_opens_once_asks_first_and_sends_what_is_missing_in_order() -> None:
    sink = JournalSink()
    items = [*sealed(sink, "ab", 7), *sealed(sink, "c", 8)]
    committer = sink.create_committer()
    committer.commit(items[:1])
    committer.commit(items)
    committer.close()
    assert JOURNAL == ["open", "ask 7", "send 2 of 7", "ask 7", "ask 8", "send 1 of 8", "close"]
    assert list(sink.sent.values()) == [["a", "b"], ["c"]]


def test_a_committer_that_had_nothing_to_do_opens_nothing() -> None:
    committer = JournalSink().create_committer()
    committer.commit([])
    committer.close()
    assert JOURNAL == []


def test_after_a_lost_answer_the_marker_is_asked_and_nothing_is_sent_again() -> None:
    sink = JournalSink(CommitOutcomeUnknownError("the line went dead"))
    commit_with_retries(sink.create_committer(), sealed(sink, "ab"))
    assert JOURNAL == ["open", "ask 7", "send 2 of 7", "ask 7"]


def test_after_a_failure_it_is_sent_again() -> None:
    sink = JournalSink(CommitFailedError("no room"))
    commit_with_retries(sink.create_committer(), sealed(sink, "ab"))
    assert JOURNAL == ["open", "ask 7", "send 2 of 7", "ask 7", "send 2 of 7"]
    assert list(sink.sent.values()) == [["a", "b"]]


def test_no_two_logs_ever_have_the_same_marker() -> None:
    sink = JournalSink()
    writer = sink.create_writer(CONTEXT)
    markers = set()
    for other in (writer, writer, sink.create_writer(CONTEXT)):
        other.write(1, None)
        markers |= {str(marker_of(item)) for item in other.prepare_commit(7)}
    assert len(markers) == 3
    assert all(text.startswith("job/sink/1/7/") for text in markers)


def test_plain_values_of_every_kind_come_back_as_they_went_in() -> None:
    values = [1, "a", b"b", None, (1, [2.5]), {"k": dt.date(2024, 1, 1)}, Row(id="a", t=1.5)]
    sink = JournalSink()
    sink.create_committer().commit(sealed(sink, values))
    assert list(sink.sent.values()) == [values]
    assert type(next(iter(sink.sent.values()))[-1]) is type(values[-1])


@dataclass
class Reading:
    sensor: str
    celsius: float


class ReadingSink(JournalSink):
    record_type = Reading


def test_a_declared_record_type_comes_back_as_itself() -> None:
    values = [Reading("a", 1.5), Reading("b", 2.5)]
    sink = ReadingSink()
    sink.create_committer().commit(sealed(sink, values))
    assert list(sink.sent.values()) == [values]


def test_a_record_that_cannot_be_kept_without_pickle_is_refused_with_the_way_out() -> None:
    with pytest.raises(TypeMismatchError, match=r"JournalSink cannot keep a record .*set record_type"):
        sealed(JournalSink(), [Reading("a", 1.5)])


def test_many_values_stay_in_order() -> None:
    sink = JournalSink()
    sink.create_committer().commit(sealed(sink, range(5_432)))
    assert list(sink.sent.values()) == [list(range(5_432))]


# How a checkpoint keeps what is large.


@pytest.mark.parametrize("records", [3, 20_000])
def test_a_large_log_is_a_file_of_the_checkpoint_and_a_small_one_stands_in_its_metadata(
    tmp_path: Path, records: int
) -> None:
    (payload,) = sealed(JournalSink(), [f"record {n}" for n in range(records)])
    store = FileSystemCheckpointStorage(str(tmp_path)).file_store("job/run-000001/chk-000007/attempt-000001")
    taken = SubtaskSnapshot("sink", 0, 1, 128, prepared=(PreparedItem(7, payload),))

    snapshot = SinkWork(taken, None).finish(store)

    (item,) = snapshot.prepared
    files = list(subtask_files(snapshot))
    if len(payload) > LARGEST_INLINE_ITEM:
        assert records > 3
        assert (item.payload, [item.file]) == (b"", files)
        assert files[0].path.startswith("job/run-000001/chk-000007/")
    else:
        assert (item.payload, files) == (payload, [])
    assert payload_of(item, store) == payload
