"""What every source promises, whatever it reads: each record once, from any snapshot, at any parallelism."""

from __future__ import annotations

import json
import pickle
import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.connectors.collection import CollectionSource
from headrace.connectors.files import FileSource
from headrace.connectors.sensors import SensorSource
from headrace.connectors.sequence import NumberSequenceSource, SequenceSplit
from headrace.connectors.source import PollStatus, ReaderContext, Source, SourceBatch, SourceReader
from headrace.testing.source_driver import SourceDriver
from headrace.types.information import Types
from headrace.types.rows import Row

READING = Types.ROW_NAMED(["id", "n", "temperature"], [Types.STRING(), Types.LONG(), Types.DOUBLE()])


@dataclass(frozen=True)
class Case:
    """A source and all it holds."""

    source: Source[Any]
    expected: list[Any]


def numbers(folder: Path) -> Case:
    return Case(NumberSequenceSource(-3, 96), list(range(-3, 97)))


def sensors(folder: Path) -> Case:
    source = SensorSource(103, sensors=7, interval_ms=70)
    return Case(source, [record.value for record in SourceDriver(source).run()])


def collection(folder: Path) -> Case:
    values: list[Any] = [*range(50), "text", None, ("a", 1)]
    return Case(CollectionSource(values), values)


def text(folder: Path) -> Case:
    lines = [f"zeile {i} äöü" for i in range(60)]
    (folder / "a.txt").write_text("\n".join(lines[:25]))  # the last line has no line end
    (folder / "b.txt").write_bytes("\r\n".join(lines[25:26]).encode() + b"\r\n")
    (folder / "c.txt").write_text("".join(f"{line}\n" for line in lines[26:]))
    (folder / "empty.txt").touch()
    (folder / "_SUCCESS").write_text("hidden")
    return Case(FileSource.text(folder), lines)


def json_lines(folder: Path) -> Case:
    rows = [("s1", i, i / 4) for i in range(60)]
    for part in range(3):
        lines = [json.dumps({"id": i, "n": n, "temperature": t}) for i, n, t in rows[part * 20 : part * 20 + 20]]
        (folder / f"{part}.jsonl").write_text("\n\n".join(lines))
    return Case(FileSource.json_lines(folder, type_info=READING), rows)


def csv(folder: Path) -> Case:
    rows = [("two\nlines" if i % 5 == 0 else f's"{i}', i, i / 4) for i in range(60)]
    quoted = ['"{}",{},{}'.format(i.replace('"', '""'), n, t) for i, n, t in rows]
    (folder / "a.csv").write_text("id,n,temperature\n" + "\n".join(quoted[:30]))
    (folder / "b.csv").write_text("id,n,temperature\n" + "\n".join(quoted[30:]) + "\n")
    return Case(FileSource.csv(folder, type_info=READING), rows)


def parquet(folder: Path) -> Case:
    rows = [(f"s{i % 3}", i, i / 4) for i in range(90)]
    for part in range(3):
        ids, ns, temperatures = zip(*rows[part * 30 : part * 30 + 30], strict=True)
        table = pa.table({"id": list(ids), "n": list(ns), "temperature": list(temperatures)})
        pq.write_table(table, folder / f"{part}.parquet", row_group_size=11)
    return Case(FileSource.parquet(folder), rows)


@pytest.fixture(params=[numbers, sensors, collection, text, json_lines, csv, parquet], ids=lambda make: make.__name__)
def case(request: pytest.FixtureRequest, tmp_path: Path) -> Case:
    make: Callable[[Path], Case] = request.param
    return make(tmp_path)


def same(read: Iterable[Any], expected: Iterable[Any]) -> bool:
    """Whether both hold the same records equally often, in whatever order."""
    return Counter(map(plain, read)) == Counter(map(plain, expected))


def plain(value: Any) -> str:
    return repr(tuple(value) if isinstance(value, tuple | Row) else value)


@pytest.mark.parametrize("parallelism", [1, 2, 5])
def test_every_record_is_read_once_at_any_parallelism(case: Case, parallelism: int) -> None:
    driver = SourceDriver(case.source, parallelism=parallelism)

    driver.run(limit=7)

    assert same(driver.values, case.expected)
    assert driver.ended


