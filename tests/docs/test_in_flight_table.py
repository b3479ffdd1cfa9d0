"""What the docs say about routes and unaligned checkpoints is what the engine does."""

from __future__ import annotations

from typing import Any, get_args

import pytest
from pages import DOCS

from headrace import DataStream, StreamExecutionEnvironment, WatermarkStrategy
from headrace.plan.graph import Partitioning
from headrace.runtime.task.routing import FIXED_ROUTES, ROUTE_NAMES
from headrace.testing import JobHarness, JobSnapshot, ManualSource


def documented() -> dict[str, bool]:
    """For each route of the table whether its records may be in flight."""
    page = (DOCS / "checkpoints-and-recovery.md").read_text()
    table = page.split("| route | in flight in a checkpoint |")[1].split("\n\n")[0]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()[2:]]
    assert {row[1] for row in rows} == {"yes", "never"}
    return {row[0].strip("`"): row[1] == "yes" for row in rows}


def test_the_table_has_every_route_and_says_which_are_fixed() -> None:
    assert set(ROUTE_NAMES) == set(get_args(Partitioning))
    assert documented() == {name: kind not in FIXED_ROUTES for kind, name in ROUTE_NAMES.items()}


def routed(stream: DataStream, route: str) -> Any:
    match route:
        case "key_by":
            return stream.key_by(lambda number: number)
        case "partition_custom":
            return stream.partition_custom(lambda key, n: key % n, lambda number: number)
    return getattr(stream, route)()


def job(route: str, source: ManualSource, width: int, restored: JobSnapshot | None = None) -> JobHarness:
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(width)
    env.enable_checkpointing(1_000)
    env.get_checkpoint_config().enable_unaligned_checkpoints()
    numbers = env.from_source(source, WatermarkStrategy.no_watermarks(), "numbers").uid("numbers")
    spread = numbers.rebalance().map(lambda number: number).uid("spread")
    # Never chained, so that every route is one between tasks.
    same = routed(spread, route).map(lambda number: number).uid("same").disable_chaining()
    return JobHarness(same, restored=restored)


@pytest.mark.parametrize("route", documented())
def test_records_of_a_route_are_in_flight_or_not_as_the_table_says_and_restore_at_every_width(route: str) -> None:
    source = ManualSource()
    copies = 2 if route == "broadcast" else 1
    with job(route, source, 2) as running:
        running.run()
        for number in range(30):
            source.emit(number)
            running.run(turns=4 if number % 3 == 0 else 2)
        saved = running.checkpoint(in_flight=True)
        before = running.results
    numbers = {edge for channel in saved.metadata.channels for edge in channel.edges}
    targets = {record.target for record in saved.metadata.edge_records if record.number in numbers}
    assert "spread" in targets, "barriers must overtake something, or nothing is shown"
    assert ("same" in targets) is documented()[route]
    source.end()
    for width in (1, 2, 3):
        with job(route, source, width, saved) as running:
            results = running.run_to_end()
        if route == "broadcast":
            first, rest = set(before), sorted(results)
            assert sorted(before) == sorted(number for number in first for _ in range(copies))
            assert rest == sorted(number for number in set(range(30)) - first for _ in range(width))
        else:
            assert sorted(before + results) == list(range(30))


def test_other_pages_point_to_the_table_instead_of_saying_it_again() -> None:
    home = "checkpoints-and-recovery.md#unaligned"
    for page in ("reference/checkpoints-and-savepoints.md", "reference/connected-streams.md"):
        text = (DOCS / page).read_text()
        assert f"[never in flight](../{home})" in text
        assert "refused with the edge's target" not in text
