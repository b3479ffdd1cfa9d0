"""A count per key, from two inputs of very unequal speed: what the three consistency levels are told apart by."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ledger import THE_END, Ledger, LedgerReader, LedgerSource
from saboteurs import kill_the_worker, once

from headrace import (
    CheckpointListener,
    FilterFunction,
    KeyedProcessFunction,
    MapFunction,
    Types,
    ValueStateDescriptor,
    WatermarkStrategy,
)
from headrace.runtime.task.gate import InputGate


class Tally(KeyedProcessFunction):
    """Counts the records of each key and tells the count at the end of the input. Logs every call if asked to."""

    def __init__(self, calls: str = "") -> None:
        self._calls = calls

    def open(self, runtime_context: Any) -> None:
        self._count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))

    def process_element(self, value: Any, ctx: Any) -> None:
        if self._calls:
            log(self._calls, f"{value[0]} {value[1]}")
        self._count.update((self._count.value() or 0) + 1)
        ctx.timer_service().register_event_time_timer(THE_END)

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        yield (ctx.get_current_key(), self._count.value())


def log(path: str, line: str) -> None:
    """One whole line, whoever else writes at the same time."""
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, f"{line}\n".encode())
    os.close(file)


class Sluggish(MapFunction):
    """Takes its time over every record: work that is slow, not a wait for anything."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def map(self, value: Any) -> Any:
        time.sleep(self._seconds)
        return value


class SpillWatch(FilterFunction):
    """Lets every record pass, and notes when the gate of its task has cells on disk."""

    def __init__(self, mark: str) -> None:
        self._mark = mark

    def open(self, runtime_context: Any) -> None:
        self._gates = [o for o in gc.get_objects() if isinstance(o, InputGate)]

    def filter(self, value: Any) -> bool:
        if any(gate.spilled for gate in self._gates):
            log(self._mark, str(max(gate.spilled for gate in self._gates)))
        return True


SENT, COUNTED, WAITING, READY = "fast sent 400", "fast counted 400", "slow waits", "fast stands behind 120"


class StagedSource(LedgerSource):
    """One of the two inputs of the story; see `staged_inputs`."""

    def __init__(self, ledger: Ledger, marks: str, reader: type[StagedReader]) -> None:
        super().__init__(ledger)
        self.marks = marks
        self.reader = reader

    def create_reader(self, context: Any) -> StagedReader:
        reader = self.reader(self.ledger, super().create_reader(context)._pace)
        reader.marks = Path(self.marks)
        reader.marks.mkdir(parents=True, exist_ok=True)
        return reader


class StagedReader(LedgerReader):
    """Stands behind one number until the story is so far."""

    marks: Path
    stop = 0
    _go = False

    def _allowed(self, split: Any, keys: int) -> int:
        place = self.stop * keys
        if split.position < place or (split.position == place and not self._go):
            return place
        return super()._allowed(split, keys)


class FastReader(StagedReader):
    """Goes on behind 120 once a barrier has passed there while the slow input waits."""

    stop = 120

    def _allowed(self, split: Any, keys: int) -> int:
        if split.position == self.stop * keys:
            (self.marks / READY).touch()
        if split.position > 400 * keys:
            (self.marks / SENT).touch()
        return super()._allowed(split, keys)

    def snapshot(self) -> Any:
        splits = super().snapshot()
        if any(split.position == self.stop * self._ledger.keys for split in splits):
            self._go = (self.marks / WAITING).exists()
        return splits


class SlowReader(StagedReader):
    """Sends its tenth number, at which it gets stuck, just behind a complete checkpoint: the next is a pause away."""

    stop = 9

    def checkpoint_complete(self, checkpoint_id: int) -> None:
        if (self.marks / READY).exists():
            self._go = True


class Stubborn(MapFunction):
    """Does not let the tenth record go, nor the barrier behind it, before the story is so far."""

    def __init__(self, marks: str, release: str) -> None:
        self._marks = Path(marks)
        self._release = release

    def map(self, value: Any) -> Any:
        if value[1] == 10:
            (self._marks / WAITING).touch()
            while not (self._marks / self._release).exists():
                time.sleep(0.002)
        return value


class KilledTally(Tally, CheckpointListener):
    """Its worker is killed as soon as the checkpoint of the story is complete."""

    def __init__(self, marks: str) -> None:
        super().__init__()
        self._marks = Path(marks)

    def process_element(self, value: Any, ctx: Any) -> None:
        super().process_element(value, ctx)
        if value[1] == 400:
            (self._marks / COUNTED).touch()

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        if ((self._marks / SENT).exists() or (self._marks / COUNTED).exists()) and once(self._marks / "kills" / "kill"):
            kill_the_worker()


def staged_inputs(env: Any, fast: Ledger, slow: Ledger, marks: str, release: str) -> Any:
    """Like `unequal_inputs`, with barriers that come apart exactly as far as the story wants."""
    event_time = WatermarkStrategy.for_monotonous_timestamps()
    wide = env.from_source(LedgerSource(Ledger(keys=0)), event_time, "empty").uid("empty").set_parallelism(2)
    quick = env.from_source(StagedSource(fast, marks, FastReader), event_time, "fast").uid("fast").set_parallelism(1)
    lazy = env.from_source(StagedSource(slow, marks, SlowReader), event_time, "slow").uid("slow").set_parallelism(1)
    lazy = lazy.map(Stubborn(marks, release)).uid("stubborn").set_parallelism(1)
    lazy = lazy.map(renamed(fast.keys)).uid("renamed").set_parallelism(1)
    return quick.union(lazy, wide)


def renamed(offset: int) -> Any:
    """Gives the keys of the second input names of their own."""
    return lambda record: (record[0] + offset, *record[1:])


def unequal_inputs(env: Any, fast: Ledger, slow: Ledger, pause: float) -> Any:
    """Two sources on channels of their own, one much slower than the other, as one stream.

    A third, empty one makes the level two slots wide, so that the other two stand on one each.
    """
    event_time = WatermarkStrategy.for_monotonous_timestamps()
    wide = env.from_source(LedgerSource(Ledger(keys=0)), event_time, "empty").uid("empty").set_parallelism(2)
    quick = env.from_source(LedgerSource(fast), event_time, "fast").uid("fast").set_parallelism(1)
    lazy = env.from_source(LedgerSource(slow), event_time, "slow").uid("slow").set_parallelism(1)
    lazy = lazy.map(Sluggish(pause)).uid("sluggish").set_parallelism(1)
    lazy = lazy.map(renamed(fast.keys)).uid("renamed").set_parallelism(1)
    return quick.union(lazy, wide)


def truth(fast: Ledger, slow: Ledger) -> dict[int, int]:
    """What an undisturbed run counts."""
    counts = dict.fromkeys(range(fast.keys), fast.length)
    return counts | {fast.keys + key: slow.length for key in range(slow.keys)}
