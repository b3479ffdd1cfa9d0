"""The command's end of the channel: which jobs of this user run on this machine, and how they are asked."""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from headrace.errors import ConfigurationError, HeadraceError, JobControlError, SavepointError, StorageError, permanent
from headrace.runtime.control.wire import Connection, ConnectionLost
from headrace.runtime.coordinator.savepoints import Savepoint
from headrace.runtime.job.requests import (
    SOCKET_NAME,
    AnyReply,
    CancelJob,
    Describe,
    Described,
    Ended,
    Refused,
    Request,
    SavepointReady,
    SuspendJob,
    TakeSavepoint,
    Underway,
    control_directory,
    machine,
    reachable,
)
from headrace.runtime.job.status_file import state_directory

CONNECT_TIMEOUT_S = 10.0

_ERRORS: dict[str, type[HeadraceError]] = {
    "SavepointError": SavepointError,
    "ConfigurationError": ConfigurationError,
    "StorageError": StorageError,
}


class AmbiguousJobError(JobControlError):
    """Several running jobs may be meant."""

    recovery = permanent("a command raises it, never an attempt")


class _Gone(Exception):
    """Nobody listens at that socket."""


@dataclass(frozen=True, slots=True)
class RunningJob:
    """A job of this user that runs on this machine."""

    socket: Path
    pid: int
    report: dict[str, Any]
    """Its status report; empty if it gave no answer."""

    @property
    def job_id(self) -> str:
        return str(self.report.get("job_id", _name_of(self.socket)))

    @property
    def name(self) -> str:
        return str(self.report.get("name", self.job_id))

    def take_savepoint(
        self,
        directory: str | None = None,
        *,
        stop: bool = False,
        drain: bool = False,
        on_progress: Callable[[str], None] = lambda text: None,
    ) -> Savepoint:
        """Ask for a savepoint and wait until it is complete; raises what made it fail."""
        reply = _ask(self.socket, TakeSavepoint(directory, stop, drain), on_progress)
        assert isinstance(reply, SavepointReady), reply
        return Savepoint(reply.path, reply.checkpoint_id, reply.duration_ms, reply.size_bytes)

    def cancel(self, on_progress: Callable[[str], None] = lambda text: None) -> str:
        """Stop it for good; the status in which it ended."""
        return self._end(CancelJob(), on_progress)

    def suspend(self, on_progress: Callable[[str], None] = lambda text: None) -> str:
        """Stop it and keep everything; the status in which it ended."""
        return self._end(SuspendJob(), on_progress)

    def _end(self, request: Request, on_progress: Callable[[str], None]) -> str:
        reply = _ask(self.socket, request, on_progress)
        assert isinstance(reply, Ended), reply
        return reply.status


def running_jobs() -> list[RunningJob]:
    """All of them, by name. Sockets that killed jobs left behind are removed on the way."""
    here = machine()
    found: list[RunningJob] = []
    try:
        names = sorted(os.listdir(control_directory()))
    except OSError as error:
        raise JobControlError(f"Running jobs cannot be looked for: {error}") from error
    for name in names:
        match = SOCKET_NAME.fullmatch(name)
        if match is None or match["host"] != here[:8]:
            continue
        path = control_directory() / name
        try:
            report = _describe(path) if match["boot"] == here[8:] else None
        except _Gone:
            report = None
        if report is None:
            with contextlib.suppress(OSError):
                path.unlink()
            continue
        found.append(RunningJob(path, int(match["pid"]), report))
    return sorted(found, key=lambda job: (job.name, job.pid))


def find_job(text: str) -> RunningJob:
    """The running job of that name or id, or whose name or id alone begins so, or which runs in that process."""
    jobs = running_jobs()
    exact = [job for job in jobs if text in (job.name, job.job_id)]
    by_pid = [job for job in jobs if text == str(job.pid)]
    begins = [job for job in jobs if job.name.startswith(text) or job.job_id.startswith(text)]
    matching = exact or by_pid or (begins if text else [])
    if len(matching) == 1:
        return matching[0]
    if not matching:
        running = ", ".join(f'"{job.name}"' for job in jobs)
        rest = f"Running are: {running}." if jobs else "None of your jobs runs on this machine."
        raise JobControlError(
            f'No running job is called "{text}". {rest} Jobs are looked for in {state_directory()}; a job that was '
            "started with another HEADRACE_STATE_DIR is found with the same one."
        )
    listed = "; ".join(f'"{job.name}" (id {job.job_id}, process {job.pid}{_where(job)})' for job in matching)
    raise AmbiguousJobError(
        f'"{text}" may be any of {len(matching)} running jobs: {listed}. Name one of them in full, or by its process: '
        f"{matching[0].pid}."
    )


def last_reports() -> list[dict[str, Any]]:
    """The last report of every job that ever ran with this state directory, from the status files."""
    found = []
    for path in sorted(state_directory().glob("*.json")):
        with contextlib.suppress(OSError, ValueError):
            report = json.loads(path.read_text())
            if isinstance(report, dict) and "job_id" in report and "status" in report:
                found.append(report)
    return found


def _where(job: RunningJob) -> str:
    storage = job.report.get("storage")
    return f", checkpoints in {storage}" if storage else ""


def _name_of(path: Path) -> str:
    match = SOCKET_NAME.fullmatch(path.name)
    return path.name if match is None else match["job"]


def _describe(path: Path) -> dict[str, Any]:
    """Its report; empty if somebody listens but does not answer. `_Gone` if nobody does."""
    try:
        reply = _ask(path, Describe(), lambda text: None, silence_s=CONNECT_TIMEOUT_S)
    except JobControlError:
        return {}
    assert isinstance(reply, Described), reply
    return reply.report


def _ask(
    path: Path, request: Request, on_progress: Callable[[str], None], *, silence_s: float | None = None
) -> AnyReply:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.settimeout(CONNECT_TIMEOUT_S)
    try:
        with reachable(path) as address:
            sock.connect(address)
    except (ConnectionRefusedError, FileNotFoundError) as error:
        sock.close()
        raise _Gone from error
    except OSError as error:
        sock.close()
        raise JobControlError(f"The job at {path} cannot be asked: {error}") from error
    # A savepoint takes as long as it takes, and a job that dies closes the connection.
    sock.settimeout(silence_s)
    connection = Connection(sock)
    try:
        connection.send(msgspec.msgpack.encode(request))
        while True:
            reply: AnyReply = msgspec.msgpack.decode(connection.receive(), type=AnyReply)
            match reply:
                case Underway(text):
                    on_progress(text)
                case Refused(error_name, message):
                    raise _ERRORS.get(error_name, JobControlError)(message)
                case _:
                    return reply
    except (ConnectionLost, msgspec.MsgspecError) as error:
        raise JobControlError(
            f"The job at {path} ended or closed the connection before it answered ({error}). What was asked for may or "
            "may not have happened: look with `headrace list` and `headrace status`."
        ) from error
    finally:
        connection.close()
