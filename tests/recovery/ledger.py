"""The LEDGER: a workload whose every result is known from its size alone, and the checks on what a run gave.

K keys, each a sequence 1..N with event time. The operator keeps the last number, a count, a sum and a list for each
key, alerts if a number does not follow its predecessor, and fires an event-time timer for every window of
numbers and one at the very end. So the whole output, windows and final state included, follows from K and N.
"""

from __future__ import annotations

import json
import os
import secrets
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from headrace import (
    KeyedProcessFunction,
    ListStateDescriptor,
    ReducingStateDescriptor,
    Types,
    ValueStateDescriptor,
    WatermarkStrategy,
)
from headrace.connectors.pace import Pace
from headrace.connectors.queue_enumerator import Dealing, QueueEnumerator
from headrace.connectors.source import PollStatus, Source, SourceBatch, SourceReader
from headrace.connectors.two_phase import TwoPhaseCommitSink

THE_END = 10**12
"""A time that only the end of the input reaches."""


@dataclass(frozen=True)
class Ledger:
    """The size of a ledger, and what makes its source hold back."""

    keys: int = 12
    length: int = 400
    window: int = 50
    splits: int = 4
    rate: float | None = None
    """Records per second of the whole source."""
    fault_log: str = ""
    faults: int = 0
    """The last part is held back until so many faults lie in the log: so each happens, and work goes on after it."""
    reserve: int = 40
    """How many numbers of each key are held back."""
    checkpoints: str = ""
    """Checkpoint storage: all but the first eighth is held back until there is a complete checkpoint in it."""
    payload: int = 0
    """Bytes that each record carries besides."""

    def holding_for(self, faults: Any) -> Ledger:
        """The same ledger, which does not end before all planned faults have happened."""
        return replace(self, fault_log=str(faults.log), faults=faults.planned)

    @property
    def records(self) -> int:
        return self.keys * self.length

    def expected(self) -> Counter[tuple[Any, ...]]:
        """Every line the sink must hold, each once: computed from the size, never from a run."""
        lines: Counter[tuple[Any, ...]] = Counter()
        for key in range(self.keys):
            lines.update(("seq", key, number) for number in range(1, self.length + 1))
            for first in range(1, self.length + 1, self.window):
                numbers = range(first, min(first + self.window, self.length + 1))
                lines["window", key, first, len(numbers), sum(numbers)] += 1
            total = self.length * (self.length + 1) // 2
            lines["final", key, self.length, self.length, total, 0] += 1
        return lines

    def problems(self, lines: Iterable[Sequence[Any]]) -> list[str]:
        """What is wrong with an output, in words; empty if it is exact."""
        found, wanted = Counter(tuple(line) for line in lines), self.expected()
        wrong = [f"alert: {line}" for line in found if line[0] == "alert"]
        wrong += [f"lost: {line} × {n}" for line, n in (wanted - found).items()]
        wrong += [f"too much: {line} × {n}" for line, n in (found - wanted).items() if line[0] != "alert"]
        return wrong[:20]


class LedgerSplit(msgspec.Struct):
    """The records of every `step`-th key from `first` on: number 1 of all its keys, then number 2, and so on."""

    first: int
    step: int
    position: int = 0

    @property
    def split_id(self) -> str:
        return f"keys {self.first} mod {self.step}"


class LedgerSource(Source[LedgerSplit]):
    """Records (key, number), with the number as event time."""

    split_type = LedgerSplit

    def __init__(self, ledger: Ledger, read_log: str = "") -> None:
        self.ledger = ledger
        self.read_log = read_log

    def create_enumerator(self, context: Any, restored: bytes | None) -> QueueEnumerator[LedgerSplit]:
        splits = self.ledger.splits
        return QueueEnumerator(
            context,
            LedgerSplit,
            first=lambda: [LedgerSplit(first, splits) for first in range(splits)],
            restored=restored,
            dealing=Dealing.ALL_AT_ONCE,
        )

    def create_reader(self, context: Any) -> LedgerReader:
        rate = self.ledger.rate
        return LedgerReader(self.ledger, Pace(None if rate is None else rate / context.parallelism))


