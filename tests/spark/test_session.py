"""The Spark application a job runs in: made by us or brought by the user."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.sql import SparkSession

from headrace import StreamExecutionEnvironment
from headrace.errors import ConfigurationError
from headrace.runtime.spark import pipelined
from headrace.runtime.spark.errors import PreflightError, SparkSettingsError, UnsupportedSparkError
from headrace.runtime.spark.jvm import SparkJvm
from headrace.runtime.spark.preflight import preflight, require
from headrace.runtime.spark.session import SparkHandle, obtain_session, settings_of
from headrace.runtime.spark.settings import NETWORK_BUFFER_SIZE, SESSION_SETTINGS, STATIC_SETTINGS, spark_conf

pytestmark = pytest.mark.spark


@pytest.fixture
def user_session() -> Iterator[Callable[[dict[str, str]], SparkSession]]:
    """Builds a session as a user would, on two local slots."""
    made: list[SparkSession] = []

    def build(conf: dict[str, str]) -> SparkSession:
        builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
        for name, value in conf.items():
            builder = builder.config(name, value)
        made.append(builder.getOrCreate())
        return made[-1]

    yield build
    for session in made:
        session.stop()


def test_our_own_application_passes_every_check_and_ends_with_its_handle() -> None:
    handle = obtain_session(None, 3, 2, "own", None)
    try:
        assert (handle.is_local, handle.owns_session, handle.total_slots()) == (True, True, 3)
        findings = preflight(handle, 3)
        assert all(finding.ok for finding in findings), [str(finding) for finding in findings]
        require(findings)
    finally:
        handle.stop()
    assert SparkContext._active_spark_context is None
    handle.stop()


def test_a_second_job_shares_the_application_until_both_are_over() -> None:
    first = obtain_session(None, 4, 2, "first", None)
    second = obtain_session(None, 2, 1, "second", None)
    assert second.context is first.context
    first.stop()
    assert second.session.range(3).count() == 3
    second.stop()
    assert SparkContext._active_spark_context is None


def test_an_application_that_a_job_holds_is_not_replaced_by_a_larger_one() -> None:
    small = obtain_session(None, 1, 1, "small", None)
    with pytest.raises(ConfigurationError, match=r"local\[1\], is too small for a job of 5 slots"):
        obtain_session(None, 5, 3, "large", None)
    assert small.session.range(3).count() == 3
    small.stop()
    large = obtain_session(None, 5, 3, "large", None)
    assert large.total_slots() == 5
    large.stop()


def left_in_jvm() -> tuple[int, int]:
    """Monitors of Python workers, and sockets."""
    jvm, pid = SparkContext._jvm, SparkContext._gateway.proc.pid
    threads = [str(thread.getName()) for thread in jvm.java.lang.Thread.getAllStackTraces().keySet()]
    sockets = 0
    for descriptor in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(OSError):
            sockets += os.readlink(f"/proc/{pid}/fd/{descriptor}").startswith("socket:")
    return sum("Idle Worker Monitor" in name for name in threads), sockets


def test_one_application_after_the_other_leaves_nothing_in_the_jvm() -> None:
    def run_one() -> None:
        handle = obtain_session(None, 1, 1, "one of many", None)
        assert handle.context.parallelize([1], 1).map(lambda x: x + 1).collect() == [2]
        handle.stop()

    run_one()
    _, sockets = left_in_jvm()
    for _ in range(5):
        run_one()
    deadline = time.monotonic() + 60
    # Threads and sockets of the last application end a moment after it.
    while (left := left_in_jvm())[0] > 0 or left[1] > sockets:
        assert time.monotonic() < deadline, f"{left[0]} monitors, {left[1]} sockets; {sockets} after the first"
        time.sleep(0.1)


def kill_jvm() -> None:
    jvm = SparkContext._gateway.proc
    os.kill(jvm.pid, signal.SIGKILL)
    jvm.wait(60)


def wait_for_loss(handle: SparkHandle) -> str:
    deadline = time.monotonic() + 60
    while (loss := handle.loss()) is None:
        assert time.monotonic() < deadline, "the JVM is alive"
        time.sleep(0.02)
    return loss


def test_an_application_whose_jvm_died_is_named_and_replaced_once_for_all_its_jobs() -> None:
    first, second = obtain_session(None, 4, 2, "first", None), obtain_session(None, 2, 1, "second", None)
    settings = settings_of(first.context)
    assert first.loss() is None
    assert first.replaceable()
    gateway, pid = SparkContext._gateway, SparkContext._gateway.proc.pid
    with pytest.raises((OSError, Py4JError)):
        gateway.new_array(gateway.jvm.long, 2**30)
    assert wait_for_loss(first).startswith(f"Spark's JVM (pid {pid}) died: it ran out of memory")

    # The smaller job is the first to replace it: with the size that it had.
    second, first = second.replaced(), first.replaced()
    assert first.context is second.context
    assert first.total_slots() == 4
    assert first.session.range(3).count() == 3
    varying = {"spark.app.id", "spark.app.startTime", "spark.app.submitTime", "spark.driver.port"}
    after = settings_of(first.context)
    assert {name for name in settings.keys() | after.keys() if settings.get(name) != after.get(name)} <= varying

    kill_jvm()
    # A job that starts before the others have noticed gets the same application as they do.
    third = obtain_session(None, 2, 1, "third", None)
    assert "killed by signal 9" in wait_for_loss(first)
    first, second = first.replaced(), second.replaced()
    assert first.context is second.context is third.context
    assert first.total_slots() == 4

    # An application may end alone, as with its cluster.
    first.context._jsc.sc().stop()
    assert "was stopped" in wait_for_loss(first)
    handles = [handle.replaced() for handle in (first, second, third)]
    assert handles[0].session.range(3).count() == 3
    for handle in handles:
        handle.stop()
    assert SparkContext._active_spark_context is None


def test_a_jvm_that_goes_down_while_its_application_is_stopped_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    handle = obtain_session(None, 1, 1, "first", None)
    kill_jvm()
    # A JVM closes its gateway a moment before its process is gone.
    monkeypatch.setattr(SparkJvm, "death", lambda self: None)
    handle.stop()
    monkeypatch.undo()
    assert SparkContext._active_spark_context is None
    again = obtain_session(None, 1, 1, "second", None)
    assert again.session.range(3).count() == 3
    again.stop()


def test_a_jvm_that_dies_between_two_jobs_is_replaced_for_the_next() -> None:
    obtain_session(None, 1, 1, "first", None).stop()
    kill_jvm()
    handle = obtain_session(None, 1, 1, "second", None)
    assert handle.session.range(3).count() == 3
    kill_jvm()
    handle.stop()
    assert SparkContext._active_spark_context is None


def test_settings_of_a_session_touch_no_query_of_the_user(
    user_session: Callable[[dict[str, str]], SparkSession],
) -> None:
    session = user_session(spark_conf(2, 1))
    before = {name: session.conf.get(name) for name in SESSION_SETTINGS}
    handle = obtain_session(session, 2, 1, "guest", None)
    assert {name: handle.session.conf.get(name) for name in SESSION_SETTINGS} == SESSION_SETTINGS
    assert {name: session.conf.get(name) for name in SESSION_SETTINGS} == before
    handle.stop()
    assert not handle.owns_session
    assert session.range(3).count() == 3, "a user's application goes on"


def test_a_users_session_with_wrong_settings_is_refused_with_all_their_names(
    user_session: Callable[[dict[str, str]], SparkSession],
) -> None:
    wrong = {
        "spark.speculation": "true",
        "spark.python.worker.reuse": "true",
        "spark.python.daemon.module": "pyspark.daemon",
        NETWORK_BUFFER_SIZE: "1048576",
    }
    session = user_session({**spark_conf(2, 1), **wrong})
    with pytest.raises(SparkSettingsError) as refusal:
        obtain_session(session, 2, 1, "guest", None)
    assert {mismatch.name for mismatch in refusal.value.mismatches} == set(wrong)
    for name, value in wrong.items():
        assert f"{name} is '{value}', wanted '{spark_conf(2, 1)[name]}'" in str(refusal.value)


def test_the_active_session_of_the_process_is_checked_too(
    user_session: Callable[[dict[str, str]], SparkSession],
) -> None:
    user_session({**spark_conf(2, 1), "spark.speculation": "true"})
    with pytest.raises(SparkSettingsError, match=r"spark\.speculation is 'true', wanted 'false'"):
        obtain_session(None, 2, 1, "guest", None)


def test_too_few_slots_are_a_finding_that_names_the_need(
    user_session: Callable[[dict[str, str]], SparkSession],
) -> None:
    session = user_session(spark_conf(6, 3))
    handle = obtain_session(session, 6, 3, "guest", None)
    with pytest.raises(PreflightError, match=r"Spark task slots: 2 of 2 free; wanted 6 at once.*local\[6\]"):
        require(preflight(handle, 6))


def test_a_job_that_is_refused_for_want_of_slots_leaves_no_file_in_its_checkpoint_directory(
    user_session: Callable[[dict[str, str]], SparkSession], tmp_path: Path
) -> None:
    user_session(spark_conf(6, 3))
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(3)
    env.enable_checkpointing(1_000)
    env.get_checkpoint_config().set_checkpoint_storage(str(tmp_path / "checkpoints"))
    env.from_collection(range(9)).rebalance().map(str).key_by(len).reduce(max).print()
    with pytest.raises(PreflightError, match="Spark task slots"):
        env.execute("wide")
    assert list(tmp_path.iterdir()) == []


def test_settings_alone_can_be_checked_before_spark_starts() -> None:
    assert all(finding.ok for finding in preflight(spark_conf(4, 2), 4))
    findings = preflight({**STATIC_SETTINGS, "spark.dynamicAllocation.enabled": "true"}, 4)
    assert [str(finding) for finding in findings if not finding.ok] == [
        "spark.dynamicAllocation.enabled: true; wanted false. "
        "Set it where the session is built: see headrace.spark_conf()."
    ]


def test_a_worker_without_our_packages_is_a_finding(
    user_session: Callable[[dict[str, str]], SparkSession], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", "/bin/false")
    handle = obtain_session(user_session(spark_conf(2, 1)), 2, 1, "guest", None)
    [worker] = [finding for finding in preflight(handle, 2) if finding.name == "Python worker"]
    assert not worker.ok
    assert "/bin/false" in worker.found
    assert "PYSPARK_PYTHON" in worker.remedy


@pytest.mark.parametrize(
    "exchange",
    ["org.apache.spark.sql.execution.exchange.BroadcastExchangeExec", "org.apache.spark.sql.execution.NoSuchExchange"],
    ids=["an exchange without it", "no such exchange"],
)
def test_a_spark_without_the_pipelined_shuffle_is_refused_with_the_version_that_has_it(
    monkeypatch: pytest.MonkeyPatch, exchange: str
) -> None:
    handle = obtain_session(None, 1, 1, "own", None)
    try:
        pipelined.probe(handle.session)
        monkeypatch.setattr(pipelined, "_EXCHANGE", exchange)
        with pytest.raises(UnsupportedSparkError, match=r'has no pipelined shuffle .* pip install "pyspark=='):
            pipelined.probe(handle.session)
        [finding] = [finding for finding in preflight(handle, 1) if finding.name == "Pipelined shuffle"]
        assert not finding.ok
        assert "lacks it" in finding.found
        assert "pip install" in finding.remedy
    finally:
        handle.stop()


def test_spark_connect_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    remote = type("SparkSession", (), {"__module__": "pyspark.sql.connect.session"})()
    with pytest.raises(UnsupportedSparkError, match="Spark Connect"):
        obtain_session(remote, 2, 1, "guest", None)
    monkeypatch.setenv("SPARK_REMOTE", "sc://localhost")
    with pytest.raises(UnsupportedSparkError, match="SPARK_REMOTE in the environment"):
        obtain_session(None, 2, 1, "guest", None)


def test_the_environment_of_the_user_is_left_as_it_was() -> None:
    before = dict(os.environ)
    obtain_session(None, 1, 1, "own", None).stop()
    changed = {name for name in {*before, *os.environ} if before.get(name) != os.environ.get(name)}
    assert not changed & {"JAVA_HOME", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "SPARK_LOCAL_IP"}


QUIET_PROGRAM = """
import sys
from functools import partial
from pathlib import Path
from headrace.runtime.spark.session import obtain_session
from headrace.runtime.spark.submit import LevelSpec, SparkJob

