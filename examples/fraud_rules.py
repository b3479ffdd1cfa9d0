"""Fraud rules that change while the job runs: payments by account meet a broadcast of rules.

    python examples/fraud_rules.py

Every subtask keeps all rules in broadcast state. A payment waits in keyed state until event time has reached it, so
it is judged by the rules of its own time, whichever stream was faster.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from headrace import (
    KeyedBroadcastProcessFunction,
    ListState,
    ListStateDescriptor,
    MapStateDescriptor,
    RuntimeContext,
    StreamExecutionEnvironment,
    Types,
    WatermarkStrategy,
)

PAYMENT = Types.ROW_NAMED(["account", "amount", "at"], [str, float, int])
RULE = Types.ROW_NAMED(["name", "limit", "at"], [str, float, int])
"""Payments above the limit are an alert from `at` on; a limit of 0 takes the rule away."""

PAYMENTS = [
    ("ann", 900.0, 1_000),
    ("bob", 90.0, 2_000),
    ("ann", 900.0, 3_000),
    ("bob", 90.0, 4_000),
    ("ann", 900.0, 5_000),
    ("bob", 90.0, 6_000),
]
RULES = [("large", 500.0, 2_500), ("medium", 50.0, 3_500), ("large", 0.0, 4_500)]

RULES_IN_FORCE = MapStateDescriptor("rules", str, Types.LIST(Types.TUPLE([int, float])))
"""By name: from when on which limit."""


class Judge(KeyedBroadcastProcessFunction):
    """Emits `(account, amount, at, rule)` for each payment above the limit of a rule."""

    waiting: ListState[Any]

    def open(self, runtime_context: RuntimeContext) -> None:
        self.waiting = runtime_context.get_list_state(ListStateDescriptor("waiting", PAYMENT))

    def process_element(self, value: Any, ctx: KeyedBroadcastProcessFunction.ReadOnlyContext) -> None:
        self.waiting.add(value)
        ctx.timer_service().register_event_time_timer(value.at)

    def process_broadcast_element(self, value: Any, ctx: KeyedBroadcastProcessFunction.Context) -> None:
        rules = ctx.get_broadcast_state(RULES_IN_FORCE)
        rules[value.name] = [*(rules.get(value.name) or ()), (value.at, value.limit)]

    def on_timer(
        self, timestamp: int, ctx: KeyedBroadcastProcessFunction.OnTimerContext
    ) -> Iterator[tuple[str, float, int, str]]:
        payments = list(self.waiting)
        self.waiting.update([payment for payment in payments if payment.at > timestamp])
        for name, changes in ctx.get_broadcast_state(RULES_IN_FORCE).items():
            limit = limit_at(timestamp, changes)
            for payment in payments:
                if payment.at <= timestamp and limit and payment.amount > limit:
                    yield payment.account, payment.amount, payment.at, name


def limit_at(timestamp: int, changes: list[tuple[int, float]]) -> float:
    """The limit that the last change up to that time set; 0 if there was none."""
    return max((change for change in changes if change[0] <= timestamp), default=(0, 0.0))[1]


def main(env: StreamExecutionEnvironment | None = None) -> list[tuple[str, float, int, str]]:
    """Run the job and give the alerts in order of time."""
    env = env or StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(2)
    by_time = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda row, _: row.at)
    payments = env.from_collection(PAYMENTS, PAYMENT).assign_timestamps_and_watermarks(by_time)
    rules = env.from_collection(RULES, RULE).assign_timestamps_and_watermarks(by_time)
    alerts = payments.key_by("account").connect(rules.broadcast(RULES_IN_FORCE)).process(Judge()).uid("judge")
    with alerts.execute_and_collect("fraud-rules") as results:
        return sorted(results, key=lambda alert: alert[2:])


if __name__ == "__main__":
    for account, amount, at, rule in main():
        print(f"{account} paid {amount} at {at}: {rule}")
