"""What the PostgreSQL sinks refuse before anything starts, how records become rows, and what nobody gets to read."""

from __future__ import annotations

import datetime as dt
import logging
import pickle
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, NamedTuple
from uuid import UUID

import pytest
from tests.services.postgres import PASSWORD, SLOTS, Database

from headrace import Row, StreamExecutionEnvironment
from headrace.connectors.postgres import PostgresSink
from headrace.connectors.postgres.client import PostgresUnavailableError, Server
from headrace.connectors.postgres.gids import Gid
from headrace.connectors.postgres.table import Table
from headrace.connectors.sink import Sink, WriterContext
from headrace.errors import (
    CommitFailedError,
    ConfigurationError,
    HeadraceError,
    MissingDependencyError,
    TypeMismatchError,
)
from headrace.plan.explain import explain

CONTEXT = WriterContext("job", "sink", 0, 1, 1)


def written(sink: Sink, records: Sequence[Any], checkpoint: int = 1) -> list[bytes]:
    """One checkpoint, from the first record to the commit."""
    writer = sink.create_writer(CONTEXT)
    writer.open()
    writer.write_batch(records, None)
    writer.flush()
    items = list(writer.prepare_commit(checkpoint))
    writer.close()
    committer = sink.create_committer()
    if committer is not None:
        committer.commit(items)
        committer.close()
    return items


# Refused before the first side effect.


def test_a_table_that_is_not_there_is_refused_by_name(database: Database) -> None:
    with pytest.raises(ConfigurationError, match=r'"nowhere".*does not exist.*Create it with the columns a, b'):
        PostgresSink(database.url, "nowhere", ["a", "b"]).preflight()
    assert database.column("SELECT to_regclass('headrace_ledger_writers')") == [None]


def test_a_missing_column_is_refused_by_name(database: Database) -> None:
    database.run("CREATE TABLE t (a int)")
    with pytest.raises(ConfigurationError, match=r'column "b" does not exist'):
        PostgresSink.two_phase(database.url, "t", ["a", "b"]).preflight()


def test_keys_without_a_unique_index_are_refused_with_the_statement_that_makes_one(database: Database) -> None:
    database.run("CREATE TABLE t (a int, b int)")
    for sink in (
        PostgresSink(database.url, "t", ["a", "b"], keys=["a"]),
        PostgresSink.upsert(database.url, "t", ["a"], ["a"]),
    ):
        with pytest.raises(ConfigurationError, match=r"CREATE UNIQUE INDEX ON t \(a\)"):
            sink.preflight()


