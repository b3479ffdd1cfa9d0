"""Every program in `examples/` runs to its end and gives what its page says."""

from __future__ import annotations

import runpy
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from headrace import StreamExecutionEnvironment

pytestmark = pytest.mark.spark

EXAMPLES = Path(__file__).parents[2] / "examples"
SHARED = {"readings"}
"""Modules of examples that are no programs."""
RUN_HERE = {
    "beads",
    "environment",
    "login_count",
    "over_ninety",
    "running_sums",
    "temperature_alert",
    "temperature_alert_with_state",
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


LAST_LINES = {
    "beads": "a=4, b=5, c=3",
    "environment": "odd: 5001",
    "login_count": "exactly-once: 6000 counted, 6000 logged in",
    "over_ninety": "pump is at 104.2 degrees",
    "running_sums": "b: 30",
    "temperature_alert": "sensor_2 jumped by 4.5 to 31.0",
    "temperature_alert_with_state": "sensor_2 jumped by 4.5 to 31.0",
}


@pytest.mark.parametrize("program", sorted(RUN_HERE))
def test_a_program_that_is_started_as_a_script_prints_its_result(
    program: str, spark_slots: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", [f"{program}.py"])
    # As `__main__`, what a program defines cannot be imported by workers and travels to them by value.
    runpy.run_path(str(EXAMPLES / f"{program}.py"), run_name="__main__")
    assert capsys.readouterr().out.splitlines()[-1] == LAST_LINES[program]
