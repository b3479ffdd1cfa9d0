"""Every kind of state through every change of width, on both backends, with and without records in flight."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import chain, product
from typing import Any

import pytest
from every_state import EVENT, LATER_MS, TIME_OF_ONE_MS, everything, expected

from headrace import (
    EmbeddedRocksDBStateBackend,
    HashMapStateBackend,
    StreamExecutionEnvironment,
    Types,
    WatermarkStrategy,
)
from headrace.testing import JobHarness, ManualClock, ManualSource

BACKENDS = {"heap": HashMapStateBackend, "rocksdb": EmbeddedRocksDBStateBackend}
MATRIX = [(1, 7), (7, 1), (2, 4), (4, 2), (3, 5, 3)]
RULES = {"limit": 7, "floor": -3}
KEYS = [f"key-{n}" for n in range(23)]
EVENTS = [(KEYS[n * n % len(KEYS)], n) for n in range(180)]
IN_ORDER = WatermarkStrategy.for_monotonous_timestamps()
NO_TIME = WatermarkStrategy.no_watermarks()


def environment(width: int, backend: str, unaligned: bool) -> StreamExecutionEnvironment:
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(width)
    env.set_max_parallelism(128)
    env.set_state_backend(BACKENDS[backend]())
    env.enable_checkpointing(1_000)
    if unaligned:
        env.get_checkpoint_config().enable_unaligned_checkpoints()
    return env


class Stages:
    """One job, run by one harness after the other; the input goes on where the stage before stopped."""

    def __init__(self, backend: str, unaligned: bool) -> None:
        self.backend = backend
        self.unaligned = unaligned
        self.events = ManualSource(EVENT)
        self.rules = ManualSource(Types.TUPLE([Types.STRING(), Types.LONG()]))
        self.clock = ManualClock()
        self.results: list[Any] = []
        self.in_flight: list[int] = []

    def job(self, width: int, restored: Any) -> JobHarness:
        env = environment(width, self.backend, self.unaligned)
        events = env.from_source(self.events, IN_ORDER, "events").uid("events")
        rules = env.from_source(self.rules, NO_TIME, "rules").uid("rules")
        return JobHarness(everything(events, rules), clock=self.clock, restored=restored)

    def emit(self, events: list[tuple[str, int]]) -> None:
        for key, number in events:
            self.events.emit((key, number), timestamp=number * TIME_OF_ONE_MS)


def whole_matrix() -> Iterator[Any]:
    """All of it; what takes long and differs only in the backend is for the slow tier."""
    for widths, backend, unaligned in product(MATRIX, BACKENDS, (False, True)):
        soon = backend == "heap" or (unaligned and widths in ((2, 4), (3, 5, 3)))
        name = f"{'-'.join(map(str, widths))}-{backend}-{'unaligned' if unaligned else 'aligned'}"
        yield pytest.param(widths, backend, unaligned, id=name, marks=() if soon else pytest.mark.slow)


@pytest.mark.parametrize(("widths", "backend", "unaligned"), list(whole_matrix()))
def test_every_kind_of_state_goes_through_a_change_of_width(
    widths: tuple[int, ...], backend: str, unaligned: bool
) -> None:
    stages = Stages(backend, unaligned)
    stages.rules.emit(*RULES.items())
    size = len(EVENTS) // len(widths)
    saved: Any = None
    noted: set[str] = set()
    for stage, width in enumerate(widths):
        part = EVENTS[stage * size : (stage + 1) * size]
        with stages.job(width, saved) as job:
            functions = [operator._function for operator in job.operators("holder")]  # type: ignore[attr-defined]
            held = [function.held for function in functions]
            if stage:
                assert max(map(len, held)) - min(map(len, held)) <= 1, "a list is dealt out evenly"
            for n, function in enumerate(functions):
                assert function.known == noted | {f"{n} of {width}"}, "a union list goes to every subtask"
            noted |= {f"{n} of {width}" for n in range(width)}
            job.run()
            stages.emit(part[: size // 2])
            job.run()
            stages.emit(part[size // 2 :])
            # Every task of the first level has its turn: its records are on their way to the others.
            job.run(turns=width)
            if stage < len(widths) - 1:
                saved = job.checkpoint(in_flight=True)
                stages.in_flight.append(sum(channel.count for channel in saved.metadata.channels))
            else:
                job.run()
                job.advance(LATER_MS)
                stages.events.end()
                stages.rules.end()
                job.run_to_end()
                functions = [operator._function for operator in job.operators("holder")]  # type: ignore[attr-defined]
                assert sorted(chain.from_iterable(f.held for f in functions)) == [n for _, n in EVENTS]
            stages.results += job.results
    assert Counter(stages.results) == Counter(expected(EVENTS, RULES))
    assert all(count > 0 for count in stages.in_flight) is unaligned


def routed(stream: Any, how: str) -> Any:
    match how:
        case "forward":
            return stream.forward()
        case "rescale":
            return stream.rescale()
        case "custom":
            return stream.partition_custom(lambda key, n: key % n, lambda value: value)
    raise AssertionError(how)


def job_with(how: str, width: int, source: ManualSource, restored: Any = None, sink_width: int | None = None) -> Any:
    env = environment(width, "heap", unaligned=True)
    numbers = env.from_source(source, NO_TIME, "numbers").uid("numbers")
    doubled = routed(numbers, how).map(lambda n: 2 * n).uid("doubled").name("doubled").disable_chaining()
    last = doubled.rebalance().map(lambda n: n).uid("last").set_parallelism(sink_width or width)
    return JobHarness(last, restored=restored)


ROUTES = ("forward", "rescale", "custom")


@pytest.mark.parametrize("how", ROUTES)
def test_records_for_one_certain_subtask_are_not_in_flight_so_that_any_width_restores(how: str) -> None:
    source = ManualSource(int)
    with job_with(how, 2, source) as job:
        job.run()
        source.emit(*range(40))
        job.run(turns=2)
        saved = job.checkpoint(in_flight=True)
        before = job.results
    in_flight = {edge for channel in saved.metadata.channels for edge in channel.edges}
    assert in_flight == {1}, "only on the edge that deals out anew"
    for width in (1, 2, 3):
        with job_with(how, width, source, saved, 3) as job:
            source.end()
            assert Counter(before + job.run_to_end()) == Counter(2 * n for n in range(40))


@pytest.mark.parametrize("how", ROUTES)
def test_with_nothing_in_flight_such_a_job_restores_at_any_width(how: str) -> None:
    source = ManualSource(int)
    with job_with(how, 2, source) as job:
        source.emit(*range(40))
        saved = job.checkpoint()
        before = job.results
    with job_with(how, 3, source, saved) as job:
        source.emit(*range(40, 60))
        source.end()
        assert Counter(before + job.run_to_end()) == Counter(2 * n for n in range(60))
