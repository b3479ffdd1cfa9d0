"""Payments with the names of their countries: a join with a table that does not change.

    python examples/join_static_table.py

The table is an Arrow table here; a list of rows or a Spark DataFrame does as well. It travels to the tasks once.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from headrace import StreamExecutionEnvironment, Types

PAYMENT = Types.ROW_NAMED(["id", "country", "amount"], [int, str, float])
PAYMENTS = [(1, "it", 10.0), (2, "no", 25.0), (3, "xx", 5.0), (4, "it", 7.5)]
COUNTRIES = pa.table({"country": ["it", "no", "ch"], "name": ["Italy", "Norway", "Switzerland"]})


def with_country(payment: Any, country: Any) -> tuple[int, str, float]:
    """`country` is None where the table has no row."""
    return payment.id, "unknown" if country is None else country.name, payment.amount


def main(env: StreamExecutionEnvironment | None = None) -> list[tuple[int, str, float]]:
    """Run the job and give the payments by number."""
    env = env or StreamExecutionEnvironment.get_execution_environment()
    payments = env.from_collection(PAYMENTS, PAYMENT)
    named = payments.lookup_join(COUNTRIES, "country", how="left", function=with_country)
    with named.execute_and_collect("join-static-table") as results:
        return sorted(results)


if __name__ == "__main__":
    for number, country, amount in main():
        print(f"payment {number}: {amount} from {country}")