class LedgerReader(SourceReader[LedgerSplit]):
    """Reads its splits in turn, one number of all keys of a split at a time."""

    def __init__(self, ledger: Ledger, pace: Pace) -> None:
        self._ledger = ledger
        self._pace = pace
        self._splits: list[LedgerSplit] = []
        self._turn = 0
        self._no_more = False
        self._free = not ledger.faults
        self._begun = not ledger.checkpoints

    def add_splits(self, splits: Sequence[LedgerSplit]) -> None:
        self._splits.extend(splits)

    def no_more_splits(self) -> None:
        self._no_more = True

    def poll(self, limit: int) -> SourceBatch | PollStatus:
        self._splits = [split for split in self._splits if split.position < self._end(split)]
        if not self._splits:
            return PollStatus.ENDED if self._no_more else PollStatus.NEEDS_SPLIT
        count = self._pace.due(min(limit, 64))
        if count == 0:
            return PollStatus.IDLE
        for _ in self._splits:
            self._turn = (self._turn + 1) % len(self._splits)
            split = self._splits[self._turn]
            keys = range(split.first, self._ledger.keys, split.step)
            until = min(split.position + count, self._allowed(split, len(keys)))
            if until > split.position:
                places = range(split.position, until)
                split.position = until
                self._pace.emitted(len(places))
                numbers = [place // len(keys) + 1 for place in places]
                values = [(keys[place % len(keys)], number) for place, number in zip(places, numbers, strict=True)]
                if self._ledger.payload:
                    values = [(*value, "x" * self._ledger.payload) for value in values]
                return SourceBatch(split.split_id, values=values, timestamps=numbers)
        return PollStatus.IDLE

    def _end(self, split: LedgerSplit) -> int:
        return len(range(split.first, self._ledger.keys, split.step)) * self._ledger.length

    def _allowed(self, split: LedgerSplit, keys: int) -> int:
        if not self._free:
            log = Path(self._ledger.fault_log)
            self._free = log.is_dir() and len(os.listdir(log)) >= self._ledger.faults
        if not self._begun:
            found = Path(self._ledger.checkpoints).glob("*/run-*/chk-*/_metadata")
            self._begun = next(found, None) is not None
        if not self._begun:
            return self._ledger.length // 8 * keys
        return self._end(split) if self._free else (self._ledger.length - self._ledger.reserve) * keys

    def idle_until(self) -> float | None:
        return max(self._pace.next_due(), time.monotonic() + 0.003)

    def snapshot(self) -> list[LedgerSplit]:
        return [msgspec.structs.replace(split) for split in self._splits if split.position < self._end(split)]


class Bookkeeper(KeyedProcessFunction):
    """Keeps the books of each key; see the module."""

    def __init__(self, window: int = 50) -> None:
        self._window = window

    def open(self, runtime_context: Any) -> None:
        self._last = runtime_context.get_state(ValueStateDescriptor("last", Types.LONG()))
        self._count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))
        self._sum = runtime_context.get_reducing_state(ReducingStateDescriptor("sum", lambda a, b: a + b, Types.LONG()))
        self._open = runtime_context.get_list_state(ListStateDescriptor("open", Types.LONG()))

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        key, number = value
        last = self._last.value() or 0
        if number != last + 1:
            yield ("alert", key, last, number)
        self._last.update(number)
        self._count.update((self._count.value() or 0) + 1)
        self._sum.add(number)
        self._open.add(number)
        first = number - (number - 1) % self._window
        ctx.timer_service().register_event_time_timer(first + self._window - 1)
        ctx.timer_service().register_event_time_timer(THE_END)
        yield ("seq", key, number)

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        key = ctx.get_current_key()
        if timestamp == THE_END:
            left = len(list(self._open.get() or ()))
            yield ("final", key, self._last.value(), self._count.value(), self._sum.get(), left)
            return
        numbers = list(self._open.get() or ())
        inside = [n for n in numbers if timestamp - self._window < n <= timestamp]
        self._open.update([n for n in numbers if n > timestamp])
        yield ("window", key, timestamp - self._window + 1, len(inside), sum(inside))


class LedgerTransaction(msgspec.Struct):
    """The lines one sink subtask wrote between two barriers."""

    name: str
    lines: list[Any] = []


class LedgerSink(TwoPhaseCommitSink[LedgerTransaction]):
    """Two-phase into a directory: prepared files become visible by a rename into `committed/`."""

    transaction_type = LedgerTransaction

    def __init__(self, directory: Path | str) -> None:
        self.directory = str(directory)

    def open(self, context: Any) -> None:
        self._begun = 0
        # Attempts count anew in every run of a job, so their number alone would not tell two writers apart.
        self._mark = secrets.token_hex(4)
        for part in ("prepared", "committed"):
            Path(self.directory, part).mkdir(parents=True, exist_ok=True)

    def begin(self) -> LedgerTransaction:
        self._begun += 1
        context = self.context
        return LedgerTransaction(f"{context.attempt:06d}-{context.subtask}-{self._mark}-{self._begun:06d}")

    def invoke(self, txn: LedgerTransaction, value: Any, timestamp: int | None) -> None:
        txn.lines.append(value)

    def pre_commit(self, txn: LedgerTransaction) -> None:
        with open(Path(self.directory, "prepared", txn.name), "w") as file:
            file.writelines(json.dumps(line) + "\n" for line in txn.lines)
        txn.lines = []

    def commit(self, txn: LedgerTransaction) -> None:
        prepared, committed = (Path(self.directory, part, txn.name) for part in ("prepared", "committed"))
        if not committed.exists():
            os.rename(prepared, committed)

    def abort(self, txn: LedgerTransaction) -> None:
        Path(self.directory, "prepared", txn.name).unlink(missing_ok=True)

    def find_leftovers(self, job_id: str, uid: str, attempt: int) -> Iterable[LedgerTransaction]:
        prepared = Path(self.directory, "prepared")
        names = os.listdir(prepared) if prepared.is_dir() else []
        return [LedgerTransaction(name) for name in names if int(name[:6]) < attempt]

    def lines(self) -> list[tuple[Any, ...]]:
        """What a reader of the committed output sees."""
        committed = Path(self.directory, "committed")
        if not committed.is_dir():
            return []
        return [
            tuple(json.loads(line)) for file in sorted(committed.iterdir()) for line in file.read_text().splitlines()
        ]


class ImpatientSink(LedgerSink):
    """A broken sink: shows its output when it is prepared, before the checkpoint is complete."""

    def pre_commit(self, txn: LedgerTransaction) -> None:
        super().pre_commit(txn)
        self.commit(txn)


def ledger_stream(env: Any, ledger: Ledger, *, levels: int = 2) -> Any:
    """The ledger's graph up to its output; with three levels the output is dealt round to a level of its own."""
    records = env.from_source(LedgerSource(ledger), WatermarkStrategy.for_monotonous_timestamps(), "ledger").uid("src")
    lines = records.key_by(lambda record: record[0]).process(Bookkeeper(ledger.window)).uid("books").name("books")
    if levels == 3:
        lines = lines.rebalance().map(lambda line: line).uid("dealt")
    return lines
