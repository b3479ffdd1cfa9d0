"""Bad programs and bad records: each a clear typed error that names the thing; and keys that only look bad."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from ledger import LedgerSink

from headrace import (
    KeyedProcessFunction,
    ListStateDescriptor,
    MapFunction,
    StreamExecutionEnvironment,
    Types,
    ValueStateDescriptor,
    WatermarkStrategy,
)
from headrace.errors import DuplicateUidError, HeadraceError, PoisonRecordError, UserFunctionError
from headrace.testing import CHECKPOINT, CRASH, TestSource, run_until_done

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]

COMPOSED, DECOMPOSED = unicodedata.normalize("NFC", "é"), unicodedata.normalize("NFD", "é")
ALIKE = [1, "1", 1.0, True, b"1", (1,), COMPOSED, DECOMPOSED, "", 0, False, 0.0, "x" * 65_536, b"x" * 65_536]


@pytest.mark.parametrize("backend", ["heap", "rocksdb"])
@pytest.mark.parametrize("mode", ["aligned", "unaligned"])
def test_keys_that_look_alike_stay_distinct_through_exchange_state_and_restore(
    bench: Any, backend: str, mode: str
) -> None:
    places = list(range(len(ALIKE)))
    script = TestSource([*places, CHECKPOINT, *places, CRASH, *places])
    env = bench.env(parallelism=2, backend=backend, mode=mode, interval=50)
    numbers = env.from_source(script, WatermarkStrategy.no_watermarks(), "places").uid("places")
    keyed = numbers.key_by(lambda place: ALIKE[place])
    counts = keyed.map_with_state(lambda place, n: ((place, (n or 0) + 1), (n or 0) + 1), state_type=int).uid("counts")

    outcome = run_until_done(counts, "alike", restarts=1)

    assert Counter(outcome.committed) == Counter((place, n) for place in places for n in (1, 2, 3))


def failing(bench: Any, start: Any, build: Callable[[Any], Any], values: list[Any], **source: Any) -> HeadraceError:
    """The error of a job over these values that cannot go on; nothing is shown of it."""
    env = bench.env(interval=50, restarts=0)
    numbers = env.from_source(TestSource(values, **source), WatermarkStrategy.no_watermarks(), "values").uid("values")
    build(numbers).sink_to(LedgerSink(bench.directory / "out")).uid("sink")
    with pytest.raises(HeadraceError) as caught:
        start(env).finish()
    assert LedgerSink(bench.directory / "out").lines() == []
    return caught.value


@pytest.mark.parametrize(
    ("key", "named"),
    [(None, "None"), ([1, 2], "list"), ({"a": 1}, "dict"), (object, "type")],
    ids=["None", "a list", "a dict", "a class"],
)
def test_a_key_that_cannot_be_one_is_named_with_its_record(bench: Any, start: Any, key: Any, named: str) -> None:
    def build(stream: Any) -> Any:
        keyed = stream.key_by(lambda value: key if value == 3 else value)
        return keyed.map_with_state(lambda v, n: (v, 1), state_type=int).uid("counts")

    error = failing(bench, start, build, [1, 2, 3, 4])
    assert isinstance(error, UserFunctionError)
    assert "key" in str(error)
    assert named in str(error)
    assert error.record == "3"


def test_a_key_selector_that_raises_is_shown_with_its_own_line(bench: Any, start: Any) -> None:
    def build(stream: Any) -> Any:
        keyed = stream.key_by(lambda value: {1: "a", 2: "b"}[value])
        return keyed.map_with_state(lambda v, n: (v, 1), state_type=int).uid("counts")

    error = failing(bench, start, build, [1, 2, 3, 4])
    assert isinstance(error, UserFunctionError)
    assert "KeyError: 3" in str(error)
    assert error.record == "3"
    assert error.location.startswith(__file__)


def test_a_value_its_declared_type_cannot_hold_is_named_with_its_operator(bench: Any, start: Any) -> None:
    def build(stream: Any) -> Any:
        typed = stream.map(lambda v: v if v != 3 else "three", output_type=Types.LONG()).uid("typed").name("typed")
        return typed.rebalance().map(lambda v: v).uid("next")

    error = failing(bench, start, build, [1, 2, 3, 4])
    assert isinstance(error, UserFunctionError)
    assert error.operator == "typed"
    assert error.record == "'three'"
    assert "LONG" in str(error)


def test_a_value_that_a_state_cannot_hold_is_refused_where_it_is_set(bench: Any, start: Any) -> None:
    def build(stream: Any) -> Any:
        keyed = stream.key_by(lambda v: "k")
        return keyed.map_with_state(lambda v, n: (v, v if v != 3 else "three"), state_type=int).uid("counts")

    error = failing(bench, start, build, [1, 2, 3, 4])
    assert isinstance(error, UserFunctionError)
    assert error.uid == "counts"
    assert "three" in str(error)


class Forgetful(MapFunction):
    """Asks for keyed state on a stream that has no key."""

    def open(self, runtime_context: Any) -> None:
        runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))

    def map(self, value: Any) -> Any:
        return value


def test_state_without_a_key_says_to_call_key_by(bench: Any, start: Any) -> None:
    error = failing(bench, start, lambda stream: stream.map(Forgetful()).uid("forgetful").name("forgetful"), [1])
    assert 'asks for keyed state "count"' in str(error)
    assert "key_by" in str(error)
    assert "forgetful" in str(error)


class TwoMinds(KeyedProcessFunction):
    """One state name, two shapes."""

    def open(self, runtime_context: Any) -> None:
        runtime_context.get_state(ValueStateDescriptor("seen", Types.LONG()))
        runtime_context.get_list_state(ListStateDescriptor("seen", Types.LONG()))

    def process_element(self, value: Any, ctx: Any) -> None: ...


def test_one_state_name_with_two_shapes_is_refused(bench: Any, start: Any) -> None:
    error = failing(bench, start, lambda stream: stream.key_by(lambda v: v).process(TwoMinds()).uid("two"), [1])
    assert '"seen"' in str(error)
    assert "list" in str(error).lower()


def test_two_operators_with_one_uid_are_refused_before_anything_starts() -> None:
    env = StreamExecutionEnvironment.get_execution_environment()
    stream = env.from_collection([1]).map(lambda v: v).uid("same").map(lambda v: v).uid("same")
    stream.print()
    with pytest.raises(DuplicateUidError, match="same"):
        env.execute("twice")


class FailsOnThree(MapFunction):
    def map(self, value: Any) -> Any:
        if value == 3:
            raise ValueError("I do not like threes")
        return value


def test_a_record_that_fails_in_three_attempts_is_named_and_nothing_after_it_is_shown(bench: Any, start: Any) -> None:
    env = bench.env(parallelism=1, interval=50, restarts=60)
    script = TestSource([1, 2, CHECKPOINT, 3, 4])
    numbers = env.from_source(script, WatermarkStrategy.no_watermarks(), "values").uid("values")
    sink = LedgerSink(bench.directory / "out")
    numbers.map(FailsOnThree()).uid("picky").name("picky").map(lambda v: ("value", v)).uid("told").sink_to(sink).uid(
        "s"
    )
    job = start(env)
    with pytest.raises(PoisonRecordError, match=r"same record in 3 attempts in a row.*I do not like threes") as caught:
        job.finish()
    assert caught.value.record == "3"
    assert job.report.restarts == 2
    assert sink.lines() == [("value", 1), ("value", 2)]
