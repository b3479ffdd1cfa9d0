"""Whether every alert arrived exactly once. What must come out follows from the definition of the readings alone."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from headrace.connectors.sensors import SensorSource, sensor_streams, temperatures

Alert = tuple[str, int]
"""Sensor and event time: no two readings share both."""

COUNTED_AT_ONCE = 1_000_000


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was expected and what was received."""

    expected: int
    received: int
    lost: int
    duplicated: int
    unexpected: int
    """Alerts that no undisturbed run would give."""

    @property
    def exactly_once(self) -> bool:
        return not (self.lost or self.duplicated or self.unexpected)


def judge(expected: set[Alert], received: Iterable[Alert]) -> Verdict:
    """Compare the alerts one by one; equal numbers alone would not do."""
    counts = Counter(received)
    return Verdict(
        expected=len(expected),
        received=counts.total(),
        lost=len(expected - counts.keys()),
        duplicated=counts.total() - len(counts),
        unexpected=len(counts.keys() - expected),
    )


def expected_alerts(source: SensorSource, threshold: float) -> set[Alert]:
    """Every alert that the readings of `source` must raise. Uses no split, reader, position or state."""
    assert source.readings is not None
    sensors = np.arange(source.sensors, dtype=np.uint64)
    streams = sensor_streams(source.seed, sensors)
    digits = max(4, len(str(source.sensors - 1)))
    rounds = -(-source.readings // source.sensors)
    step = max(1, COUNTED_AT_ONCE // source.sensors)
    found: set[Alert] = set()
    for first in range(0, rounds, step):
        # One round more at the front: the jump into a block belongs to the block.
        start = max(0, first - 1)
        nth = np.arange(start, min(rounds, first + step), dtype=np.uint64)
        block = temperatures(np.tile(streams, len(nth)), np.repeat(nth, source.sensors)).reshape(len(nth), -1)
        for row, sensor in np.argwhere(np.abs(np.diff(block, axis=0)) > threshold).tolist():
            number = (start + row + 1) * source.sensors + sensor
            if number < source.readings:
                timestamp = source.start_ms + number * source.interval_ms // source.sensors
                found.add((f"sensor_{sensor:0{digits}d}", timestamp))
    return found


def received_alerts(directory: Path) -> list[Alert]:
    """Every alert in the files that a reader sees: those that were committed."""
    alerts: list[Alert] = []
    for file in sorted(directory.glob("*.jsonl")):
        for line in file.read_text().splitlines():
            alert = json.loads(line)
            alerts.append((alert["id"], alert["timestamp"]))
    return alerts
