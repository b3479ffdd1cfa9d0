"""Requests in flight and state that expires, through the kill of a worker on Spark."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import Any

import pytest

from headrace import (
    AsyncDataStream,
    AsyncFunction,
    KeyedProcessFunction,
    MapStateDescriptor,
    StateTtlConfig,
    Time,
    ValueStateDescriptor,
    WatermarkStrategy,
)
from headrace.testing import CHECKPOINT, CRASH, TestSource, WaitUntil, run_until_done

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]

NO_TIME = WatermarkStrategy.no_watermarks()
HELD = 40
TTL_MS = 1_500


class Lookup(AsyncFunction):
    """Answers one of the requests only when the worker has been killed, so that it is in flight until then."""

    def __init__(self, crash_log: str) -> None:
        self.crash_log = crash_log

    async def async_invoke(self, value: int) -> list[tuple[int, str]]:
        while value == HELD and not os.listdir(self.crash_log):
            await asyncio.sleep(0.005)
        if value % 7 == 0:
            await asyncio.sleep(0.001)
        return [(value % 5, f"value {value}")]


class Fresh(KeyedProcessFunction):
    """Lets each text of a key pass once; what it has seen is kept for an hour."""

    def open(self, runtime_context: Any) -> None:
        seen = MapStateDescriptor("seen", str, bool)
        seen.enable_time_to_live(StateTtlConfig.new_builder(Time.hours(1)).build())
        self.seen = runtime_context.get_map_state(seen)

    def process_element(self, value: tuple[int, str], ctx: Any) -> Any:
        if value[1] not in self.seen:
            self.seen[value[1]] = True
            yield value[1]


@pytest.mark.parametrize(("backend", "mode", "ordered"), [("heap", "aligned", True), ("rocksdb", "unaligned", False)])
def test_requests_in_flight_are_made_again_and_each_result_comes_once(
    bench: Any, backend: str, mode: str, ordered: bool
) -> None:
    numbers = range(100)
    script = [*numbers[:60], CHECKPOINT, *numbers[60:80], CRASH, *numbers[80:]]
    source = TestSource(script, int)
    env = bench.env(backend=backend, mode=mode, interval=50)
    wait = AsyncDataStream.ordered_wait if ordered else AsyncDataStream.unordered_wait
    looked_up = wait(env.from_source(source, NO_TIME, "numbers").rebalance(), Lookup(source.crash_log), 120_000)
    outcome = run_until_done(looked_up.key_by(lambda pair: pair[0]).process(Fresh()), restarts=1)
    assert sorted(outcome.committed) == sorted(f"value {n}" for n in numbers)


class CountForAWhile(KeyedProcessFunction):
    """Counts per key; a count is forgotten some time after the last record of its key. Notes when it wrote."""

    def __init__(self, notes: str) -> None:
        self.notes = notes

    def open(self, runtime_context: Any) -> None:
        count = ValueStateDescriptor("count", int)
        count.enable_time_to_live(StateTtlConfig.new_builder(TTL_MS).build())
        lasting = ValueStateDescriptor("lasting", int)
        lasting.enable_time_to_live(StateTtlConfig.new_builder(Time.hours(1)).build())
        self.count = runtime_context.get_state(count)
        self.lasting = runtime_context.get_state(lasting)

    def process_element(self, key: str, ctx: Any) -> Any:
        self.count.update((self.count.value() or 0) + 1)
        self.lasting.update((self.lasting.value() or 0) + 1)
        Path(self.notes, key).touch()
        yield key, self.count.value(), self.lasting.value()


@pytest.mark.parametrize("backend", ["heap", "rocksdb"])
def test_time_to_live_goes_on_through_a_crash(bench: Any, backend: str) -> None:
    notes = bench.directory / "notes"
    notes.mkdir()

    def over() -> bool:
        written = notes / "a"
        return written.exists() and time.time() > written.stat().st_mtime + TTL_MS / 1_000 + 0.1

    source = TestSource(["a", CHECKPOINT, CRASH, WaitUntil(over), "a", CHECKPOINT, "b"], str)
    env = bench.env(backend=backend, interval=50)
    counted = env.from_source(source, NO_TIME, "keys").key_by(lambda key: key).process(CountForAWhile(str(notes)))
    outcome = run_until_done(counted, restarts=1)
    assert sorted(outcome.committed) == [("a", 1, 1), ("a", 1, 2), ("b", 1, 1)]
