"""The whole process is killed between a Spark query and a Spark writer, at steps on either side; then it goes on."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from programs import HERE, Program
from tests.services.kafka import CACHE
from tests.services.postgres import Database, database, postgres_server

from headrace.testing.maven import fetch

__all__ = ["database", "postgres_server"]

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]

FILES, ROWS, KEYS = 5, 400, 7
JDBC_DRIVER = "org.postgresql:postgresql:42.7.4"
FAULTS = ("spool_stored=kill@2", "spool_published=kill@1", "before_hand_over=kill@1", "output_handed_over=kill@1")


@pytest.fixture
def files(tmp_path: Path) -> Path:
    place = tmp_path / "in"
    place.mkdir()
    for n in range(FILES):
        ids = range(n * ROWS, (n + 1) * ROWS)
        table = pa.table({"id": pa.array(ids, pa.int64()), "key": pa.array([i % KEYS for i in ids], pa.int64())})
        pq.write_table(table, place / f"part-{n}.parquet")
        os.utime(place / f"part-{n}.parquet", (1_700_000_000 + n, 1_700_000_000 + n))
    return place


def killed_until_it_ends(programs: list[Program], settings: dict[str, Any], faults: Any) -> None:
    codes: list[int] = []
    while 0 not in codes:
        assert len(codes) <= faults.planned, programs[-1].tail()
        programs.append(Program(settings, faults.environment(), HERE / "dataframe_program.py"))
        codes.append(programs[-1].finish(250))
        assert codes[-1] in (0, -9), programs[-1].tail()
    assert len(faults.happened) == faults.planned == codes.count(-9)


def problems(rows: list[tuple[Any, ...]]) -> list[str]:
    """What is wrong with the output: every record once, every count of every key once."""
    wrong = [f"record {i} came {n} times" for i, n in Counter(row[0] for row in rows).items() if n > 1]
    missing = set(range(FILES * ROWS)) - {row[0] for row in rows}
    wrong += [f"{len(missing)} records are missing"] if missing else []
    for key in range(KEYS):
        numbers = sorted(nth for _, k, nth in rows if k == key)
        if numbers != list(range(1, len(numbers) + 1)):
            wrong.append(f"key {key} was not counted from 1 to {len(numbers)}")
    return wrong


def test_killed_right_behind_the_query_and_right_behind_the_writer_every_row_is_in_the_table_once(
    tmp_path: Path, files: Path, faults: Any, programs: list[Program]
) -> None:
    faults.plan("spool_published=kill@2", "output_handed_over=kill@1")
    killed_until_it_ends(programs, {"directory": str(tmp_path / "job"), "input": str(files)}, faults)
    tables = [pq.read_table(place) for place in (tmp_path / "job" / "out").iterdir()]
    rows = [tuple(row.values()) for table in tables for row in table.to_pylist()]
    assert problems(rows) == []
    calls = Counter((tmp_path / "job" / "calls").read_text().split())
    # The second kill always falls between a call and its note; the first does so by chance.
    assert 1 <= sum(n - 1 for n in calls.values()) <= 2, "a call whose end nobody saw is made again, under the same id"


def test_killed_at_every_step_rows_written_by_jdbc_are_in_postgresql_once(
    tmp_path: Path, files: Path, faults: Any, programs: list[Program], database: Database
) -> None:
    database.run("CREATE TABLE counted (id bigint, key bigint, nth bigint)")
    database.run("CREATE TABLE handed_over (marker text PRIMARY KEY)")
    faults.plan(*FAULTS)
    settings = {
        "directory": str(tmp_path / "job"),
        "input": str(files),
        "url": database.url,
        "jdbc": jdbc_url(database.url),
        "jar": jdbc_driver(),
    }
    killed_until_it_ends(programs, settings, faults)
    assert problems(database.run("SELECT id, key, nth FROM counted")) == []


def jdbc_url(url: str) -> str:
    user_and_place = url.removeprefix("postgresql://")
    user, _, place = user_and_place.rpartition("@")
    name, _, password = user.partition(":")
    return f"jdbc:postgresql://{place}?user={name}" + (f"&password={password}" if password else "")


def jdbc_driver() -> str:
    """PostgreSQL's JDBC driver, which Maven fetches once."""
    _, name, version = JDBC_DRIVER.split(":")
    return str(fetch(CACHE, f"{name}-jdbc-{version}", [JDBC_DRIVER], alone=True) / f"{name}-{version}.jar")
