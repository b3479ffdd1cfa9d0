"""Whatever dies between the barrier and the commit, in the job, on the wire or on the server: each row is there
once."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from tests.connectors.postgres.dying_writer import RECORDS, sink_of
from tests.connectors.postgres.lossy_proxy import LossyProxy
from tests.services.postgres import Database

from headrace.connectors.postgres import PostgresSink
from headrace.connectors.postgres.client import Server
from headrace.connectors.sink import Sink, WriterContext
from headrace.connectors.write_ahead import marker_of
from headrace.errors import CommitFailedError, CommitOutcomeUnknownError, OutputLostError
from headrace.operators.sink import commit_with_retries

TABLES = {"ledger": "n bigint", "two-phase": "n bigint", "upsert": "n bigint PRIMARY KEY"}
MOMENTS = {
    "ledger": ["in the middle", "prepared", "published", "claimed", "written", "committed"],
    "two-phase": ["in the middle", "before PREPARE", "after PREPARE", "prepared", "published", "committed"],
    "upsert": ["in the middle", "written", "committed", "published"],
}
NUMBERS = "SELECT n FROM numbers ORDER BY n"
ALL = list(range(RECORDS))


@pytest.fixture
def numbers(database: Database) -> Callable[[str], Sink]:
    """A sink of that kind with its table."""

    def make(kind: str) -> Sink:
        database.run(f"CREATE TABLE numbers ({TABLES[kind]})")
        sink = sink_of(kind, database.url)
        sink.preflight()
        return sink

    return make


def prepared(sink: Sink, attempt: int = 1, values: list[int] = ALL) -> list[bytes]:
    """What a task that wrote these numbers leaves in checkpoint 7."""
    writer = sink.create_writer(WriterContext("job", "sink", 0, 1, attempt))
    writer.open()
    writer.write_batch(values, None)
    writer.flush()
    items = list(writer.prepare_commit(7))
    writer.close()
    return items


def recover(sink: Sink, attempt: int, items: list[bytes]) -> None:
    """What the driver does before a new attempt."""
    committer = sink.create_committer()
    if committer is not None:
        commit_with_retries(committer, items)
        committer.abort_leftovers("job", "sink", attempt, items)
        committer.close()


@pytest.mark.parametrize(("kind", "moment"), [(kind, moment) for kind, many in MOMENTS.items() for moment in many])
def test_a_process_killed_at_any_moment_neither_loses_nor_repeats_a_row(
    numbers: Callable[[str], Sink], database: Database, tmp_path: Path, kind: str, moment: str
) -> None:
    sink = numbers(kind)
    file = tmp_path / "checkpoint"
    program = [sys.executable, str(Path(__file__).with_name("dying_writer.py")), database.url, kind, moment, str(file)]

    died = subprocess.run(program, capture_output=True, text=True, timeout=120, check=False)

    assert died.returncode == -signal.SIGKILL, died.stderr
    published: list[bytes] = msgspec.msgpack.decode(file.read_bytes()) if file.exists() else []
    seen = database.column(NUMBERS)
    if kind != "upsert":
        assert seen == (ALL if moment == "committed" else [])
    recover(sink, 2, published)
    assert database.prepared == []
    if not file.exists() or kind == "upsert":
        # The source goes back, and another task writes the same numbers.
        recover(sink, 2, prepared(sink, attempt=2))
    assert database.column(NUMBERS) == ALL
    recover(sink, 3, published)
    assert database.column(NUMBERS) == ALL


@pytest.mark.parametrize("kind", ["ledger", "two-phase"])
@pytest.mark.parametrize("landed", [True, False], ids=["landed", "lost"])
def test_a_commit_answer_lost_on_the_wire_is_settled_by_the_ledger(
    numbers: Callable[[str], Sink], database: Database, kind: str, landed: bool
) -> None:
    items = prepared(numbers(kind))
    trigger = b"COMMIT" if kind == "ledger" else b"COMMIT PREPARED"
    with LossyProxy(database.server.port, trigger, forward=landed) as proxy:
        committer = sink_of(kind, database.through(proxy.port)).create_committer()
        assert committer is not None

        with pytest.raises(CommitOutcomeUnknownError, match="may have got through"):
            committer.commit(items)
        assert database.column(NUMBERS) == (ALL if landed else [])

        committer.commit(items)
        committer.commit(items)
        committer.close()
    assert proxy.cuts >= 1
    assert database.column(NUMBERS) == ALL
    assert database.prepared == []


@pytest.mark.parametrize("kind", ["ledger", "two-phase"])
def test_prepared_output_survives_a_crash_of_the_server(
    numbers: Callable[[str], Sink], database: Database, kind: str
) -> None:
    sink = numbers(kind)
    items = prepared(sink)
    committer = sink.create_committer()
    assert committer is not None
    committer.commit(prepared(sink, values=[100]))

    database.server.restart()

    # The connection from before is dead, which the first try notices; the second makes a new one.
    commit_with_retries(committer, items)
    committer.close()
    assert database.column(NUMBERS) == [*ALL, 100]


@pytest.mark.parametrize("kind", ["ledger", "two-phase"])
def test_a_server_that_is_down_delays_output_and_loses_none(
    numbers: Callable[[str], Sink], database: Database, kind: str
) -> None:
    sink = numbers(kind)
    items = prepared(sink)
    committer = sink.create_committer()
    assert committer is not None
    database.server.stop()
    try:
        with pytest.raises(CommitFailedError, match="cannot connect"):
            committer.commit(items)
    finally:
        database.server.start()
    committer.commit(items)
    committer.close()
    assert database.column(NUMBERS) == ALL


def test_a_task_whose_server_goes_away_in_the_middle_of_a_transaction_fails_and_is_written_again(
    numbers: Callable[[str], Sink], database: Database
) -> None:
    sink = numbers("two-phase")
    writer = sink.create_writer(WriterContext("job", "sink", 0, 1, 1))
    writer.open()
    writer.write(1, None)

    database.server.restart()

    with pytest.raises(Exception, match="could not prepare transaction"):
        writer.prepare_commit(1)
    writer.close()
    recover(sink, 2, [])
    assert database.column(NUMBERS) == []
    recover(sink, 3, prepared(sink, attempt=2))
    assert database.column(NUMBERS) == ALL


def test_an_upsert_comes_through_a_restart_of_the_server(numbers: Callable[[str], Sink], database: Database) -> None:
    writer = numbers("upsert").create_writer(WriterContext("job", "sink", 0, 1, 1))
    writer.open()
    writer.write_batch([1, 2, 3], None)

    database.server.restart()

    writer.write_batch([3, 4], None)
    writer.flush()
    writer.close()
    assert database.column(NUMBERS) == [1, 2, 3, 4]


def test_a_transaction_that_somebody_rolled_back_stops_the_job_and_names_the_checkpoint(
    numbers: Callable[[str], Sink], database: Database
) -> None:
    sink = numbers("two-phase")
    items = prepared(sink)
    (gid,) = database.prepared
    database.run(f"ROLLBACK PREPARED '{gid}'")
    committer = sink.create_committer()
    assert committer is not None

    with pytest.raises(OutputLostError, match=r"Checkpoint 7 had 5 records prepared for table numbers.*rolled it back"):
        committer.commit(items)
    committer.close()


@pytest.mark.parametrize("first_commits", [True, False])
def test_of_two_processes_that_send_one_log_at_the_same_time_one_gets_through(
    numbers: Callable[[str], Sink], database: Database, first_commits: bool
) -> None:
    sink = numbers("ledger")
    assert isinstance(sink, PostgresSink)
    (item,) = prepared(sink)
    zombie = Server(database.url).connect("zombie")
    assert sink.ledger.claim(zombie, marker_of(item), RECORDS)
    sink.table.write(zombie, [(n,) for n in ALL])
    committer = sink.create_committer()
    assert committer is not None
    second = threading.Thread(target=committer.commit, args=([item],))

    second.start()
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    while second.is_alive() and database.column(waiting) == [0]:
        pass
    zombie.commit() if first_commits else zombie.rollback()
    second.join(60)

    assert not second.is_alive()
    committer.close()
    zombie.close()
    assert database.column(NUMBERS) == ALL


def test_rows_that_the_table_refuses_are_kept_and_written_once_it_takes_them(
    numbers: Callable[[str], Sink], database: Database
) -> None:
    sink = numbers("ledger")
    database.run("ALTER TABLE numbers ADD CONSTRAINT small CHECK (n < 3)")
    items = prepared(sink)
    committer = sink.create_committer()
    assert committer is not None

    with pytest.raises(CommitFailedError, match=r'checkpoint 7, subtask 0, to table numbers.*"small".*nothing is lost'):
        committer.commit(items)
    assert database.column(NUMBERS) == []
    assert database.column("SELECT records FROM headrace_ledger_writers") == []

    database.run("ALTER TABLE numbers DROP CONSTRAINT small")
    committer.commit(items)
    committer.close()
    assert database.column(NUMBERS) == ALL
    assert database.column("SELECT records FROM headrace_ledger_writers") == [RECORDS]


def test_a_constraint_that_is_checked_at_the_commit_is_a_failure_and_no_mystery(
    numbers: Callable[[str], Sink], database: Database
) -> None:
    sink = numbers("ledger")
    database.run("ALTER TABLE numbers ADD CONSTRAINT once UNIQUE (n) DEFERRABLE INITIALLY DEFERRED")
    items = prepared(sink, values=[1, 1])
    committer = sink.create_committer()
    assert committer is not None

    with pytest.raises(CommitFailedError, match="once"):
        committer.commit(items)
    committer.close()
    assert database.column(NUMBERS) == []


def test_no_transaction_is_left_open_after_many_failing_attempts(
    numbers: Callable[[str], Sink], database: Database
) -> None:
    sink = numbers("two-phase")
    for attempt in range(1, 30):
        recover(sink, attempt, [])
        prepared(sink, attempt)
        assert len(database.prepared) == 1
    recover(sink, 30, [])
    assert database.prepared == []
    others = (
        "SELECT count(*) FROM pg_stat_activity "
        "WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
    )
    # A server's process ends a moment after its client has hung up.
    deadline = time.monotonic() + 60
    while (left := database.column(others)) != [0]:
        assert time.monotonic() < deadline, f"{left} connections are still open"
