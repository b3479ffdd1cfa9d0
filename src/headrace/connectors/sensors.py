"""A source of made-up sensor readings that can be replayed exactly from any position.

Reading number *r* of all readings is reading *n = r // sensors* of sensor *s = r % sensors*. Its temperature is a pure
function of (seed, s, n), found by hashing and not by walking, so no reading depends on the one before it:

    h(s, n) = mix(mix(seed, s) + n · golden)        one 64-bit splitmix hash a reading
    bits 0–31 of h    noise in [0, 1)               two readings differ by less than 1 …
    bits 32–47        a spike? about 0.8 % of them
    bits 48–63        its height in [2.75, 6)       … unless one of them is a spike: then by more than 1.75
    temperature       base of the sensor in [15, 25) + noise + spike

A spike is seen twice, when it rises and when it falls, so about 1.5 % of all readings lie more than 1.7 from the
sensor's last one.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.connectors.pace import Pace, check_rate
from headrace.connectors.queue_enumerator import Dealing, QueueEnumerator
from headrace.connectors.source import (
    Boundedness,
    EnumeratorContext,
    PollStatus,
    ReaderContext,
    Source,
    SourceBatch,
    SourceReader,
    SplitEnumerator,
)
from headrace.errors import ConfigurationError
from headrace.types.information import TypeInformation, Types

Hashes = npt.NDArray[np.uint64]
Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

START_MS = 1_700_000_000_000
SPIKE_SHARE = 0.0077
SPIKE_LOW, SPIKE_HIGH = 2.75, 6.0
MAX_BATCH = 65_536
COUNTED_AT_ONCE = 1_000_000

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


class SensorSplit(msgspec.Struct):
    """The sensors `offset`, `offset + stride`, …: their readings from number `position` of all readings on.

    The position counts readings of all sensors, not only of this split's. So a split can be divided in two that
    both keep the position, and nothing is lost or repeated.
    """

    offset: int
    stride: int
    position: int

    @property
    def split_id(self) -> str:
        return f"sensors-{self.offset}-of-{self.stride}"


class SensorSource(Source[SensorSplit]):
    """Rows `(id STRING, timestamp LONG, temperature DOUBLE)` of `sensors` sensors, in turn; see the page above.

    readings: how many in all; None for a stream without end.
    rate: readings per second over all splits together, kept by the clock; None for as fast as they are wanted.
    start_ms, interval_ms: event time of the first reading, and between two readings of one sensor.
    stamp_created: add `created_ns LONG`, the `time.time_ns()` at which the reading left the source.

    All readings of one sensor come from one split, in order, and timestamps never run back within a split.
    """

    split_type = SensorSplit

    def __init__(
        self,
        readings: int | None,
        sensors: int = 1_000,
        rate: float | None = None,
        seed: int = 42,
        *,
        start_ms: int = START_MS,
        interval_ms: int = 1_000,
        stamp_created: bool = False,
    ) -> None:
        if readings is not None and readings < 0:
            raise ConfigurationError(f"SensorSource has readings={readings}. Give 0 or more, or None for no end.")
        if sensors < 1:
            raise ConfigurationError(f"SensorSource has sensors={sensors}. Give at least 1.")
        check_rate(rate, "SensorSource")
        self.readings = readings
        self.sensors = sensors
        self.rate = rate
        self.seed = seed
        self.start_ms = start_ms
        self.interval_ms = interval_ms
        self.stamp_created = stamp_created

    @property
    def boundedness(self) -> Boundedness:
        return Boundedness.UNBOUNDED if self.readings is None else Boundedness.BOUNDED

    @property
    def produced_type(self) -> TypeInformation:
        names = ["id", "timestamp", "temperature"]
        types = [Types.STRING(), Types.LONG(), Types.DOUBLE()]
        if self.stamp_created:
            names.append("created_ns")
            types.append(Types.LONG())
        return Types.ROW_NAMED(names, types)

    def create_enumerator(self, context: EnumeratorContext, restored: bytes | None) -> SplitEnumerator[SensorSplit]:
        return QueueEnumerator(
            context,
            SensorSplit,
            first=lambda: self._first_splits(context.parallelism),
            restored=restored,
            widen=self._divide_until,
            # All at once: a split that waits for its turn would fall behind in event time, or wait for ever.
            dealing=Dealing.ALL_AT_ONCE,
        )

    def create_reader(self, context: ReaderContext) -> SourceReader[SensorSplit]:
        return _SensorReader(self)

    def describe(self) -> str:
        amount = "readings without end" if self.readings is None else f"{self.readings} readings"
        return f"{amount} of {self.sensors} sensors" + ("" if self.rate is None else f" at {self.rate:g}/s")

    def expected_alerts(self, threshold: float = 1.7, readings: int | None = None) -> int:
        """How many readings lie more than `threshold` from the same sensor's last one.

        Computed from the definition alone: no split, reader or position is involved. For a source without end say
        how many `readings` were taken.
        """
        total = self.readings if readings is None else readings
        if total is None:
            raise ConfigurationError("SensorSource has no end, so its alerts cannot be counted: give readings=….")
        streams = sensor_streams(self.seed, np.arange(self.sensors, dtype=np.uint64))
        rounds = -(-total // self.sensors)
        step = max(1, COUNTED_AT_ONCE // self.sensors)
        alerts = 0
        for first in range(0, rounds, step):
            # One round more than the step at the front: the jump into a block belongs to the block.
            nth = np.arange(max(0, first - 1), min(rounds, first + step), dtype=np.uint64)
            block = temperatures(np.tile(streams, len(nth)), np.repeat(nth, self.sensors)).reshape(len(nth), -1)
            jumped = np.abs(np.diff(block, axis=0)) > threshold
            alerts += int(np.count_nonzero(jumped))
            if first + step >= rounds and rounds > 1:
                alerts -= int(np.count_nonzero(jumped[-1, total - (rounds - 1) * self.sensors :]))
        return alerts

    def _first_splits(self, parallelism: int) -> list[SensorSplit]:
        stride = max(1, min(self.sensors, parallelism))
        return [SensorSplit(offset, stride, 0) for offset in range(stride)]

    def _divide_until(self, splits: list[SensorSplit], wanted: int) -> list[SensorSplit]:
        """Divide the widest splits by sensors until there are `wanted`, or each holds one sensor."""
        while splits and len(splits) < wanted:
            widest = min(splits, key=lambda s: (s.stride, s.offset))
            if widest.offset + widest.stride >= self.sensors:
                break
            splits.remove(widest)
            splits += [
                SensorSplit(widest.offset + shift, widest.stride * 2, widest.position) for shift in (0, widest.stride)
            ]
        return splits


def mix64(h: Hashes) -> Hashes:
    """The finaliser of splitmix64: every bit of the result depends on every bit of the input."""
    h = (h ^ (h >> np.uint64(30))) * _MIX_1
    h = (h ^ (h >> np.uint64(27))) * _MIX_2
    return h ^ (h >> np.uint64(31))


def sensor_streams(seed: int, sensors: Hashes) -> Hashes:
    """The hash stream of each sensor: what, with n, decides about its n-th reading."""
    start = np.array([seed & 0xFFFF_FFFF_FFFF_FFFF], dtype=np.uint64)
    return mix64(mix64(start + _GOLDEN) + sensors * _GOLDEN)


def temperatures(streams: Hashes, n: Hashes) -> Floats:
    """Temperature of the n-th reading of each of these sensor streams."""
    h = mix64(streams + n * _GOLDEN)
    noise = (h & np.uint64(0xFFFF_FFFF)).astype(np.float64) * 2.0**-32
    spiking = ((h >> np.uint64(32)) & np.uint64(0xFFFF)) < np.uint64(round(SPIKE_SHARE * 65_536))
    base = 15.0 + (streams >> np.uint64(40)).astype(np.float64) * (10.0 * 2.0**-24)
    result: Floats = base + noise
    # Spikes are rare: working them out only where they are is cheaper than everywhere.
    at = np.flatnonzero(spiking)
    height = (h[at] >> np.uint64(48)).astype(np.float64) * ((SPIKE_HIGH - SPIKE_LOW) * 2.0**-16)
    result[at] += SPIKE_LOW + height
    return result


class _SplitProgress:
    """One split being read: what repeats with every round over its sensors is made once and sliced."""

    def __init__(self, source: SensorSource, split: SensorSplit) -> None:
        owned = np.arange(split.offset, source.sensors, split.stride, dtype=np.int64)
        self.split = split
        self._source = source
        self._width = len(owned)
        self._next = self._count_before(split.position)
        self._end = None if source.readings is None else self._count_before(source.readings)
        self.pace = Pace(None if source.rate is None else source.rate * self._width / source.sensors)
        # Any batch is a slice of this pattern: it begins within the first round and is at most MAX_BATCH long.
        rounds = 1 + -(-MAX_BATCH // self._width)
        digits = max(4, len(str(source.sensors - 1)))
        self._sensors: Ints = np.tile(owned, rounds)
        ids = pa.array([f"sensor_{s:0{digits}d}" for s in owned.tolist()], type=pa.string())
        self._ids = ids.take(pa.array(np.tile(np.arange(self._width), rounds)))
        self._streams: Hashes = np.tile(sensor_streams(source.seed, owned.astype(np.uint64)), rounds)
        self._rounds: Ints = np.repeat(np.arange(rounds, dtype=np.int64), self._width)
        schema = [("id", pa.string()), ("timestamp", pa.int64()), ("temperature", pa.float64())]
        self._schema = pa.schema(schema + ([("created_ns", pa.int64())] if source.stamp_created else []))

    def _count_before(self, reading: int) -> int:
        """How many of this split's readings come before number `reading` of all."""
        full, rest = divmod(reading, self._source.sensors)
        return full * self._width + max(0, -(-(rest - self.split.offset) // self.split.stride))

    @property
    def ended(self) -> bool:
        return self._end is not None and self._next >= self._end

    def take(self, count: int) -> SourceBatch:
        if self._end is not None:
            count = min(count, self._end - self._next)
        source = self._source
        n, start = divmod(self._next, self._width)
        window = slice(start, start + count)
        nth = self._rounds[window] + n
        temperature = temperatures(self._streams[window], nth.astype(np.uint64))
        number = nth * source.sensors + self._sensors[window]
        timestamps = source.start_ms + number * source.interval_ms // source.sensors
        columns = [self._ids.slice(start, count), pa.array(timestamps), pa.array(temperature)]
        if source.stamp_created:
            columns.append(pa.array(np.full(count, time.time_ns(), dtype=np.int64)))
        self._next += count
        # Everything up to and with the last reading is behind us, of the split's own sensors at least.
        self.split.position = int(number[-1]) + 1
        self.pace.emitted(count)
        batch = pa.RecordBatch.from_arrays(columns, schema=self._schema)
        return SourceBatch(self.split.split_id, columns=batch, timestamps=timestamps.tolist())


class _SensorReader(SourceReader[SensorSplit]):
    """Takes its splits in turn, so that their event times stay together."""

    def __init__(self, source: SensorSource) -> None:
        self._source = source
        self._splits: deque[_SplitProgress] = deque()
        self._no_more = False

    def add_splits(self, splits: Sequence[SensorSplit]) -> None:
        self._splits.extend(_SplitProgress(self._source, msgspec.structs.replace(split)) for split in splits)

    def no_more_splits(self) -> None:
        self._no_more = True

    def poll(self, limit: int) -> SourceBatch | PollStatus:
        for _ in range(len(self._splits)):
            progress = self._splits.popleft()
            if progress.ended:
                continue
            self._splits.append(progress)
            count = progress.pace.due(min(limit, MAX_BATCH))
            if count:
                return progress.take(count)
        if self._splits:
            return PollStatus.IDLE
        return PollStatus.ENDED if self._no_more else PollStatus.NEEDS_SPLIT

    def idle_until(self) -> float | None:
        return min((progress.pace.next_due() for progress in self._splits), default=None)

    def snapshot(self) -> list[SensorSplit]:
        return [msgspec.structs.replace(progress.split) for progress in self._splits if not progress.ended]
