"""Queues of records in flight, and the whole async operator, against plain models."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from help_desk import Ask, HelpDesk
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.datastream.async_stream import AsyncDataStream
from headrace.operators.async_queue import InFlight, OrderedQueue, UnorderedQueue
from headrace.testing import OperatorHarness

QUEUE_STEPS = st.lists(
    st.one_of(st.just("add"), st.just("mark"), st.tuples(st.just("done"), st.integers(0, 20)), st.just("leave")),
    max_size=60,
)


@pytest.mark.parametrize("ordered", [False, True])
@given(steps=QUEUE_STEPS)
@settings(max_examples=200)
def test_a_queue_lets_out_what_its_order_allows_and_as_soon_as_it_does(ordered: bool, steps: list[Any]) -> None:
    queue = OrderedQueue() if ordered else UnorderedQueue()
    left: list[Any] = []
    model: list[Any] = []
    """What has not left: [name, record, when it was done], or the number of a mark."""
    expected: list[Any] = []
    for number, step in enumerate([*steps, "leave"]):
        match step:
            case "add":
                record = InFlight(number, None)
                queue.add(record)
                model.append([number, record, None])
            case "mark":
                queue.mark(lambda n=number: left.append(("mark", n)))  # type: ignore[misc]
                model.append(("mark", number))
            case ("done", which):
                pending = [entry for entry in model if isinstance(entry, list) and entry[2] is None]
                if pending:
                    entry = pending[which % len(pending)]
                    entry[1].results, entry[2] = [entry[0]], number
                    queue.done(entry[1])
            case "leave":
                for item in queue.leaving():
                    left.append(item.value) if isinstance(item, InFlight) else item()
                expected += may_leave(model, ordered)
                assert left == expected
                assert [r.value for r in queue.records()] == [e[0] for e in model if isinstance(e, list)]
                assert queue.count == sum(isinstance(e, list) for e in model)
                assert queue.empty == (not model)


def may_leave(model: list[Any], ordered: bool) -> list[Any]:
    """Take out of the model what may leave, the slow and obvious way."""
    out: list[Any] = []
    while model:
        if not isinstance(model[0], list):
            out.append(model.pop(0))
            continue
        end = next((i for i, entry in enumerate(model) if not isinstance(entry, list)), len(model))
        segment = model[:1] if ordered else model[:end]
        done = sorted((entry for entry in segment if entry[2] is not None), key=lambda entry: entry[2])
        for entry in done:
            out.append(entry[0])
            model.remove(entry)
        if len(done) < len(segment):
            return out
    return out


STEPS = st.lists(
    st.one_of(
        st.just("record"),
        st.just("record"),
        st.just("watermark"),
        st.tuples(st.just("answer"), st.integers(0, 10)),
        st.just("snapshot"),
        st.tuples(st.just("crash"), st.integers(1, 3)),
    ),
    max_size=25,
)


@pytest.mark.parametrize("ordered", [False, True])
@given(steps=STEPS)
@settings(max_examples=25)
def test_every_record_gives_its_results_once_through_any_snapshots_and_crashes(ordered: bool, steps: list[Any]) -> None:
    desk = HelpDesk()
    wait = AsyncDataStream.ordered_wait if ordered else AsyncDataStream.unordered_wait
    with OperatorHarness.of(lambda s: wait(s, Ask(desk), 60_000, 4)) as harness:
        fed: list[tuple[str, int]] = []
        """Everything that was ever fed, as ("record" or "watermark", number), in order."""
        saved = 0
        feed = Feed(harness, desk)
        for number, step in enumerate(steps):
            match step:
                case "record" | "watermark":
                    fed.append((step, number))
                    feed.give(step, number)
                case ("answer", which):
                    feed.answer(which)
                case "snapshot":
                    harness.snapshot()
                    saved = len(fed)
                case ("crash", width):
                    harness.crash(parallelism=width)
                    feed.open = feed.in_flight()
                    for what, n in fed[saved:]:
                        feed.give(what, n)
        feed.finish()
        records = [n for what, n in fed if what == "record"]
        assert Counter(harness.output.values) == Counter(records)
        if any(type(step) is tuple and step[0] == "crash" and step[1] > 1 for step in steps):
            return  # several subtasks: what follows holds for each of them alone
        if ordered:
            assert harness.output.values == records
        passed: set[int] = set()
        for event in harness.output.events:
            if type(event) is int:
                passed.add(event)
            elif event[0] == "watermark" and event[1] < len(steps):
                assert passed >= {n for n in records if n < event[1]}, "a watermark overtook a record"
                assert not any(n > event[1] for n in passed), "a record overtook a watermark"


class Feed:
    """Gives records, and answers calls where the operator would else have no room."""

    def __init__(self, harness: OperatorHarness, desk: HelpDesk) -> None:
        self.harness = harness
        self.desk = desk
        self.open: list[int] = []
        """Records whose call has no answer yet."""

    def give(self, what: str, number: int) -> None:
        if what == "watermark":
            self.harness.watermark(number)
            return
        while self.open and not all(operator.has_room() for operator in self.harness.operators):
            self.answer(0)
        self.harness.process(number)
        self.open.append(number)

    def answer(self, which: int) -> None:
        """Answer one of the calls that are made or about to be made: not of a record that waits for room."""
        waiting = {record.value for operator in self.harness.operators for record in operator._waiting}  # type: ignore[attr-defined]
        asked = [number for number in self.open if number not in waiting]
        if asked:
            chosen = asked[which % len(asked)]
            self.open.remove(chosen)
            self.desk.answer(chosen)
        self.harness.wait_until(lambda: True)

    def in_flight(self) -> list[int]:
        return sorted(r.value for operator in self.harness.operators for r in operator._queue.records())  # type: ignore[attr-defined]

    def finish(self) -> None:
        while self.open:
            self.answer(0)
        self.harness.end_input()
