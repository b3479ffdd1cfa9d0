"""Orders and their shipments: an interval join of two streams by order number.

    python examples/order_shipment_join.py

A shipment belongs to an order if it leaves within four hours. What lies longer apart is no pair, and of each side
only the last four hours are kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from headrace import ProcessJoinFunction, StreamExecutionEnvironment, Time, Types, WatermarkStrategy

HOUR = 3_600_000
ORDER = Types.ROW_NAMED(["number", "item", "at"], [int, str, int])
SHIPMENT = Types.ROW_NAMED(["number", "carrier", "at"], [int, str, int])

ORDERS = [(1, "lamp", 0), (2, "desk", HOUR), (3, "chair", 2 * HOUR), (4, "shelf", 3 * HOUR)]
SHIPMENTS = [(1, "van", HOUR), (3, "bike", 2 * HOUR), (2, "van", 4 * HOUR), (4, "ship", 8 * HOUR)]


class Delivery(ProcessJoinFunction):
    """Emits `(number, item, carrier, hours)`."""

    def process_element(
        self, left: Any, right: Any, ctx: ProcessJoinFunction.Context
    ) -> Iterator[tuple[int, str, str, float]]:
        yield left.number, left.item, right.carrier, (ctx.get_right_timestamp() - ctx.get_left_timestamp()) / HOUR


def main(env: StreamExecutionEnvironment | None = None) -> list[tuple[int, str, str, float]]:
    """Run the job and give the deliveries by order number."""
    env = env or StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(2)
    by_time = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda row, _: row.at)
    orders = env.from_collection(ORDERS, ORDER).assign_timestamps_and_watermarks(by_time)
    shipments = env.from_collection(SHIPMENTS, SHIPMENT).assign_timestamps_and_watermarks(by_time)
    deliveries = (
        orders.key_by("number")
        .interval_join(shipments.key_by("number"))
        .between(Time.hours(0), Time.hours(4))
        .process(Delivery())
        .uid("deliveries")
    )
    with deliveries.execute_and_collect("order-shipment-join") as results:
        return sorted(results)


if __name__ == "__main__":
    for number, item, carrier, hours in main():
        print(f"order {number} ({item}) left by {carrier} after {hours:g} hours")
