"""Payments in other currencies at the rate of their own time: a join with a table that changes.

    python examples/join_changing_table.py

Each row of the table is a rate that holds until the next one of its currency. A payment meets the rate that held at
its own time, even if a newer one came before it.
"""

from __future__ import annotations

from typing import Any

from headrace import StreamExecutionEnvironment, Types, WatermarkStrategy

PAYMENT = Types.ROW_NAMED(["id", "currency", "amount", "at"], [int, str, float, int])
RATE = Types.ROW_NAMED(["currency", "rate", "at"], [str, float, int])

PAYMENTS = [(1, "chf", 100.0, 1_500), (2, "nok", 200.0, 2_000), (3, "chf", 100.0, 2_500), (4, "chf", 100.0, 3_000)]
RATES = [("chf", 1.0, 1_000), ("nok", 0.1, 1_200), ("chf", 1.25, 2_000), ("chf", 1.5, 3_000)]


def in_euro(payment: Any, rate: Any) -> tuple[int, float]:
    return payment.id, payment.amount * rate.rate


def main(env: StreamExecutionEnvironment | None = None) -> list[tuple[int, float]]:
    """Run the job and give the payments by number."""
    env = env or StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(2)
    by_time = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda row, _: row.at)
    payments = env.from_collection(PAYMENTS, PAYMENT).assign_timestamps_and_watermarks(by_time)
    rates = env.from_collection(RATES, RATE).assign_timestamps_and_watermarks(by_time)
    joined = payments.key_by("currency").temporal_join(rates.key_by("currency"), in_euro).uid("in-euro")
    with joined.execute_and_collect("join-changing-table") as results:
        return sorted(results)


if __name__ == "__main__":
    for number, amount in main():
        print(f"payment {number}: {amount:g} euro")
