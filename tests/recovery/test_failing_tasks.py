"""One task fails in one of four ways while its neighbours run: one restart, the user's own error, exact books."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import saboteurs
from checkpoints import restored_by_attempt
from ledger import Bookkeeper, Ledger, LedgerSink, LedgerSource, ledger_stream

from headrace import Configuration, RestartStrategies, WatermarkStrategy
from headrace.errors import HeadraceError, JobFailedError, UserFunctionError
from headrace.plan.restart import RestartStrategy

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]


def sabotaged(env: Any, ledger: Ledger, saboteur: Any) -> Any:
    """The ledger with a saboteur in the task of the books, where only some slots meet the record in question."""
    records = env.from_source(LedgerSource(ledger), WatermarkStrategy.for_monotonous_timestamps(), "ledger").uid("src")
    return booked(records, ledger).map(saboteur).uid("tampered").name("tampered books")


def booked(records: Any, ledger: Ledger) -> Any:
    return records.key_by(lambda record: record[0]).process(Bookkeeper(ledger.window)).uid("books").name("books")


def at_key_3(line: Any) -> bool:
    return tuple(line[:3]) == ("seq", 3, 200)


@pytest.mark.parametrize(
    "deed",
    [
        saboteurs.raise_an_error,
        saboteurs.kill_the_worker,
        saboteurs.exit_the_worker,
        saboteurs.cut_the_control_connection,
    ],
    ids=lambda deed: deed.__name__,
)
def test_one_bad_task_is_one_restart_and_the_books_stay_exact(
    bench: Any, faults: Any, start: Any, deed: Callable[[], None]
) -> None:
    faults.planned = 1
    ledger = Ledger(length=300, rate=3_000).holding_for(faults)
    sink = LedgerSink(bench.directory / "out")
    env = bench.env(interval=50)
    sabotaged(env, ledger, saboteurs.Saboteur(deed, at_key_3, [str(faults.log / "deed")])).sink_to(sink).uid("sink")

    job = start(env)
    result = job.finish()

    assert ledger.problems(sink.lines()) == []
    assert faults.happened == ["deed"]
    assert result.restarts == 1
    (failure,) = job.kinds("failure")
    assert failure["error"] == ("UserFunctionError" if deed is saboteurs.raise_an_error else "TaskDiedError")


@pytest.mark.parametrize("opening", [False, True], ids=["running", "opening"])
def test_a_worker_that_stands_still_is_missed_by_name_and_the_books_stay_exact(
    bench: Any, faults: Any, start: Any, opening: bool
) -> None:
    """SIGSTOP: the process and its connections stay, and nothing comes any more."""
    faults.planned = 1
    ledger = Ledger(length=300, rate=3_000).holding_for(faults)
    sink = LedgerSink(bench.directory / "out")
    env = bench.env(interval=50)
    env.configure(Configuration({"heartbeat.interval": "100 ms", "heartbeat.timeout": "3 s"}))
    mark = str(faults.log / "deed")
    saboteur = saboteurs.StopsWhenOpened(mark) if opening else None
    saboteur = saboteur or saboteurs.Saboteur(saboteurs.stop_the_worker, at_key_3, [mark])
    sabotaged(env, ledger, saboteur).sink_to(sink).uid("sink")

    job = start(env)
    result = job.finish()

    assert ledger.problems(sink.lines()) == []
    assert faults.happened == ["deed"]
    assert result.restarts == 1
    (failure,) = job.kinds("failure")
    assert failure["error"] == "TaskDiedError"
    assert re.search(r"Task 1\.\d \(pid \d+\) was lost: nothing was heard from it for 3 s", failure["message"])


def test_a_source_that_raises_in_the_driver_is_one_restart_and_the_books_stay_exact(
    bench: Any, faults: Any, start: Any
) -> None:
    faults.planned = 1
    ledger = Ledger(length=300, rate=3_000).holding_for(faults)
    source, sink = saboteurs.ForgetfulSource(ledger), LedgerSink(bench.directory / "out")
    source.mark = str(faults.log / "deed")
    env = bench.env(interval=50)
    records = env.from_source(source, WatermarkStrategy.for_monotonous_timestamps(), "ledger").uid("src")
    booked(records, ledger).sink_to(sink).uid("sink")

    job = start(env)
    result = job.finish()

    assert ledger.problems(sink.lines()) == []
    assert result.restarts == 1
    (failure,) = job.kinds("failure")
    assert failure["error"] == "UserFunctionError"
    for part in ('Operator "ledger" (uid "src")', "snapshot_state()", saboteurs.__file__, "do not balance"):
        assert part in failure["message"]


def test_a_function_that_does_not_open_in_time_is_named_with_the_option(bench: Any, start: Any) -> None:
    env = bench.env(parallelism=1, restarts=0)
    env.configure(Configuration({"execution.initialization.timeout": "50 ms"}))
    env.from_collection([1], int).map(saboteurs.NeverOpen()).name("model").print()

    with pytest.raises(
        JobFailedError, match=r"tasks 0\.0 \(.*model.*opening functions.*raise execution\.initialization"
    ):
        start(env).finish()


def test_the_error_a_user_sees_is_their_own_with_operator_record_and_line(bench: Any, start: Any) -> None:
    ledger = Ledger(length=300)
    env = bench.env(interval=50, restarts=0)
    failing = saboteurs.AlwaysFailing(at_key_3)
    sabotaged(env, ledger, failing).sink_to(LedgerSink(bench.directory / "out"))

    with pytest.raises(UserFunctionError, match="the books do not balance") as caught:
        start(env).finish()

    error = caught.value
    assert error.operator == "tampered books"
    assert error.uid == "tampered"
    assert error.record == "('seq', 3, 200)"
    assert error.location.startswith(saboteurs.__file__)
    assert "raise ZeroDivisionError" in error.cause


@pytest.mark.parametrize(
    ("strategy", "restarts", "delays"),
    [
        (RestartStrategies.no_restart(), 0, []),
        (RestartStrategies.fixed_delay_restart(2, 10), 2, [10, 10]),
        (RestartStrategies.failure_rate_restart(2, 3_600_000, 15), 2, [15, 15]),
    ],
    ids=["none", "fixed delay", "failure rate"],
)
def test_restarts_are_counted_exactly_and_then_the_job_gives_up(
    bench: Any, start: Any, strategy: RestartStrategy, restarts: int, delays: list[int]
) -> None:
    env = bench.env(interval=50)
    env.set_restart_strategy(strategy)
    sabotaged(env, Ledger(length=300), saboteurs.AlwaysFailing(at_key_3)).sink_to(LedgerSink(bench.directory / "out"))

    job = start(env)
    with pytest.raises(HeadraceError):
        job.finish()

    assert job.report.restarts == restarts
    assert [restart["delay_ms"] for restart in job.kinds("restarting")] == delays
    assert len(job.kinds("failure")) == restarts + 1


def test_exponential_delay_grows_to_its_limit_while_failures_follow_each_other(
    bench: Any, faults: Any, start: Any
) -> None:
    faults.planned = 4
    marks = [str(faults.log / f"deed-{i}") for i in range(faults.planned)]
    ledger = Ledger(length=300).holding_for(faults)
    sink = LedgerSink(bench.directory / "out")
    env = bench.env(interval=50)
    strategy = RestartStrategies.exponential_delay_restart(20, 80, 2.0, 3_600_000, 0.0, same_record_limit=None)
    env.set_restart_strategy(strategy)
    saboteur = saboteurs.Saboteur(saboteurs.raise_an_error, at_key_3, marks)
    sabotaged(env, ledger, saboteur).sink_to(sink).uid("sink")

    job = start(env)
    result = job.finish()

    assert ledger.problems(sink.lines()) == []
    assert len(faults.happened) == 4
    assert result.restarts == 4
    assert [restart["delay_ms"] for restart in job.kinds("restarting")] == [20, 40, 80, 80]


def test_a_restore_that_fails_twice_is_tried_again_from_the_same_checkpoint(
    bench: Any, faults: Any, start: Any
) -> None:
    faults.plan("before_sink_commit=kill@1#1.0", "restore_file=raise@1#1.0", "restore_file=raise@1#1.1")
    ledger = Ledger(length=300, rate=3_000).holding_for(faults)
    sink = LedgerSink(bench.directory / "out")
    env = bench.env(interval=50)
    ledger_stream(env, ledger).sink_to(sink).uid("sink")

    job = start(env)
    result = job.finish()

    assert ledger.problems(sink.lines()) == []
    assert len(faults.happened) == faults.planned
    restored = restored_by_attempt(bench)
    # Both restores may fail in one attempt, as they are two tasks; then there are three attempts, else four.
    assert result.restarts == len(restored) - 1
    assert result.restarts in (2, 3)
    assert restored[1] is None
    first, *others = [restored[attempt] for attempt in sorted(restored) if attempt > 1]
    assert first is not None
    assert set(others) == {first}


def test_a_job_whose_restarts_are_used_up_names_its_strategy_and_the_cause(bench: Any, faults: Any, start: Any) -> None:
    faults.plan("record=kill@3#1.0")
    env = bench.env(interval=50, restarts=0)
    ledger_stream(env, Ledger(length=300, rate=3_000)).sink_to(LedgerSink(bench.directory / "out"))

    with pytest.raises(JobFailedError, match=r'"ledger" failed and is not restarted .*0 restarts.*Task 1\.0'):
        start(env).finish()

    assert len(faults.happened) == 1
