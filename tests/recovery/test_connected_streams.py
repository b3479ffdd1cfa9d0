"""Two inputs, broadcast rules and operator state through crashes and changes of width: exact, each of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from checkpoints import opened, published
from ledger import THE_END, Ledger, LedgerSink, LedgerSource

from headrace import (
    CheckpointedFunction,
    ExternalizedCheckpointRetention,
    FlatMapFunction,
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    Types,
    ValueStateDescriptor,
    WatermarkStrategy,
)

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]

EVENT_TIME = WatermarkStrategy.for_monotonous_timestamps()
PLAIN = {"aligned": "heap", "unaligned": "heap", "timeout": "rocksdb"}
"""Which backend goes with which mode here."""


def records(env: Any, ledger: Ledger, name: str) -> Any:
    return env.from_source(LedgerSource(ledger), EVENT_TIME, name).uid(name)


def first_field(record: Any) -> Any:
    return record[0]


class TwoBooks(KeyedCoProcessFunction):
    """Follows the sequences of both inputs under one key, and tells both at the end."""

    def open(self, runtime_context: Any) -> None:
        self._last = [runtime_context.get_state(ValueStateDescriptor(name, Types.LONG())) for name in ("one", "two")]

    def process_element1(self, value: Any, ctx: Any) -> Iterator[Any]:
        return self._take(0, value, ctx)

    def process_element2(self, value: Any, ctx: Any) -> Iterator[Any]:
        return self._take(1, value, ctx)

    def _take(self, input: int, value: Any, ctx: Any) -> Iterator[Any]:
        key, number = value
        last = self._last[input].value() or 0
        if number != last + 1:
            yield ("alert", key, input, last, number)
        self._last[input].update(number)
        ctx.timer_service().register_event_time_timer(THE_END)

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        yield ("final", ctx.get_current_key(), self._last[0].value(), self._last[1].value())


@pytest.mark.parametrize("mode", PLAIN)
def test_two_inputs_that_share_a_key_are_followed_without_a_gap_through_crashes(
    bench: Any, faults: Any, start: Any, mode: str
) -> None:
    faults.plan("record=kill@20#1.1", "before_ack=kill@3#1.0", "barrier_injected=exit@4#0.0")
    one = Ledger(length=300, rate=2_500).holding_for(faults)
    two = Ledger(length=120, splits=2, rate=800)
    sink = LedgerSink(bench.directory / "out")
    env = bench.env(mode=mode, backend=PLAIN[mode], interval=50)
    connected = records(env, one, "one").connect(records(env, two, "two").set_parallelism(1))
    connected.key_by(first_field, first_field).process(TwoBooks()).uid("books").sink_to(sink).uid("sink")

    result = start(env).finish()

    assert Counter(sink.lines()) == Counter(("final", key, one.length, two.length) for key in range(one.keys))
    assert len(faults.happened) == faults.planned
    assert 1 <= result.restarts <= faults.planned


def told(left: Any, right: Any, ctx: Any) -> Iterator[Any]:
    yield (left[0], left[1], right[1])


@pytest.mark.parametrize("mode", PLAIN)
def test_an_interval_join_finds_every_pair_once_through_crashes_and_a_change_of_width(
    bench: Any, faults: Any, start: Any, mode: str
) -> None:
    ledger = Ledger(keys=8, length=300, rate=2_000)
    sink = LedgerSink(bench.directory / "out")

    def launch(parallelism: int, held: Ledger) -> Any:
        env = bench.env(parallelism=parallelism, mode=mode, backend=PLAIN[mode], interval=50)
        left, right = records(env, held, "left"), records(env, ledger, "right")
        joined = left.key_by(first_field).interval_join(right.key_by(first_field)).between(-1, 2).process(told)
        joined.uid("join").sink_to(sink).uid("sink")
        return start(env)

    go = bench.directory / "go"
    waiting = Ledger(keys=8, length=300, rate=2_000, faults=1, fault_log=str(go))
    first = launch(2, waiting)
    first.wait_for("checkpoint", lambda checkpoint: checkpoint["checkpoint_id"] >= 3)
    first.suspend()
    faults.plan("before_ack=kill@2#1.2", "record=kill@15#1.0")
    second = launch(3, waiting)
    second.wait_for("restarting")
    go.mkdir()
    (go / "on").touch()
    second.finish()

    ends = range(1, ledger.length + 1)
    wanted = Counter(
        (key, number, other)
        for key in range(ledger.keys)
        for number in ends
        for other in range(number - 1, number + 3)
        if other in ends
    )
    assert Counter(sink.lines()) == wanted
    assert faults.happened


RULES = MapStateDescriptor("rules", Types.STRING(), Types.LONG())


class Judge(KeyedBroadcastProcessFunction):
    """Every subtask follows the rules as they change, and every record is seen with its key."""

    def open(self, runtime_context: Any) -> None:
        self._me = runtime_context.get_index_of_this_subtask()
        self._last = runtime_context.get_state(ValueStateDescriptor("last", Types.LONG()))

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        key, number = value
        if number != (self._last.value() or 0) + 1:
            yield ("alert", "record", key, self._last.value(), number)
        self._last.update(number)
        yield ("seq", key, number)

    def process_broadcast_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        rules = ctx.get_broadcast_state(RULES)
        number = value[1]
        if number != (rules.get("last") or 0) + 1:
            yield ("alert", "rule", self._me, rules.get("last"), number)
        rules["last"] = number
        yield ("rule", self._me, number)


@pytest.mark.parametrize("mode", PLAIN)
def test_every_subtask_sees_every_rule_once_and_in_order_through_crashes(
    bench: Any, faults: Any, start: Any, mode: str
) -> None:
    faults.plan("record=kill@30#1.1", "before_ack=kill@3#1.0", "after_upload=kill@5#1.2", "barrier_injected=exit@6#0.0")
    events = Ledger(length=300, rate=3_000)
    rules = Ledger(keys=1, length=400, splits=1, rate=400).holding_for(faults)
    sink = LedgerSink(bench.directory / "out")
    env = bench.env(parallelism=3, mode=mode, backend=PLAIN[mode], interval=50)
    broadcast = records(env, rules, "rules").set_parallelism(1).broadcast(RULES)
    judged = records(env, events, "events").key_by(first_field).connect(broadcast).process(Judge()).uid("judge")
    judged.sink_to(sink).uid("sink")

    result = start(env).finish()

    wanted = Counter(("seq", key, number) for key in range(events.keys) for number in range(1, events.length + 1))
    wanted.update(("rule", subtask, number) for subtask in range(3) for number in range(1, rules.length + 1))
    assert Counter(sink.lines()) == wanted
    assert len(faults.happened) == faults.planned
    assert 1 <= result.restarts <= faults.planned


class Bundled(FlatMapFunction, CheckpointedFunction):
    """Gathers seven records at a time, of whatever key; those of an unfinished bundle are operator state."""

    def initialize_state(self, context: Any) -> None:
        self._state = context.get_operator_state_store().get_list_state(
            ListStateDescriptor("open", Types.TUPLE([Types.LONG(), Types.LONG()]))
        )
        self._open = [tuple(record) for record in self._state]

    def flat_map(self, value: Any) -> Iterator[Any]:
        self._open.append(tuple(value))
        while len(self._open) >= 7:
            bundle, self._open = self._open[:7], self._open[7:]
            yield bundle

    def snapshot_state(self, context: Any) -> None:
        self._state.update(self._open)


@pytest.mark.parametrize("mode", ["aligned", "unaligned"])
def test_list_state_goes_through_two_and_three_and_one_subtasks_and_a_crash_without_loss(
    bench: Any, faults: Any, start: Any, mode: str
) -> None:
    go = bench.directory / "go"
    ledger = Ledger(length=300, rate=3_000, faults=1, fault_log=str(go))
    sink = LedgerSink(bench.directory / "out")

    def launch(parallelism: int) -> Any:
        env = bench.env(parallelism=parallelism, mode=mode, interval=50)
        config = env.get_checkpoint_config()
        config.set_externalized_checkpoint_retention(ExternalizedCheckpointRetention.RETAIN_ON_CANCELLATION)
        bundles = records(env, ledger, "src").rebalance().flat_map(Bundled()).uid("bundles")
        bundles.sink_to(sink).uid("sink")
        return start(env)

    first = launch(2)
    first.wait_for("checkpoint", lambda checkpoint: checkpoint["checkpoint_id"] >= 3)
    first.suspend()
    faults.plan("before_ack=kill@3#1.2")
    second = launch(3)
    second.wait_for("restarting")
    again = second.wait_for("running", lambda running: running["attempt"] == 3)
    second.wait_for("checkpoint", lambda checkpoint: checkpoint["checkpoint_id"] > again["restored"] + 1)
    second.suspend()
    go.mkdir()
    (go / "on").touch()
    launch(1).finish()

    last = opened(bench, int(published(bench)[-1].name[4:]))
    left = [
        tuple(msgspec.msgpack.decode(element))
        for operator in last.metadata.operators
        if operator.uid == "bundles"
        for subtask in operator.subtasks
        for share in subtask.operator_state
        for element in share.elements
    ]
    seen = Counter(tuple(record) for bundle in sink.lines() for record in bundle)
    assert len(left) < 7
    assert seen + Counter(left) == Counter((k, n) for k in range(ledger.keys) for n in range(1, ledger.length + 1))
    assert faults.happened