def announce_and_idle(started, never, batches):
    list(batches)
    started.write_text("here")
    never.read_text()
    yield from ()

def fail(batches):
    list(batches)
    raise ValueError("mine")
    yield

def drain(batches):
    list(batches)
    yield from ()

def job(*functions):
    job = SparkJob(handle, [LevelSpec(1, function) for function in functions], "quiet", "a quiet job")
    job.start()
    return job

def finish(job):
    assert job.join(120)
    return job.error

started, never = Path(sys.argv[1]), Path(sys.argv[2])
handle = obtain_session(None, 2, 1, "quiet", None)
assert finish(job(drain, drain)) is None
assert finish(job(fail, drain)) is not None
idle = job(partial(announce_and_idle, started, never), drain)
started.read_text()
idle.cancel()
assert finish(idle) is None
handle.stop()
"""


def test_start_run_failure_cancel_and_stop_print_nothing(tmp_path: Path) -> None:
    """In a process of its own, for what the JVM and the workers print goes past Python."""
    pipes = [tmp_path / "started", tmp_path / "never"]
    for pipe in pipes:
        os.mkfifo(pipe)
    run = subprocess.run(
        [sys.executable, "-c", QUIET_PROGRAM, *pipes],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")


def test_settings_of_an_application_are_those_it_was_started_with() -> None:
    handle = obtain_session(None, 2, 1, "own", None)
    found = settings_of(handle.context)
    assert {name: found.get(name) for name in spark_conf(2, 1)} == spark_conf(2, 1)
    handle.stop()
