"""Whole jobs into PostgreSQL on a real Spark, with workers killed between the barrier and the commit."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
from ledger import Ledger, ledger_stream
from swept_sinks import AROUND_THE_COMMIT, WRITERS, run_through
from tests.services.postgres import Database, database, postgres_server

from headrace import FileSink, WatermarkStrategy
from headrace.connectors.files.staging import FileTransaction
from headrace.connectors.postgres import PostgresSink
from headrace.connectors.sink import Sink
from headrace.errors import CommitFailedError
from headrace.testing import CHECKPOINT, CRASH, TestSource, WaitUntil

__all__ = ["database", "postgres_server"]

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]

RULED_OUT = "INSERT INTO headrace_ledger_writers VALUES ('job', 'sink', 'h', 0, 'w', 1, 1, 1, 5, 'lines')"


class Poller:
    """Looks at the table all the time: in every snapshot, what the ledger says is there is there, and nothing else.

    So output of a subtask for a checkpoint is seen as a whole or not at all, whoever dies when.
    """

    def __init__(self, url: str, *, transactional: bool) -> None:
        self._url = url
        self._transactional = transactional
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.looks = 0
        self.problems: list[str] = []

    def __enter__(self) -> Poller:
        self._thread.start()
        return self

    def __exit__(self, *about: object) -> None:
        self._over.set()
        self._thread.join(60)

    def _run(self) -> None:
        while not self._over.wait(0.05):
            self.look()

    def look(self) -> None:
        import psycopg

        try:
            with psycopg.connect(self._url) as connection:
                connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
                rows = connection.execute("SELECT count(*) FROM lines").fetchone()
                if self._transactional:
                    noted = connection.execute(
                        "SELECT coalesce(sum(records), 0) FROM headrace_ledger_writers"
                    ).fetchone()
                    if rows != noted:
                        self.problems.append(f"{rows} rows are seen, and {noted} noted")
        except psycopg.Error as error:
            if "headrace_ledger_writers" not in str(error):  # not made yet
                self.problems.append(str(error))
        self.looks += 1


def as_json(line: Any) -> tuple[Any]:
    return (list(line),)


def as_long_row(line: Any) -> tuple[Any, ...]:
    return (list(line), "x" * 2_000)


def sink_of(kind: str, url: str) -> Sink:
    if kind == "two-phase":
        return PostgresSink.two_phase(url, "lines", ["line"], to_row=as_json)
    if kind == "upsert":
        return PostgresSink.upsert(url, "lines", ["line"], ["line"], to_row=as_json)
    return PostgresSink(url, "lines", ["line"], to_row=as_json)


@pytest.mark.parametrize("kind", ["ledger", "two-phase", "upsert"])
def test_the_table_is_exact_through_kills_before_and_after_every_step_of_the_commit(
    bench: Any, faults: Any, start: Any, database: Database, kind: str
) -> None:
    database.run(f"CREATE TABLE lines (line jsonb {'PRIMARY KEY' if kind == 'upsert' else ''})")
    # An idempotent sink has nothing to commit.
    faults.plan(*(fault for fault in AROUND_THE_COMMIT if kind != "upsert" or "commit" not in fault))

    with Poller(database.url, transactional=kind != "upsert") as poller:
        ledger = run_through(faults, bench, start, sink_of(kind, database.url))

    assert poller.problems == []
    assert poller.looks > 10
    assert ledger.problems(database.column("SELECT line FROM lines")) == []
    assert database.prepared == []
    if kind != "upsert":
        shards = database.column("SELECT DISTINCT shard FROM headrace_ledger_writers ORDER BY shard")
        assert shards == list(range(WRITERS))


def test_the_poller_notices_rows_without_their_ledger_row_and_the_reverse(database: Database) -> None:
    database.run("CREATE TABLE lines (line jsonb)")
    sink_of("ledger", database.url).preflight()
    for wrong in ("INSERT INTO lines VALUES ('[1]')", "DELETE FROM lines", RULED_OUT):
        database.run(wrong)
        with Poller(database.url, transactional=True) as poller:
            poller.look()
        assert bool(poller.problems) == (wrong != "DELETE FROM lines"), poller.problems


class StubbornSink(FileSink):
    """Files whose commit fails three times, each time with nothing done."""

    mark = ""

    def commit(self, txn: FileTransaction) -> None:
        for attempt in range(3):
            try:
                with open(f"{self.mark}-{attempt}", "x"):
                    raise CommitFailedError("the folder was away for a moment")
            except FileExistsError:
                continue
        super().commit(txn)


def test_two_sinks_hold_the_same_records_though_one_fails_to_commit_three_times(
    bench: Any, faults: Any, start: Any, database: Database
) -> None:
    """The rows are long, so that what is prepared lies in files of the checkpoint."""
    database.run("CREATE TABLE lines (line jsonb, rest text)")
    faults.plan("before_sink_commit=kill@3#1.0")
    ledger = Ledger(length=200, rate=2_000).holding_for(faults)
    env = bench.env(interval=60)
    lines = ledger_stream(env, ledger)
    lines.sink_to(PostgresSink(database.url, "lines", ["line", "rest"], to_row=as_long_row)).uid("table")
    files = StubbornSink.json_lines(bench.directory / "out")
    files.mark = str(bench.directory / "refused")
    lines.map(list).sink_to(files).uid("files")

    start(env).finish()

    written = [line for f in Path(bench.directory, "out").glob("part-*") for line in f.read_text().splitlines()]
    assert ledger.problems(database.column("SELECT line FROM lines")) == []
    assert database.column("SELECT DISTINCT rest FROM lines") == ["x" * 2_000]
    assert ledger.problems(json.loads(line) for line in written) == []
    assert len(list(bench.directory.glob("refused-*"))) == 3
    assert len(faults.happened) == faults.planned


HISTORY = """
CREATE TABLE totals (name text PRIMARY KEY, total bigint);
CREATE TABLE history (step bigserial, total bigint);
CREATE FUNCTION remember() RETURNS trigger LANGUAGE plpgsql AS
  'BEGIN INSERT INTO history (total) VALUES (NEW.total); RETURN NEW; END';
