"""The commands for running jobs, against a job that does what the test says: what they print, and their exit codes."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from headrace.cli.main import main
from headrace.errors import ConfigurationError, SavepointError
from headrace.runtime.coordinator.savepoints import Savepoint, SavepointOrder
from headrace.runtime.job.requests import RequestServer, control_directory
from headrace.runtime.job.status import CheckpointReport, JobStatus, StatusBoard, StatusReport


class WillingJob:
    """Does at once what it is asked for, or fails with the error it was given."""

    def __init__(self, job_id: str, error: Exception | None = None) -> None:
        self.job_id = job_id
        self.error = error
        self.ordered: list[tuple[str | None, bool, bool]] = []
        checkpoint = CheckpointReport(12, "checkpoint", 0, 110, 2_048, 1_024, 5, 2)
        self.board = StatusBoard(
            StatusReport(
                job_id=job_id,
                name=job_id.title(),
                status=JobStatus.RUNNING,
                pid=os.getpid(),
                attempt=2,
                restarts=1,
                restored_checkpoint=9,
                last_checkpoint=checkpoint,
                storage="file:///checkpoints",
            )
        )

    def order_savepoint(
        self, directory: str | None = None, *, stop: bool = False, drain: bool = False
    ) -> SavepointOrder:
        self.ordered.append((directory, stop, drain))
        if isinstance(self.error, ConfigurationError):
            raise self.error
        order = SavepointOrder("file:///kept/one", stop=stop, drain=drain)
        if self.error is not None:
            order.answer.set_exception(self.error)
        else:
            order.answer.set_result(Savepoint("file:///kept/one", 13, 250, 4_096))
        return order

    def cancel(self) -> Future[None]:
        return self._end(JobStatus.CANCELED)

    def suspend(self) -> Future[None]:
        return self._end(JobStatus.SUSPENDED)

    def _end(self, status: JobStatus) -> Future[None]:
        self.board.update(status=status)
        ended: Future[None] = Future()
        threading.Timer(0.05, ended.set_result, (None,)).start()
        return ended


@pytest.fixture
def serve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., WillingJob]]:
    monkeypatch.setenv("HEADRACE_STATE_DIR", str(tmp_path / "state"))
    servers: list[RequestServer] = []

    def serve(job_id: str, error: Exception | None = None) -> WillingJob:
        job = WillingJob(job_id, error)
        servers.append(RequestServer(job, control_directory()))
        return job

    yield serve
    for server in servers:
        server.close()


def headrace(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


def test_a_savepoints_path_alone_is_on_standard_output(serve: Any, tmp_path: Path, monkeypatch: Any) -> None:
    job = serve("tides")
    monkeypatch.chdir(tmp_path)
    result = headrace("savepoint", "Tides", "kept")
    assert result.exit_code == 0, result.output
    assert result.stdout == "file:///kept/one\n"
    assert "4.0 KiB in 250 ms (checkpoint 13)" in result.stderr
    # The job runs somewhere else, so it is given the whole path.
    assert job.ordered == [(str(tmp_path / "kept"), False, False)]
    assert json.loads(headrace("savepoint", "tides", "--json").stdout) == {
        "path": "file:///kept/one",
        "checkpoint_id": 13,
        "duration_ms": 250,
        "size_bytes": 4_096,
    }


@pytest.mark.parametrize(
    ("arguments", "ordered"),
    [
        (["--savepoint"], (None, True, False)),
        (["--savepoint", "s3://bucket/kept"], ("s3://bucket/kept", True, False)),
        (["--savepoint", "--drain"], (None, True, True)),
        (["--drain", "--savepoint", "/kept"], ("/kept", True, True)),
    ],
)
def test_stop_takes_a_savepoint_where_it_is_told_to(serve: Any, arguments: list[str], ordered: Any) -> None:
    job = serve("tides")
    result = headrace("stop", "tides", *arguments)
    assert result.exit_code == 0, result.output
    assert job.ordered == [ordered]
    assert result.stdout == "file:///kept/one\n"
    assert "--from file:///kept/one" in result.stderr


def test_stop_without_a_savepoint_suspends(serve: Any) -> None:
    serve("tides")
    result = headrace("stop", "tides")
    assert result.exit_code == 0, result.output
    assert "SUSPENDED" in result.stderr


def test_drain_without_a_savepoint_is_a_wrong_command_line(serve: Any) -> None:
    job = serve("tides")
    assert headrace("stop", "tides", "--drain").exit_code == 2
    assert job.board.report.status is JobStatus.RUNNING


def test_cancel_ends_the_job(serve: Any) -> None:
    serve("tides")
    assert json.loads(headrace("cancel", "tides", "--json").stdout) == {"job": "Tides", "status": "CANCELED"}


@pytest.mark.parametrize(
    ("error", "code"), [(SavepointError("a task declined"), 1), (ConfigurationError("no place for it"), 3)]
)
def test_what_the_job_answers_decides_the_exit_code(serve: Any, error: Exception, code: int) -> None:
    serve("tides", error)
    result = headrace("savepoint", "tides")
    assert result.exit_code == code
    assert str(error) in result.stderr
    assert result.stdout == ""


@pytest.mark.parametrize("command", ["savepoint", "stop", "cancel", "status"])
def test_no_job_and_several_jobs_have_a_code_of_their_own(serve: Any, command: str) -> None:
    assert headrace(command, "tides").exit_code == 5
    serve("tides-north")
    serve("tides-south")
    result = headrace(command, "tides")
    assert result.exit_code == 5
    assert "tides-north" in result.stderr
    assert "tides-south" in result.stderr


def test_status_of_a_name_that_two_running_jobs_have_asks_which_and_calls_neither_of_them_lost(
    serve: Any, tmp_path: Path
) -> None:
    serve("tides")
    serve("tides")
    for name in ("tides.json", "tides.2.json"):
        report = StatusReport(job_id="tides", name="Tides", status=JobStatus.RUNNING, pid=os.getpid())
        (tmp_path / "state" / name).write_text(json.dumps(report.as_json()))
    result = headrace("status", "tides")
    assert result.exit_code == 5
    assert "2 running jobs" in result.stderr
    running = json.loads(headrace("list", "--all", "--json").stdout)
    assert [job["status"] for job in running] == ["RUNNING", "RUNNING"]


def test_list_and_status_show_people_a_table_and_programs_json(serve: Any, tmp_path: Path) -> None:
    assert headrace("list").stdout == ""
    assert headrace("list").exit_code == 0
    serve("tides")
    (tmp_path / "state" / "ebb.json").write_text(
        json.dumps(StatusReport(job_id="ebb", name="Ebb", status=JobStatus.FINISHED, pid=1).as_json())
    )
    (tmp_path / "state" / "lost.json").write_text(
        json.dumps(StatusReport(job_id="lost", name="Lost", status=JobStatus.RUNNING, pid=1).as_json())
    )
    assert [job["name"] for job in json.loads(headrace("list", "--json").stdout)] == ["Tides"]
    every = {job["name"]: job["status"] for job in json.loads(headrace("list", "--all", "--json").stdout)}
    assert every == {"Tides": "RUNNING", "Ebb": "FINISHED", "Lost": "LOST"}
    shown = headrace("list").stdout
    assert all(word in shown for word in ("Tides", "RUNNING", str(os.getpid()), "12, "))

    assert json.loads(headrace("status", "tides", "--json").stdout)["restored_checkpoint"] == 9
    shown = headrace("status", "Tides").stdout
    assert all(word in shown for word in ("from checkpoint 9", "12, 2.0 KiB in 110 ms", "file:///checkpoints"))
    assert "FINISHED" in headrace("status", "ebb").stdout
    assert "LOST" in headrace("status", "Lost").stdout


def test_disposing_of_what_is_no_savepoint_is_refused(tmp_path: Path) -> None:
    result = headrace("savepoint", "dispose", str(tmp_path))
    assert result.exit_code == 3
    assert "it has no _metadata" in result.stderr


def test_claim_goes_with_from(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text("raise AssertionError('not run')")
    result = headrace("run", str(tmp_path / "job.py"), "--claim")
    assert result.exit_code == 2
    assert "--claim goes with --from" in result.stderr