@pytest.mark.parametrize(("before", "after"), [(1, 1), (2, 2), (2, 3), (3, 1), (1, 4)])
def test_restoring_any_snapshot_reads_exactly_the_rest(case: Case, before: int, after: int) -> None:
    for count in range(len(case.expected) + 1):
        first = SourceDriver(case.source, parallelism=before)
        first.run(records=count, limit=3)

        second = SourceDriver(case.source, parallelism=after, restored=first.snapshot())
        second.run(limit=10)

        assert same(first.values + second.values, case.expected), f"after {count} records"


def test_going_back_to_one_snapshot_twice_reads_the_same_records_in_each_split(case: Case) -> None:
    first = SourceDriver(case.source, parallelism=2)
    first.run(records=len(case.expected) // 3, limit=4)
    snapshot = first.snapshot()
    first.run(limit=4)  # what the dead attempt read after its last checkpoint

    replays = []
    for limit in (4, 9):
        driver = SourceDriver(case.source, parallelism=2, restored=snapshot)
        driver.run(limit=limit)
        by_split: dict[str, list[str]] = {}
        for record in driver.records:
            by_split.setdefault(record.split_id, []).append(plain((record.value, record.timestamp)))
        replays.append(by_split)

    assert replays[0] == replays[1]


@pytest.mark.parametrize("seed", range(20))
def test_a_chain_of_crashes_and_rescalings_loses_and_repeats_nothing(case: Case, seed: int) -> None:
    chance = random.Random(seed)
    kept: list[Any] = []
    snapshot = None
    for _ in range(6):
        driver = SourceDriver(case.source, parallelism=chance.randint(1, 4), restored=snapshot)
        driver.run(records=chance.randint(0, 25), limit=chance.randint(1, 8))
        kept += driver.values
        snapshot = driver.snapshot()
        driver.run(records=chance.randint(0, 10))  # lost in the crash, and read again
        driver.close()
    last = SourceDriver(case.source, parallelism=chance.randint(1, 4), restored=snapshot)
    last.run()

    assert same(kept + last.values, case.expected)


def test_a_snapshot_after_the_end_leaves_nothing_to_read(case: Case) -> None:
    first = SourceDriver(case.source, parallelism=2)
    first.run()

    again = SourceDriver(case.source, parallelism=3, restored=first.snapshot())

    assert again.run() == []
    assert again.ended


def test_a_batch_is_about_as_large_as_asked_for(case: Case) -> None:
    for limit in (1, 5, 1_000):
        driver = SourceDriver(case.source)
        driver.run(limit=limit)
        assert max(driver.batches) <= limit + 1  # a CSV record of two lines may come on top


def test_a_reader_without_splits_answers_at_once_and_asks_for_one(case: Case) -> None:
    reader = case.source.create_reader(ReaderContext(subtask=0, parallelism=1))
    reader.open()

    assert reader.poll(10) is PollStatus.NEEDS_SPLIT
    assert reader.snapshot() == []
    reader.no_more_splits()
    assert reader.poll(10) is PollStatus.ENDED
    assert reader.poll(10) is PollStatus.ENDED
    reader.close()


def test_a_source_travels_to_the_tasks(case: Case) -> None:
    driver = SourceDriver(pickle.loads(pickle.dumps(case.source)), parallelism=2)

    driver.run()

    assert same(driver.values, case.expected)
    assert case.source.describe()


class ForgetfulSource(NumberSequenceSource):
    """Saves the start of its split instead of the position."""

    def create_reader(self, context: ReaderContext) -> SourceReader[SequenceSplit]:
        return _ForgetfulReader(super().create_reader(context))


class _ForgetfulReader(SourceReader[SequenceSplit]):
    def __init__(self, inner: SourceReader[SequenceSplit]) -> None:
        self._inner = inner

    def add_splits(self, splits: Sequence[SequenceSplit]) -> None:
        self._inner.add_splits(splits)

    def no_more_splits(self) -> None:
        self._inner.no_more_splits()

    def poll(self, limit: int) -> SourceBatch | PollStatus:
        return self._inner.poll(limit)

    def snapshot(self) -> list[SequenceSplit]:
        return [SequenceSplit(split.start, split.end, split.start) for split in self._inner.snapshot()]


def test_the_oracle_notices_a_source_that_forgets_its_position() -> None:
    source = ForgetfulSource(1, 20)
    first = SourceDriver(source)
    first.run(records=5)
    second = SourceDriver(source, restored=first.snapshot())
    second.run()

    assert not same(first.values + second.values, range(1, 21))