def test_too_few_slots_for_prepared_transactions_are_refused_with_the_number_it_takes(database: Database) -> None:
    database.run("CREATE TABLE t (a int)")
    sink = PostgresSink.two_phase(database.url, "t", ["a"])
    sink.preflight_for(SLOTS // 2, 1)
    with pytest.raises(ConfigurationError, match=rf"needs {SLOTS + 2} .*max_prepared_transactions = {SLOTS}"):
        sink.preflight_for(SLOTS // 2 + 1, 1)
    with pytest.raises(ConfigurationError, match="max_prepared_transactions"):
        sink.preflight_for(SLOTS // 3, 3)


def test_slots_in_use_by_others_do_not_count(database: Database) -> None:
    database.run("CREATE TABLE t (a int)")
    connection = Server(database.url).connect("another program")
    connection.execute("INSERT INTO t VALUES (1)")
    connection.execute("PREPARE TRANSACTION 'not ours'")
    connection.close()
    with pytest.raises(ConfigurationError, match="of which 1 are in use by others"):
        PostgresSink.two_phase(database.url, "t", ["a"]).preflight_for(SLOTS // 2, 1)


def test_a_read_only_server_is_refused(database: Database) -> None:
    database.run("CREATE TABLE t (a int)")
    url = f"{database.url}?options=-c%20default_transaction_read_only%3Don"
    with pytest.raises(ConfigurationError, match="transaction_read_only is on"):
        PostgresSink(url, "t", ["a"]).preflight()


def test_a_ledger_that_may_not_be_created_is_refused_with_the_statement_that_creates_it(database: Database) -> None:
    database.run("CREATE TABLE t (a int)")
    with pytest.raises(
        ConfigurationError, match=r"schema \"nowhere\" does not exist.*CREATE TABLE IF NOT EXISTS nowhere"
    ):
        PostgresSink(database.url, "t", ["a"], ledger="nowhere.ledger").preflight()


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda: PostgresSink("", "t", "abc"), "as a list"),
        (lambda: PostgresSink("", "t", []), "as a list"),
        (lambda: PostgresSink("", "t", ["a", "a"]), "named once"),
        (lambda: PostgresSink("", "t", ["a"], keys=["b"]), "every key is one of them"),
        (lambda: PostgresSink.upsert("", "t", ["a"], []), "needs the columns by which rows replace others"),
    ],
)
def test_impossible_columns_are_refused_where_they_are_written(make: Callable[[], Sink], complaint: str) -> None:
    with pytest.raises(ConfigurationError, match=complaint):
        make()


def test_without_the_client_library_the_error_says_how_to_get_it() -> None:
    program = (
        "import sys; sys.modules['psycopg'] = None\n"
        "from headrace.connectors.postgres import PostgresSink\n"
        "sink = PostgresSink('postgresql://h/d', 't', ['a'])\n"
        "try: sink.preflight()\n"
        "except Exception as error: print(type(error).__name__, error)"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert (
        run.stdout.strip()
        == f'{MissingDependencyError.__name__} PostgresSink needs psycopg: pip install "headrace[postgres]"'
    )


# Records and rows.


class Point(NamedTuple):
    y: int
    x: int


@dataclass
class Place:
    x: int
    y: int


@pytest.mark.parametrize(
    "record", [{"y": 2, "x": 1, "z": 0}, Row(y=2, x=1), Point(2, 1), Place(1, 2), (1, 2), [1, 2], Row(1, 2)], ids=repr
)
def test_a_record_with_names_goes_by_name_and_one_without_by_position(record: Any) -> None:
    assert Table("t", ["x", "y"]).row_of(record) == (1, 2)


def test_any_other_record_is_the_value_of_the_only_column() -> None:
    assert Table("t", ["x"]).row_of("abc") == ("abc",)


@pytest.mark.parametrize("record", [{"x": 1}, Row(x=1), (1, 2, 3), 5], ids=repr)
def test_a_record_that_does_not_fit_the_columns_is_named(record: Any) -> None:
    with pytest.raises(TypeMismatchError, match="x, y"):
        Table("t", ["x", "y"]).row_of(record)


VALUES: dict[str, list[Any]] = {
    "text": ["", "tab\tline\nback\\slash", "'; DROP TABLE t; --", "\\N", "ü€😀", None],
    "bigint": [0, -(2**63), 2**63 - 1],
    "float8": [0.1, -1e300],
    "numeric": [Decimal("12345678901234567890.123456789")],
    "boolean": [True, False],
    "bytea": [b"\0\xff\\", b""],
    "date": [dt.date(2024, 2, 29)],
    "timestamptz": [dt.datetime(2024, 2, 29, 1, 2, 3, 456, tzinfo=dt.UTC)],
    "interval": [dt.timedelta(days=-3, seconds=7)],
    "uuid": [UUID("12345678-1234-5678-1234-567812345678")],
    "bigint[]": [[1, 2, 3], []],
    "jsonb": [{"a": [1, None, {"b": "c"}]}, [1, "x"], "text", 3],
}


@pytest.mark.parametrize("kind", ["ledger", "two-phase", "upsert", "keys"])
@pytest.mark.parametrize("column", VALUES)
def test_values_of_every_type_come_out_as_they_went_in(database: Database, column: str, kind: str) -> None:
    database.run(f"CREATE TABLE t (i int PRIMARY KEY, v {column})")
    columns = ["i", "v"]
    make: dict[str, Callable[[], Sink]] = {
        "ledger": lambda: PostgresSink(database.url, "t", columns),
        "two-phase": lambda: PostgresSink.two_phase(database.url, "t", columns),
        "upsert": lambda: PostgresSink.upsert(database.url, "t", columns, ["i"]),
        "keys": lambda: PostgresSink(database.url, "t", columns, keys=["i"]),
    }
    sink = make[kind]()
    sink.preflight()

    written(sink, list(enumerate(VALUES[column])))

    assert database.column("SELECT v FROM t ORDER BY i") == VALUES[column]


def test_names_with_metacharacters_are_quoted(database: Database) -> None:
    database.run('CREATE SCHEMA "s; --"; CREATE TABLE "s; --"."t""x" ("select" int PRIMARY KEY, "a %s {}" text)')
    table, columns = 's; --.t"x', ["select", "a %s {}"]
    for n, sink in enumerate(
        (
            PostgresSink(database.url, table, columns, ledger='s; --.led"ger'),
            PostgresSink(database.url, table, columns, keys=["select"]),
            PostgresSink.upsert(database.url, table, columns, ["select"]),
            PostgresSink.two_phase(database.url, table, columns),
        )
    ):
        sink.preflight()
        written(sink, [(n, "x")])
    assert database.column('SELECT "select" FROM "s; --"."t""x" ORDER BY 1') == [0, 1, 2, 3]


@pytest.mark.parametrize("idempotent", [True, False])
def test_the_last_of_several_records_with_one_key_wins(database: Database, idempotent: bool) -> None:
    database.run("CREATE TABLE t (a int PRIMARY KEY, b text)")
    sink: Sink = PostgresSink(database.url, "t", ["a", "b"], keys=["a"])
    if idempotent:
        sink = PostgresSink.upsert(database.url, "t", ["a", "b"], ["a"], flush_rows=2)
    written(sink if idempotent else checked(sink), [(1, "old"), (1, "new"), (2, "x"), (1, "newest"), (2, "y")])
    assert database.run("SELECT a, b FROM t ORDER BY a") == [(1, "newest"), (2, "y")]


def checked(sink: Sink) -> Sink:
    sink.preflight()
    return sink


def test_a_ledger_that_several_jobs_create_at_once_is_there_for_all(database: Database) -> None:
    """Thirty rounds: what the losers of one race are told depends on how far the winner was."""
    database.run("CREATE TABLE t (a int)")
    jobs = 6
    together = threading.Barrier(jobs)

    def begin(round_number: int) -> None:
        sink = PostgresSink(database.url, "t", ["a"], ledger=f"ledger_{round_number}")
        together.wait(60)
        sink.preflight()

    with ThreadPoolExecutor(jobs) as pool:
        for round_number in range(30):
            for begun in [pool.submit(begin, round_number) for _ in range(jobs)]:
                begun.result(60)


def test_gids_are_short_readable_and_never_confused() -> None:
    gid = Gid.of("alerts", "sink:1", 3, 17, 2, "abc-1")
    assert str(gid) == "headrace:alerts:sink%3A1:3:17:2:abc-1"
    assert Gid.parse(str(gid)) == gid
    assert gid.belongs_to("alerts", "sink:1")
    assert not gid.belongs_to("alert")
    long = [Gid.of("j" * 200 + end, "ü" * 300, 10**6, 10**12, 10**6, "f" * 12 + "-999999") for end in "ab"]
    assert all(len(str(g)) < 200 for g in long)
    assert long[0].job != long[1].job
    assert [Gid.parse(text) for text in ("headrace:x", "other:a:b:1:2:3:t", "headrace:a:b:x:2:3:t")] == [None] * 3


# Secrets.


@pytest.mark.parametrize(
    ("url", "secrets"),
    [
        ("postgresql://ada:tops3cret@db/shop", ["tops3cret"]),
        ("postgres://ada:tops3cret@db:5432,db2:5433/shop?sslmode=require", ["tops3cret"]),
        ("postgresql://db/shop?user=ada&password=tops3cret", ["tops3cret"]),
        ("host=db dbname=shop user=ada password=tops3cret", ["tops3cret"]),
        ("host=db password='tops3cret' sslpassword = s3cond", ["tops3cret", "s3cond"]),
        ("postgresql://ada:top%73%33cret@db/shop", ["top%73%33cret", "tops3cret"]),
        ("postgresql://ada:top@s3cret:x@db/shop", ["top@s3cret:x", "s3cret"]),
    ],
)
def test_a_password_is_in_no_text_form_of_the_server(url: str, secrets: list[str]) -> None:
    server = Server(url)
    said = server.redact(f"{url} was refused: {secrets[0]} is wrong")
    for text in (server.shown, repr(server), said):
        assert [secret for secret in secrets if secret in text] == []
        assert "***" in text
    assert "db" in server.shown


def everything_told(error: BaseException) -> str:
    return "".join(traceback.format_exception(error)) + repr(error)


def test_a_password_is_in_no_error_checkpoint_or_explanation(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    database.run("CREATE TABLE t (a int PRIMARY KEY)")
    url = database.url
    assert PASSWORD in url
    sinks: list[Sink] = [
        checked(PostgresSink(url, "t", ["a"])),
        PostgresSink.upsert(url, "t", ["a"], ["a"]),
        PostgresSink.two_phase(url, "t", ["a"]),
    ]
    told = ""
    for number, sink in enumerate(sinks):
        told += f"{sink!r} {sink.describe()} {vars(sink)}"
        told += repr(written(sink, [number]))
        env = StreamExecutionEnvironment.get_execution_environment()
        env.from_collection([1]).sink_to(sink)
        told += explain(*env.build("x"))
        assert PASSWORD.encode() in pickle.dumps(sink)  # it travels to the tasks, and nowhere else
    database.run("INSERT INTO t VALUES (7)")
    for sink in sinks[::2]:
        with pytest.raises(HeadraceError) as refused:
            written(sink, [7])
        told += everything_told(refused.value)
    away = database.through(1)
    for sink in (PostgresSink(away, "t", ["a"]), PostgresSink.upsert(away, "t", ["a"], ["a"])):
        with pytest.raises(HeadraceError) as unreachable:
            sink.preflight()
        told += everything_told(unreachable.value)
    with pytest.raises(CommitFailedError) as failed:
        written(PostgresSink(away, "t", ["a"]), [1])
    told += everything_told(failed.value)
    for wrong in (
        f"postgresql://ada:{PASSWORD}@[::1",
        f"host=x password={PASSWORD} nonsense",
        f"password={PASSWORD} a=b",
    ):
        with pytest.raises(PostgresUnavailableError) as malformed:
            Server(wrong).connect("PostgresSink")
        told += everything_told(malformed.value)
    assert PASSWORD not in told
    assert PASSWORD not in caplog.text
    assert "***" in told
