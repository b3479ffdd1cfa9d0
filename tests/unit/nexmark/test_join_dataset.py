"""The orders and shipments of the join measures: the number of pairs is what a loop over all of them finds."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
from bench import join_dataset, programs
from bench.measures import ALL, by_name


def test_expected_pairs_are_those_of_a_plain_loop(tmp_path: Path) -> None:
    made = join_dataset.ensure(keys=20, rows=2_000, home=tmp_path)
    sides = []
    for name in ("orders", "shipments"):
        tables = [pq.read_table(path) for path in sorted(made.directory.glob(f"{name}-*.parquet"))]
        assert len(tables) == join_dataset.FILES
        for table in tables:
            assert table["ts"].to_pylist() == sorted(table["ts"].to_pylist())
        sides.append([row for table in tables for row in table.to_pylist()])
    orders, shipments = sides
    assert len(orders) + len(shipments) == made.rows == 2_000
    within = join_dataset.WITHIN_MS
    assert made.pairs == sum(
        order["id"] == shipment["id"] and order["ts"] <= shipment["ts"] <= order["ts"] + within
        for order in orders
        for shipment in shipments
    )
    assert join_dataset.ensure(keys=20, rows=2_000, home=tmp_path) == made


def test_join_measures_are_among_all_and_are_cut_short_for_a_smoke_run(tmp_path: Path) -> None:
    assert len({measure.name for measure in ALL}) == len(ALL)
    measure = by_name("interval-join-vs-spark-sql")
    for side in (measure.ours, measure.other):
        assert side is not None
        assert side.program in programs.OUR_MODULES or side.program in programs.SCRIPT_OF
    command = programs._command(measure.ours, (), None, programs.Limits(rows=1_000), tmp_path)
    assert command[-2:] == ["--rows", "1000"]
