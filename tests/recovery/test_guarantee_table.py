"""Each cell of the table of sources and sinks, on a real Spark: the same crash, seen through every kind of sink.

A script of numbers, a checkpoint behind 2, and a worker that is killed when the first sink has shown 3. A source that
goes back gives 3 and 4 again; one that cannot goes on with 5.
"""

from __future__ import annotations

import os
import sqlite3
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from saboteurs import kill_the_worker, once

from headrace import IdempotentSink, Sink, TwoPhaseCommitSink, WatermarkStrategy, WriteAheadSink
from headrace.connectors.sink import SinkGuarantee, SinkWriter, WriterContext
from headrace.connectors.write_ahead import Marker
from headrace.errors import CommitOutcomeUnknownError
from headrace.plan.guarantees import Guarantee, guarantees
from headrace.testing import CHECKPOINT, TestSource
from headrace.testing.scripted import ScriptSplit

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]

NUMBERS = [1, 2, 3, 4, 5, 6]


class Forgetful(TestSource):
    """The same script from a source that cannot go back: after a restart it goes on where the dead reader was."""

    replayable = False

    def __init__(self, script: Sequence[Any], place: str) -> None:
        super().__init__(script)
        self.place = place

    def create_reader(self, context: Any) -> Any:
        reader: Any = super().create_reader(context)
        poll, add = reader.poll, reader.add_splits

        def add_splits(splits: Sequence[ScriptSplit]) -> None:
            reached = Path(self.place).read_text() if os.path.exists(self.place) else "0"
            add([ScriptSplit(max(split.position, int(reached))) for split in splits])

        def polled(limit: int) -> Any:
            batch = poll(limit)
            if reader._split is not None:
                Path(self.place).write_text(str(reader._split.position))
            return batch

        reader.poll, reader.add_splits = polled, add_splits
        return reader


class PlainSink(Sink):
    """Shows every record at once: a line in a file. When it has shown 3, its worker is killed, once."""

    def __init__(self, path: str) -> None:
        self.path = path

    def create_writer(self, context: WriterContext) -> SinkWriter:
        return _PlainWriter(self.path)


class _PlainWriter(SinkWriter):
    def __init__(self, path: str) -> None:
        self._path = path

    def write(self, value: Any, timestamp: int | None) -> None:
        with open(self._path, "a") as file:
            file.write(f"{value}\n")
        if value == 3 and once(f"{self._path}.killed"):
            kill_the_worker()


class KeyedFiles(IdempotentSink):
    """One file for each number."""

    def __init__(self, path: str) -> None:
        self.path = path

    def key_of(self, value: Any) -> Any:
        return value

    def write(self, key: Any, value: Any, timestamp: int | None) -> None:
        os.makedirs(self.path, exist_ok=True)
        Path(self.path, str(key)).write_text(f"{value}\n")


class SqliteLog(WriteAheadSink):
    """Values and marker in one transaction; or in two, and the store goes away between them, once."""

    def __init__(self, path: str, *, apart: bool) -> None:
        self.path = path
        self.apart = apart
        self.guarantee = SinkGuarantee.WRITE_AHEAD_UNMARKED if apart else SinkGuarantee.WRITE_AHEAD

    def open(self) -> None:
        self.db = sqlite3.connect(self.path, check_same_thread=False, timeout=60)
        self.db.execute("CREATE TABLE IF NOT EXISTS numbers (n INTEGER)")
        self.db.execute("CREATE TABLE IF NOT EXISTS markers (marker TEXT)")

    def send(self, values: Sequence[Any], marker: Marker) -> None:
        self.db.executemany("INSERT INTO numbers VALUES (?)", [[value] for value in values])
        if self.apart:
            self.db.commit()
            if once(f"{self.path}.away"):
                raise CommitOutcomeUnknownError("the store went away before the marker was written")
        self.db.execute("INSERT INTO markers VALUES (?)", [str(marker)])
        self.db.commit()

    def is_committed(self, marker: Marker) -> bool:
        return bool(self.db.execute("SELECT 1 FROM markers WHERE marker = ?", [str(marker)]).fetchall())

    def close(self) -> None:
        self.db.close()


