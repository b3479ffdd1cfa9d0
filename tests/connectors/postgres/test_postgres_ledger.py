"""The ledger forgets nothing that was committed, stays small, and honours what older versions wrote."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest
from tests.services.postgres import Database

from headrace.checkpoint.handles import HistoryPoint
from headrace.connectors.postgres import PostgresSink
from headrace.connectors.postgres.two_phase import PostgresTransaction
from headrace.connectors.sink import Committer, Sink, WriterContext
from headrace.connectors.write_ahead import Marker, marker_of

OLD_TABLE = (
    "CREATE TABLE headrace_ledger (job text NOT NULL, sink text NOT NULL, shard integer NOT NULL, "
    "checkpoint_id bigint NOT NULL, token text NOT NULL, attempt bigint NOT NULL, records bigint NOT NULL, "
    "committed_at timestamptz NOT NULL DEFAULT now(), PRIMARY KEY (job, sink, shard, checkpoint_id, token))"
)
NUMBERS = "SELECT n FROM numbers ORDER BY n"
HISTORY = "0a1b2c3d4e5f"

NewSink = Callable[[], Sink]


@pytest.fixture(params=["ledger", "two-phase"])
def new_sink(request: pytest.FixtureRequest, database: Database) -> NewSink:
    database.run("CREATE TABLE numbers (n bigint)")

    def make() -> Sink:
        kind = PostgresSink if request.param == "ledger" else PostgresSink.two_phase
        sink: Sink = kind(database.url, "numbers", ["n"])
        sink.preflight()
        return sink

    return make


def committer_of(sink: Sink) -> Committer:
    committer = sink.create_committer()
    assert committer is not None
    return committer


def written(sink: Sink, checkpoints: list[int], attempt: int = 1, history: str = HISTORY) -> list[bytes]:
    """One writer: the item of each checkpoint, which holds its number. All of them are committed."""
    writer = sink.create_writer(WriterContext("job", "sink", 0, 1, attempt, history))
    writer.open()
    committer = committer_of(sink)
    items: list[bytes] = []
    for checkpoint in checkpoints:
        writer.write(checkpoint, None)
        writer.flush()
        items += writer.prepare_commit(checkpoint)
        committer.commit(items[-1:])
    writer.close()
    committer.close()
    return items


def marker_in(sink: Sink, item: bytes) -> Marker:
    if isinstance(sink, PostgresSink):
        return marker_of(item)
    (txn,) = committer_of(sink).transactions([item])  # type: ignore[attr-defined]
    assert isinstance(txn, PostgresTransaction)
    assert txn.marker is not None
    return txn.marker


def test_a_savepoint_of_long_ago_is_still_known_to_be_committed(new_sink: NewSink, database: Database) -> None:
    sink = new_sink()
    items = written(sink, [1, 2, 50_000, 50_001])
    written(sink, [1, 9_000_000], attempt=2)

    committer = committer_of(sink)
    for item in items:
        committer.commit([item])
    committer.close()

    assert database.column(NUMBERS) == [1, 1, 2, 50_000, 50_001, 9_000_000]


def test_the_ledger_has_one_row_for_each_writer_however_many_checkpoints_it_commits(
    new_sink: NewSink, database: Database
) -> None:
    sink = new_sink()
    for attempt in (1, 2, 3):
        written(sink, list(range(1, 40)), attempt)
    rows = "SELECT attempt, sequence, checkpoint_id, records FROM headrace_ledger_writers ORDER BY attempt"
    assert database.run(rows) == [(attempt, 39, 39, 39) for attempt in (1, 2, 3)]


def test_a_history_knows_nothing_of_another_s_commits(new_sink: NewSink, database: Database) -> None:
    sink = new_sink()
    written(sink, [1, 900])
    written(sink, [1, 2], history="f5e4d3c2b1a0")
    assert database.column(NUMBERS) == [1, 1, 2, 900]
    committer = committer_of(sink)
    assert committer.committed_since("job", "sink", HistoryPoint("f5e4d3c2b1a0", 1, 2)) == []
    (newer,) = committer.committed_since("job", "sink", HistoryPoint("f5e4d3c2b1a0", 1, 1))
    committer.close()
    assert (newer.attempt, newer.checkpoint_id) == (1, 2)
    assert "table numbers" in newer.what


def test_output_in_another_table_does_not_stand_in_the_way_of_a_rewind(new_sink: NewSink, database: Database) -> None:
    written(new_sink(), [1, 2])
    database.run("CREATE TABLE others (n bigint)")
    committer = committer_of(PostgresSink(database.url, "others", ["n"]))
    found = committer.committed_since("job", "sink", HistoryPoint(HISTORY, 1, 1))
    committer.close()
    assert list(found) == []


def test_rows_of_an_older_version_still_say_what_was_committed(new_sink: NewSink, database: Database) -> None:
    database.run(OLD_TABLE)
    sink = new_sink()
    writer = sink.create_writer(WriterContext("job", "sink", 0, 1, 3, HISTORY))
    writer.open()
    writer.write(1, None)
    writer.flush()
    (item,) = writer.prepare_commit(7)
    writer.close()
    # As the older version leaves it behind: the output is there, and a row with the whole token.
    for gid in database.prepared:
        database.run(f"ROLLBACK PREPARED '{gid}'")
    token = marker_in(sink, item).token
    database.run("INSERT INTO numbers VALUES (1)")
    database.run(
        f"INSERT INTO headrace_ledger (job, sink, shard, checkpoint_id, token, attempt, records) "
        f"VALUES ('job', 'sink', 0, 7, '{token}', 3, 1)"
    )

    committer = committer_of(sink)
    committer.commit([item])
    newer = committer.committed_since("job", "sink", HistoryPoint(HISTORY, 3, 6))
    committer.close()

    assert database.column(NUMBERS) == [1]
    assert [(output.attempt, output.checkpoint_id) for output in newer] == [(3, 7)]
    written(sink, [8], attempt=4)
    assert database.column("SELECT count(*) FROM headrace_ledger") == [1], "the old table is read, not written"


def test_an_old_ledger_under_prepared_transactions_stops_no_start(database: Database) -> None:
    """A prepared transaction of the older version holds locks on the old table until the job has recovered."""
    database.run("CREATE TABLE numbers (n bigint)")
    database.run(OLD_TABLE)
    with psycopg.connect(database.url) as connection:
        connection.execute("INSERT INTO headrace_ledger VALUES ('job', 'sink', 0, 7, 'x.y-1', 1, 1)")
        connection.execute("INSERT INTO numbers VALUES (1)")
        connection.execute("PREPARE TRANSACTION 'headrace:job:sink:0:7:1:x.y-1'")
        connection.rollback()
    PostgresSink.two_phase(database.url, "numbers", ["n"]).preflight()
    assert database.prepared == ["headrace:job:sink:0:7:1:x.y-1"]


def test_a_marker_tells_history_writer_and_sequence() -> None:
    marker = Marker("job", "sink", 0, 7, 1, "0a1b.feed-12")
    assert (marker.history, marker.writer, marker.sequence) == ("0a1b", "feed", 12)
    older = Marker("job", "sink", 0, 7, 1, "feed-3")
    assert (older.history, older.writer, older.sequence) == ("", "feed", 3)
    assert Marker("job", "sink", 0, 7, 1, "of somebody").sequence == 0
