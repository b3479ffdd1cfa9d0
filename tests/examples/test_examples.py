"""Every program in `examples/` runs to its end and gives what its page says."""

from __future__ import annotations

import runpy
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from headrace import StreamExecutionEnvironment, WatermarkStrategy
from headrace.testing import JobHarness, ManualSource

pytestmark = pytest.mark.spark

EXAMPLES = Path(__file__).parents[2] / "examples"
SHARED = {"readings"}
"""Modules of examples that are no programs."""
RUN_HERE = {
    "beads",
    "deduplication",
    "environment",
    "event_history",
    "fraud_rules",
    "hourly_average",
    "join_changing_table",
    "join_static_table",
    "login_count",
    "online_regression",
    "order_shipment_join",
    "over_ninety",
    "pre_aggregation",
    "running_sums",
    "temperature_alert",
    "temperature_alert_with_state",
    "three_counters",
    "two_readings_apart",
    "word_count_pyflink",
}


def example(name: str) -> Any:
    return import_module(name)


def test_every_program_in_the_folder_is_run_here() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} - SHARED == RUN_HERE


def test_a_stateless_alert_passes_readings_over_ninety_alone(env: StreamExecutionEnvironment) -> None:
    assert example("over_ninety").main(env) == ["boiler is at 93.5 degrees", "pump is at 104.2 degrees"]


@pytest.mark.parametrize("program", ["temperature_alert", "temperature_alert_with_state"])
def test_both_temperature_alerts_give_the_same_and_none_for_a_first_reading(
    env: StreamExecutionEnvironment, program: str
) -> None:
    alerts = example(program).main(env)
    assert alerts == example("readings").EXPECTED
    assert "sensor_3" not in {sensor for sensor, _, _ in alerts}, "its only reading is its first"


def test_running_sums_keep_the_order_of_each_key(env: StreamExecutionEnvironment) -> None:
    assert example("running_sums").main(env) == [("a", 1), ("a", 3), ("a", 6), ("b", 10), ("b", 30)]


def test_an_environment_with_backend_checkpoints_and_restart_strategy_runs(
    env: StreamExecutionEnvironment, tmp_path: Path
) -> None:
    assert example("environment").main(env, str(tmp_path)) == {"even": 5_000, "odd": 5_001}
    kept = list(tmp_path.glob("environment/run-000001/chk-*/_metadata"))
    assert 1 <= len(kept) <= 2, "the last two checkpoints are retained"


@pytest.mark.parametrize("mode", ["exactly-once", "at-least-once", "at-most-once"])
def test_logins_counted_through_a_crash_are_as_many_as_the_mode_promises(
    env: StreamExecutionEnvironment, mode: str
) -> None:
    program = example("login_count")
    counted = sum(program.main(env, mode).values())
    match mode:
        case "exactly-once":
            assert counted == program.LOGINS
        case "at-least-once":
            assert counted >= program.LOGINS
        case _:
            assert counted <= program.LOGINS


def test_beads_behind_the_band_are_counted_again_and_no_others(env: StreamExecutionEnvironment) -> None:
    story = example("beads").main(env)
    assert story.sums == {"a": 4, "b": 5, "c": 3}
    assert story.results == [("a", 2), ("a", 4), ("b", 2), ("b", 5), ("c", 1), ("c", 3)]
    band, crash = story.ledger.index("checkpoint complete"), story.ledger.index("crash")
    before, lost, again = story.ledger[:band], story.ledger[band + 1 : crash], story.ledger[crash + 1 :]
    assert before[0] == "source starts at 0"
    assert sorted(before[1:]) == ["counted [b,2]: b=2", "counted [b,3]: b=5", "counted [c,1]: c=1"]
    assert sorted(lost) == ["counted [a,2]: a=2", "counted [a,2]: a=4", "counted [c,2]: c=3"]
    assert again[0] == "source starts at 3"
    assert sorted(again[1:]) == sorted(lost), "exactly the last three come again, to the same sums"


def test_averages_of_each_hour_hold_the_readings_that_came_late(env: StreamExecutionEnvironment) -> None:
    assert example("hourly_average").main(env) == [
        ("cellar", 0, 12.0),
        ("cellar", 1, 12.0),
        ("roof", 0, 22.0),
        ("roof", 1, 31.0),
    ]


def test_every_minute_holds_sixty_ticks_of_each_counter_whatever_its_speed(env: StreamExecutionEnvironment) -> None:
    program = example("three_counters")
    assert program.main(env) == [(minute, 60, 60, 60) for minute in range(program.MINUTES)]


def test_sums_of_sums_are_the_sums_of_all(env: StreamExecutionEnvironment) -> None:
    assert example("pre_aggregation").main(env) == [(9_000, 3_600), (9_000, 3_600)]