CREATE TRIGGER remembering AFTER INSERT OR UPDATE ON totals FOR EACH ROW EXECUTE FUNCTION remember();
"""


class Seen:
    """Whether a total stands in the table; asked by the source, in a worker."""

    def __init__(self, url: str, total: int) -> None:
        self._url = url
        self._total = total

    def __call__(self) -> bool:
        import psycopg

        with psycopg.connect(self._url) as connection:
            query = "SELECT count(*) FROM history WHERE total = %s"
            return bool((connection.execute(query, [self._total]).fetchone() or [0])[0])


def totals_seen(bench: Any, database: Database, sink: Sink, script: list[Any]) -> list[int]:
    """Every total that a reader could ever see, in order, of a running sum over the script."""
    env = bench.env(parallelism=1, interval=500)
    # Or a checkpoint between the last value before the crash and the crash, and nothing would come again.
    env.get_checkpoint_config().set_min_pause_between_checkpoints(20_000)
    numbers = env.from_source(TestSource(script), WatermarkStrategy.no_watermarks(), "numbers")
    numbers.key_by(lambda n: "sum").reduce(lambda a, b: a + b).map(lambda total: ("sum", total)).sink_to(sink)
    result = env.execute("totals")
    assert result.restarts == 1
    return database.column("SELECT total FROM history ORDER BY step")


def test_idempotent_output_runs_back_and_forward_again_during_recovery(bench: Any, database: Database) -> None:
    database.run(HISTORY)
    sink = PostgresSink.upsert(database.url, "totals", ["name", "total"], ["name"], flush_rows=1)
    script = [1, 2, CHECKPOINT, 3, 4, WaitUntil(Seen(database.url, 10)), CRASH, 5]

    seen = totals_seen(bench, database, sink, script)

    assert seen == [1, 3, 6, 10, 6, 10, 15]
    assert database.run("SELECT * FROM totals") == [("sum", 15)]


def test_the_ledger_never_shows_a_value_running_back(bench: Any, database: Database) -> None:
    database.run(HISTORY)
    sink = PostgresSink(database.url, "totals", ["name", "total"], keys=["name"])

    seen = totals_seen(bench, database, sink, [1, 2, CHECKPOINT, 3, 4, CRASH, 5])

    assert seen == sorted(set(seen))
    assert database.run("SELECT * FROM totals") == [("sum", 15)]
