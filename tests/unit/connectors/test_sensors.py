"""Readings are a function of seed, sensor and number, and nothing else."""

from __future__ import annotations

from collections import defaultdict

import pytest

from headrace.connectors.sensors import START_MS, SensorSource
from headrace.connectors.sequence import NumberSequenceSource
from headrace.connectors.source import Boundedness, SourceBatch
from headrace.errors import ConfigurationError
from headrace.testing.source_driver import SourceDriver

MASK = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15


def mix(h: int) -> int:
    h = ((h ^ (h >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    h = ((h ^ (h >> 27)) * 0x94D049BB133111EB) & MASK
    return h ^ (h >> 31)


def temperature(seed: int, sensor: int, n: int) -> float:
    """The definition once more, in plain Python."""
    stream = mix((mix((seed + GOLDEN) & MASK) + sensor * GOLDEN) & MASK)
    h = mix((stream + n * GOLDEN) & MASK)
    value = 15.0 + (stream >> 40) * (10.0 * 2.0**-24) + (h & 0xFFFFFFFF) * 2.0**-32
    if ((h >> 32) & 0xFFFF) < round(0.0077 * 65_536):
        value += 2.75 + (h >> 48) * (3.25 * 2.0**-16)
    return value


def test_every_reading_is_what_the_definition_says() -> None:
    source = SensorSource(1_000, sensors=13, seed=7, start_ms=5_000, interval_ms=26)

    readings = sorted(SourceDriver(source, parallelism=3).run(limit=17), key=lambda r: (r.timestamp, r.value.id))

    wanted = [(f"sensor_{r % 13:04d}", 5_000 + r * 2, temperature(7, r % 13, r // 13)) for r in range(1_000)]
    assert [tuple(r.value) for r in readings] == wanted
    assert all(r.timestamp == r.value.timestamp for r in readings)


@pytest.mark.parametrize(("readings", "sensors"), [(0, 3), (1, 1), (5, 10), (3_001, 1), (30_007, 97)])
def test_expected_alerts_are_those_that_a_walk_over_the_readings_finds(readings: int, sensors: int) -> None:
    source = SensorSource(readings, sensors=sensors)
    last: dict[str, float] = {}
    alerts = 0
    for record in SourceDriver(source, parallelism=2).run(limit=1_000):
        row = record.value
        alerts += row.id in last and abs(row.temperature - last[row.id]) > 1.7
        last[row.id] = row.temperature

    assert source.expected_alerts(1.7) == alerts


def test_expected_alerts_do_not_depend_on_how_they_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    source = SensorSource(10_003, sensors=7)
    at_once = source.expected_alerts(1.7)
    monkeypatch.setattr("headrace.connectors.sensors.COUNTED_AT_ONCE", 50)

    assert source.expected_alerts(1.7) == at_once


def test_one_to_two_percent_of_the_readings_are_jumps() -> None:
    assert 0.01 <= SensorSource(500_000, sensors=1_000).expected_alerts(1.7) / 500_000 <= 0.02


def test_another_seed_gives_other_readings() -> None:
    one, other = (SourceDriver(SensorSource(50, sensors=5, seed=seed)).run() for seed in (1, 2))

    assert [r.value.id for r in one] == [r.value.id for r in other]
    assert all(a.value.temperature != b.value.temperature for a, b in zip(one, other, strict=True))


def test_a_sensor_stays_in_one_split_and_time_never_runs_back_there() -> None:
    splits: dict[str, set[str]] = defaultdict(set)
    times: dict[str, int] = defaultdict(int)
    for record in SourceDriver(SensorSource(500, sensors=10), parallelism=4).run(limit=9):
        splits[record.value.id].add(record.split_id)
        assert record.timestamp is not None
        assert record.timestamp >= times[record.split_id]
        times[record.split_id] = record.timestamp

    assert {len(owners) for owners in splits.values()} == {1}
    assert len(times) == 4


def test_a_job_restored_at_a_lower_parallelism_reads_all_splits_at_once() -> None:
    source = SensorSource(None, sensors=8)
    wide = SourceDriver(source, parallelism=4)
    wide.run(records=40, limit=10)

    narrow = SourceDriver(source, parallelism=1, restored=wide.snapshot())
    narrow.run(records=40, limit=10)

    assert {record.split_id for record in narrow.records} == {f"sensors-{i}-of-4" for i in range(4)}


def test_a_stream_without_end_goes_on_and_cannot_say_its_alerts() -> None:
    source = SensorSource(None, sensors=3)
    driver = SourceDriver(source)
    driver.run(records=5_000, limit=500)

    assert source.boundedness is Boundedness.UNBOUNDED
    assert not driver.ended
    assert driver.records[0].timestamp == START_MS
    with pytest.raises(ConfigurationError, match="readings="):
        source.expected_alerts(1.7)
    assert source.expected_alerts(1.7, readings=3_000) == SensorSource(3_000, sensors=3).expected_alerts(1.7)


def test_readings_carry_their_creation_time_on_request() -> None:
    driver = SourceDriver(SensorSource(10, sensors=2, stamp_created=True))
    driver.run(limit=5)

    stamps = [record.value.created_ns for record in driver.records]
    assert stamps == sorted(stamps)
    assert stamps[0] > 1_600_000_000 * 10**9


def test_columns_come_in_the_order_of_the_row_type() -> None:
    driver = SourceDriver(SensorSource(10))
    driver.poll(0)
    batch = driver.poll(0)

    assert isinstance(batch, SourceBatch)
    assert batch.columns is not None
    assert batch.columns.schema.names == ["id", "timestamp", "temperature"]


@pytest.mark.parametrize("wrong", [{"readings": -1}, {"readings": 1, "sensors": 0}])
def test_impossible_amounts_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ConfigurationError):
        SensorSource(**wrong)  # type: ignore[arg-type]


def test_a_sequence_that_ends_before_it_starts_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="start be at most end"):
        NumberSequenceSource(2, 1)


def test_a_sequence_restored_at_a_higher_parallelism_has_work_for_every_reader() -> None:
    source = NumberSequenceSource(1, 1_000)
    first = SourceDriver(source, parallelism=1)
    first.run(records=100, limit=50)

    second = SourceDriver(source, parallelism=4, restored=first.snapshot())
    second.run(limit=10)

    assert {record.subtask for record in second.records} == {0, 1, 2, 3}
