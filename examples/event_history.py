"""The history of each user's visit, told when the visit ends: a list in state, element by element.

    python examples/event_history.py

A list state keeps its elements one by one, so adding an event does not read or write those that are there already. A
visit ends with a logout, or, for those who just leave, half an hour of event time after the last event.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from headrace import (
    KeyedProcessFunction,
    ListState,
    ListStateDescriptor,
    RuntimeContext,
    StreamExecutionEnvironment,
    Types,
    ValueState,
    ValueStateDescriptor,
    WatermarkStrategy,
)

MINUTE = 60_000
PATIENCE = 30 * MINUTE
EVENT = Types.ROW_NAMED(["user", "action", "at"], [str, str, int])
EVENTS = [
    ("ann", "login", 0),
    ("bob", "login", 1 * MINUTE),
    ("ann", "search", 2 * MINUTE),
    ("ann", "buy", 5 * MINUTE),
    ("bob", "search", 6 * MINUTE),
    ("ann", "logout", 7 * MINUTE),
    ("ann", "login", 50 * MINUTE),
]


class Visits(KeyedProcessFunction):
    """Emits `(user, how the visit ended, its actions in order)`."""

    history: ListState[str]
    deadline: ValueState[int]

    def open(self, runtime_context: RuntimeContext) -> None:
        self.history = runtime_context.get_list_state(ListStateDescriptor("history", str))
        self.deadline = runtime_context.get_state(ValueStateDescriptor("deadline", int))

    def process_element(self, event: Any, ctx: KeyedProcessFunction.Context) -> Iterator[Any]:
        self.history.add(event.action)
        before = self.deadline.value()
        if before is not None:
            ctx.timer_service().delete_event_time_timer(before)
        if event.action == "logout":
            yield from self.end(ctx, "logged out")
        else:
            self.deadline.update(event.at + PATIENCE)
            ctx.timer_service().register_event_time_timer(event.at + PATIENCE)

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterator[Any]:
        yield from self.end(ctx, "went away")

    def end(self, ctx: KeyedProcessFunction.Context, how: str) -> Iterator[Any]:
        yield ctx.get_current_key(), how, list(self.history)
        self.history.clear()
        self.deadline.clear()


def main(env: StreamExecutionEnvironment | None = None) -> list[tuple[str, str, list[str]]]:
    """Run the job and give all visits, by user and in order."""
    env = env or StreamExecutionEnvironment.get_execution_environment()
    by_time = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda event, _: event.at)
    # By one subtask, as the collection is read: two would not keep the events in order.
    events = env.from_collection(EVENTS, EVENT).assign_timestamps_and_watermarks(by_time).set_parallelism(1)
    with events.key_by("user").process(Visits()).execute_and_collect("event-history") as results:
        return sorted(results, key=lambda visit: visit[0])


if __name__ == "__main__":
    for user, how, actions in main():
        print(f"{user} {how}: {', '.join(actions)}")
