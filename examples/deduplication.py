"""Each payment once, however often it is sent within an hour: the ids seen are state with a time-to-live.

    python examples/deduplication.py

The sender may repeat a payment, but not for longer than an hour. So an id need not be known for longer either, and the
state does not grow without end: an entry expires one hour after it was written, and the backend clears it away.
"""

from __future__ import annotations

from typing import Any

from headrace import (
    DataStream,
    FilterFunction,
    RuntimeContext,
    StateTtlConfig,
    StreamExecutionEnvironment,
    Time,
    Types,
    ValueState,
    ValueStateDescriptor,
)

PAYMENT = Types.ROW_NAMED(["id", "amount"], [str, int])
PAYMENTS = [("p-1", 20), ("p-2", 35), ("p-1", 20), ("p-3", 5), ("p-2", 35), ("p-1", 20)]
KNOWN_FOR = Time.hours(1)


class FirstTime(FilterFunction):
    """Lets a key pass if it was not seen within the time-to-live."""

    seen: ValueState[bool]

    def __init__(self, known_for: Time) -> None:
        self.known_for = known_for

    def open(self, runtime_context: RuntimeContext) -> None:
        seen = ValueStateDescriptor("seen", bool)
        seen.enable_time_to_live(StateTtlConfig.new_builder(self.known_for).build())
        self.seen = runtime_context.get_state(seen)

    def filter(self, value: Any) -> bool:
        if self.seen.value():
            return False
        self.seen.update(True)
        return True


def deduplicated(payments: DataStream) -> DataStream:
    """The payments, each id once an hour."""
    return payments.key_by("id").filter(FirstTime(KNOWN_FOR)).uid("first-time")


def main(env: StreamExecutionEnvironment | None = None) -> list[tuple[str, int]]:
    """Run the job and give the payments that passed, by id."""
    env = env or StreamExecutionEnvironment.get_execution_environment()
    with deduplicated(env.from_collection(PAYMENTS, PAYMENT)).execute_and_collect("deduplication") as results:
        return sorted((payment.id, payment.amount) for payment in results)


if __name__ == "__main__":
    for payment, amount in main():
        print(f"{payment}: {amount}")