class RenamedFiles(TwoPhaseCommitSink[str]):
    """A file for each transaction, which gets its name at the commit."""

    transaction_type = str

    def __init__(self, path: str) -> None:
        self.path = path

    def open(self, context: WriterContext) -> None:
        os.makedirs(self.path, exist_ok=True)
        self.count = 0

    def begin(self) -> str:
        self.count += 1
        return f"{self.path}/{self.context.attempt}-{self.count}"

    def invoke(self, txn: str, value: Any, timestamp: int | None) -> None:
        with open(f"{txn}.open", "a") as file:
            file.write(f"{value}\n")

    def pre_commit(self, txn: str) -> None:
        os.rename(f"{txn}.open", f"{txn}.prepared")

    def commit(self, txn: str) -> None:
        if os.path.exists(f"{txn}.prepared"):
            os.rename(f"{txn}.prepared", f"{txn}.shown")

    def abort(self, txn: str) -> None:
        Path(f"{txn}.open").unlink(missing_ok=True)


def lines_in(*files: Path) -> list[int]:
    return [int(line) for file in files if file.exists() for line in file.read_text().splitlines()]


def numbers_in(path: Path) -> list[int]:
    with sqlite3.connect(path) as db:
        return [n for (n,) in db.execute("SELECT n FROM numbers")]


@pytest.mark.parametrize("goes_back", [True, False], ids=["resettable", "not resettable"])
def test_a_crash_seen_through_every_kind_of_sink(bench: Any, goes_back: bool) -> None:
    out = bench.directory / "out"
    out.mkdir()
    script = [1, 2, CHECKPOINT, 3, 4, CHECKPOINT, 5, 6]
    env = bench.env(parallelism=1, interval=50)
    source = TestSource(script) if goes_back else Forgetful(script, str(out / "place"))
    numbers = env.from_source(source, WatermarkStrategy.no_watermarks(), "numbers")
    sinks: dict[str, Sink] = {
        "plain": PlainSink(str(out / "plain")),
        "idempotent": KeyedFiles(str(out / "idempotent")),
        "log, marker apart": SqliteLog(str(out / "apart.db"), apart=True),
        "log with its marker": SqliteLog(str(out / "log.db"), apart=False),
        "two-phase": RenamedFiles(str(out / "two-phase")),
    }
    for name, sink in sinks.items():
        numbers.sink_to(sink).uid(name).name(name)
    plan, settings = env.build("table")
    promised = {path.sink.name: path.guarantee for path in guarantees(plan, settings.checkpointing).paths}

    result = env.execute("table")

    seen = {
        "plain": lines_in(out / "plain"),
        "idempotent": lines_in(*(out / "idempotent").iterdir()),
        "log, marker apart": numbers_in(out / "apart.db"),
        "log with its marker": numbers_in(out / "log.db"),
        "two-phase": lines_in(*(out / "two-phase").glob("*.shown")),
    }
    assert result.restarts == 1
    counts = {name: Counter(values) for name, values in seen.items()}
    for name, guarantee in promised.items():
        most, least = max(counts[name].values()), min(counts[name][n] for n in NUMBERS)
        match guarantee:
            case Guarantee.EXACTLY_ONCE:
                assert (least, most) == (1, 1), f"{name}: {seen[name]}"
            case Guarantee.AT_LEAST_ONCE:
                assert least == 1, f"{name}: {seen[name]}"
                assert most > 1, f"{name}: {seen[name]}"
            case Guarantee.AT_MOST_ONCE:
                # 4 was under way, behind the record at which the worker was killed, and nobody can ask for it again.
                assert counts[name][4] == 0, f"{name}: {seen[name]}"
                assert {1, 2, 5, 6} <= set(counts[name]), f"{name}: {seen[name]}"
                # What is lost is the source's doing. A log whose marker stands apart may repeat what was not lost.
                assert (most > 1) == (name == "log, marker apart"), f"{name}: {seen[name]}"
    if goes_back:
        exact = Guarantee.EXACTLY_ONCE
        assert [promised[name] for name in ("idempotent", "log with its marker", "two-phase")] == [exact] * 3
    else:
        assert set(promised.values()) == {Guarantee.AT_MOST_ONCE}
        for name in ("log with its marker", "two-phase"):
            assert 3 not in counts[name], "what was under way at the crash is nowhere"
        assert counts["plain"][3] == 1, "shown before the crash, and by nobody again"
