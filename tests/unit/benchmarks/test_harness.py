"""What the harness promises: a right oracle, honest ratios, and no figure where nothing was measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pyarrow.parquet as pq
import pytest
from bench import dataset, programs
from bench.harness import Outcome, Pair, Verdict, judge
from bench.interval_job import Progress
from bench.interval_measures import OFF, Point, draw, parse_intervals
from bench.measures import ALL, Bound, Figure, Measure, Quantity, Rows, Run, by_name

RATE = Figure(Quantity.RECORDS_PER_SECOND, bound=Bound.AT_LEAST, target=3)
AGAINST_BYTEWAX = by_name("throughput-vs-bytewax")


def ran(records_per_second: float, seconds: float = 30.0) -> Outcome:
    """A run of this rate."""
    line = {"records": records_per_second * seconds, "seconds_between_first_and_last_record": seconds}
    return Outcome(line)


def test_expected_alerts_are_those_of_a_plain_loop_over_each_file(tmp_path: Path) -> None:
    made = dataset.ensure(keys=500, rows=400_000 + 4, home=tmp_path)
    alerts = 0
    owner: dict[str, Path] = {}
    for path in sorted(made.directory.glob("*.parquet")):
        last: dict[str, float] = {}
        table = pq.read_table(path)
        for key, temperature in zip(table["id"].to_pylist(), table["temperature"].to_pylist(), strict=True):
            alerts += key in last and abs(temperature - last[key]) > dataset.THRESHOLD
            last[key] = temperature
            assert owner.setdefault(key, path) == path
    assert made.alerts == alerts
    assert 0.01 < made.jump_share < 0.02


def test_fewer_rows_are_the_beginning_of_each_file_of_more_rows(tmp_path: Path) -> None:
    short = dataset.ensure(keys=500, rows=40_000, home=tmp_path)
    long = dataset.ensure(keys=500, rows=1_000_000, home=tmp_path)
    for path in short.directory.glob("*.parquet"):
        rows = pq.read_table(path)
        assert pq.read_table(long.directory / path.name).slice(0, rows.num_rows).equals(rows)


def test_figure_is_the_median_of_paired_ratios_not_the_ratio_of_medians() -> None:
    pairs = [Pair(ran(400), ran(100)), Pair(ran(900), ran(450)), Pair(ran(1000), ran(200))]
    judged = judge(RATE, AGAINST_BYTEWAX, pairs, smoke=False)
    assert judged.values == pytest.approx((4.0, 2.0, 5.0))
    assert judged.value == pytest.approx(4.0)
    assert judged.verdict is Verdict.REACHED


def test_one_pair_without_its_peer_makes_the_figure_missing() -> None:
    pairs = [Pair(ran(400), ran(100)), Pair(ran(400), Outcome(None, "it did not start"))]
    assert judge(RATE, AGAINST_BYTEWAX, pairs, smoke=False).verdict is Verdict.MISSING


def test_run_below_twenty_seconds_is_not_judged() -> None:
    pairs = [Pair(ran(400, seconds=19.9), ran(100))]
    assert judge(RATE, AGAINST_BYTEWAX, pairs, smoke=False).verdict is Verdict.TOO_SHORT


def test_smoke_run_is_never_a_verdict() -> None:
    assert judge(RATE, AGAINST_BYTEWAX, [Pair(ran(1), ran(100))], smoke=True).verdict is Verdict.SMOKE


def test_line_without_a_field_gives_no_number() -> None:
    line: dict[str, Any] = {"records": 10, "latency_p50_ms": None, "checkpoints": {"durations_ms": []}}
    assert [quantity.read(line) for quantity in Quantity] == [None] * len(Quantity)


def test_run_that_counts_wrongly_has_no_speed(tmp_path: Path) -> None:
    made = dataset.ensure(keys=500, rows=40_000, home=tmp_path)
    line = {"records": made.rows, "alerts": made.alerts + 1}
    with pytest.raises(programs.FailedRunError, match="Its speed does not count"):
        programs.check_counts("bytewax", line, made)


@pytest.mark.slow  # it makes an environment for the loop
def test_bare_loop_against_itself_is_right_and_near_one() -> None:
    side = Run("bare-loop", Rows(1_000, 100_000))
    itself = Measure("itself", "", side, side, (RATE,))
    outcomes = [Outcome(programs.run(side, (), programs.Limits(timeout_seconds=120))) for _ in range(2)]
    assert judge(RATE, itself, [Pair(*outcomes)], smoke=True).values[0] > 0


def test_every_measure_names_a_known_program_and_has_a_name_of_its_own() -> None:
    assert len({measure.name for measure in ALL}) == len(ALL)
    sides = [side for measure in ALL for side in (measure.ours, measure.other) if side]
    assert {side.program for side in sides} <= {*programs.OUR_MODULES, *programs.ENVIRONMENT_OF}


def test_the_picture_of_intervals_shows_what_was_measured_and_leaves_out_the_rest() -> None:
    points = [
        Point(OFF, [100_000.0], [1.0]),
        Point(10_000, [99_000.0], [0.99], [1.2], [9.5], [800_000]),
        Point(300, [80_000.0], [0.8], [1.1], [1.4], [20_000]),
        Point(1_000, problems=["it ended badly"]),
    ]
    picture = ElementTree.fromstring(draw(points, 1_000))
    kinds = [element.tag.rpartition("}")[2] for element in picture.iter()]
    assert kinds.count("polyline") == 3, "speed, restart and catching up"
    assert kinds.count("circle") == 6
    texts = {element.text for element in picture.iter() if element.tag.endswith("text")}
    assert {"10 s", "1 s", "0.3 s", "100%"} <= texts


def test_intervals_are_read_in_any_order_and_none_comes_first() -> None:
    assert parse_intervals("300,off,10000") == [OFF, 10_000, 300]


def test_progress_is_what_all_subtasks_had_processed_at_a_moment(tmp_path: Path) -> None:
    (tmp_path / "0-0").write_text("1.0 0\n2.0 2000\n3.0 4000\n")
    (tmp_path / "0-1").write_text("1.5 0\n2.5 2000\n")
    (tmp_path / "1-0").write_text("9.0 2100\n9.5 4000\n")
    (tmp_path / "1-1").write_text("9.2 1000\n9.9 2000\n")
    before, after = Progress(tmp_path, 0), Progress(tmp_path, 1)
    reached = before.count_at(2.9)
    assert reached == 4_000
    assert (after.first_at(), after.first_count(), after.reaches(reached)) == (9.0, 3_100, 9.5)