def test_rules_judge_payments_from_their_own_time_on(env: StreamExecutionEnvironment) -> None:
    assert example("fraud_rules").main(env) == [
        ("ann", 900.0, 3_000, "large"),
        ("bob", 90.0, 4_000, "medium"),
        ("ann", 900.0, 5_000, "medium"),
        ("bob", 90.0, 6_000, "medium"),
    ]


def test_orders_meet_the_shipments_that_leave_within_four_hours(env: StreamExecutionEnvironment) -> None:
    assert example("order_shipment_join").main(env) == [
        (1, "lamp", "van", 1.0),
        (2, "desk", "van", 3.0),
        (3, "chair", "bike", 0.0),
    ]


def test_payments_get_the_names_of_a_static_table(env: StreamExecutionEnvironment) -> None:
    assert example("join_static_table").main(env) == [
        (1, "Italy", 10.0),
        (2, "Norway", 25.0),
        (3, "unknown", 5.0),
        (4, "Italy", 7.5),
    ]


def test_payments_get_the_rate_of_their_own_time(env: StreamExecutionEnvironment) -> None:
    assert example("join_changing_table").main(env) == [(1, 100.0), (2, 20.0), (3, 125.0), (4, 150.0)]


@pytest.mark.parametrize("form", ["process", "pattern"])
def test_readings_apart_are_the_same_as_process_function_and_as_pattern(
    env: StreamExecutionEnvironment, form: str
) -> None:
    program = example("two_readings_apart")
    assert program.main(env, form) == program.EXPECTED


def test_a_payment_passes_once_and_again_when_its_time_is_over(env: StreamExecutionEnvironment) -> None:
    program = example("deduplication")
    assert program.main(env) == [("p-1", 20), ("p-2", 35), ("p-3", 5)]
    source = ManualSource(program.PAYMENT)
    payments = StreamExecutionEnvironment().from_source(source, WatermarkStrategy.no_watermarks(), "payments")
    with JobHarness(program.deduplicated(payments)) as job:
        source.emit(("p-1", 20))
        job.advance(program.KNOWN_FOR.to_milliseconds() - 1)
        source.emit(("p-1", 20))
        job.advance(1)
        job.checkpoint()
        assert len(job.results) == 1
        source.emit(("p-1", 20))
        job.checkpoint()
        assert len(job.results) == 2


def test_the_history_of_a_visit_is_told_when_it_ends(env: StreamExecutionEnvironment) -> None:
    assert example("event_history").main(env) == [
        ("ann", "logged out", ["login", "search", "buy", "logout"]),
        ("ann", "went away", ["login"]),
        ("bob", "went away", ["login", "search"]),
    ]


def test_a_regression_predicts_better_the_more_it_has_learned(env: StreamExecutionEnvironment) -> None:
    accuracy = example("online_regression").main(env)
    assert set(accuracy) == {"shoes", "books"}
    assert all(late > early and late > 0.8 for early, late in accuracy.values())


def test_a_word_count_in_pyflinks_words_gives_the_last_count_of_each_word(spark_slots: Any) -> None:
    counts = example("word_count_pyflink").main()
    assert counts[:5] == [("the", 5), ("race", 3), ("it", 2), ("to", 2), ("wheel", 2)]
    assert len(counts) == len(dict(counts))


LAST_LINES = {
    "beads": "a=4, b=5, c=3",
    "deduplication": "p-3: 5",
    "environment": "odd: 5001",
    "event_history": "bob went away: login, search",
    "fraud_rules": "bob paid 90.0 at 6000: medium",
    "hourly_average": "roof, hour 1: 31.0 degrees",
    "join_changing_table": "payment 4: 150 euro",
    "join_static_table": "payment 4: 7.5 from Italy",
    "login_count": "exactly-once: 6000 counted, 6000 logged in",
    "online_regression": "shoes: 69% right at first, 83% at the end",
    "order_shipment_join": "order 3 (chair) left by bike after 0 hours",
    "over_ninety": "pump is at 104.2 degrees",
    "pre_aggregation": "hour 1: 9000 coins in 3600 sales",
    "running_sums": "b: 30",
    "temperature_alert": "sensor_2 jumped by 4.5 to 31.0",
    "temperature_alert_with_state": "sensor_2 jumped by 4.5 to 31.0",
    "three_counters": "minute 4: 60 fast, 60 middling, 60 slow",
    "two_readings_apart": "process function and pattern agree",
    "word_count_pyflink": "water: 1",
}


@pytest.mark.parametrize("program", sorted(RUN_HERE))
def test_a_program_that_is_started_as_a_script_prints_its_result(
    program: str, spark_slots: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", [f"{program}.py"])
    # As `__main__`, what a program defines cannot be imported by workers and travels to them by value.
    runpy.run_path(str(EXAMPLES / f"{program}.py"), run_name="__main__")
    assert capsys.readouterr().out.splitlines()[-1] == LAST_LINES[program]
