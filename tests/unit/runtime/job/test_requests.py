"""The channel between a command and a running job: who is let in, who is found, and what becomes of dead sockets."""

from __future__ import annotations

import os
import queue
import resource
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import msgspec
import pytest

from headrace.errors import ConfigurationError, JobControlError, SavepointError
from headrace.runtime.control.wire import Connection
from headrace.runtime.coordinator.savepoints import Savepoint, SavepointOrder
from headrace.runtime.job import requests as requests_module
from headrace.runtime.job.requests import (
    AnyReply,
    Refused,
    RequestServer,
    TakeSavepoint,
    control_directory,
    machine,
    reachable,
    serve_requests,
)
from headrace.runtime.job.running_jobs import RunningJob, find_job, last_reports, running_jobs
from headrace.runtime.job.status import JobStatus, StatusBoard, StatusReport

PATIENCE_S = 60.0

LOW_LIMIT = 3
"""Open files at most: no further one beside the standard streams, while poll() still works."""


class PatientJob:
    """A job that does what it is asked for when the test says so."""

    def __init__(self, job_id: str = "tides", name: str = "Tides") -> None:
        self.job_id = job_id
        self.board = StatusBoard(StatusReport(job_id=job_id, name=name, status=JobStatus.RUNNING, pid=os.getpid()))
        self.orders: list[SavepointOrder] = []
        self.asked = threading.Event()
        self.ended: Future[None] = Future()

    def order_savepoint(
        self, directory: str | None = None, *, stop: bool = False, drain: bool = False
    ) -> SavepointOrder:
        if directory == "/nowhere":
            raise ConfigurationError("There is nowhere to put it.")
        order = SavepointOrder(directory or "file:///default", stop=stop, drain=drain)
        self.orders.append(order)
        self.asked.set()
        return order

    def cancel(self) -> Future[None]:
        return self._end(JobStatus.CANCELED)

    def suspend(self) -> Future[None]:
        return self._end(JobStatus.SUSPENDED)

    def _end(self, status: JobStatus) -> Future[None]:
        self.board.update(status=status)
        self.ended.set_result(None)
        return self.ended


@pytest.fixture(autouse=True)
def state_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HEADRACE_STATE_DIR", str(tmp_path / "state"))
    return tmp_path / "state"


@pytest.fixture
def serve() -> Iterator[Callable[..., RequestServer]]:
    servers: list[RequestServer] = []

    def serve(job: Any, **settings: Any) -> RequestServer:
        servers.append(RequestServer(job, control_directory(), **settings))
        return servers[-1]

    yield serve
    for server in servers:
        server.close()


def in_background(work: Callable[[], Any]) -> Future[Any]:
    future: Future[Any] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


def test_a_command_finds_the_job_sees_progress_and_gets_the_path(serve: Any) -> None:
    job = PatientJob()
    serve(job)
    said: queue.SimpleQueue[str] = queue.SimpleQueue()
    answer = in_background(
        lambda: find_job("Tides").take_savepoint("/kept", stop=True, drain=True, on_progress=said.put)
    )
    # Heard before there is more to say: what is overtaken by the next is never told.
    assert said.get(timeout=PATIENCE_S) == "waiting for its turn"
    order = job.orders[0]
    assert (order.location, order.stop, order.drain) == ("/kept", True, True)
    order.progress = "3 of 4"
    assert said.get(timeout=PATIENCE_S) == "3 of 4"
    order.answer.set_result(Savepoint("file:///kept/one", 7, 120, 4096))
    assert answer.result(PATIENCE_S) == Savepoint("file:///kept/one", 7, 120, 4096)
    assert said.empty()


def test_what_goes_wrong_reaches_the_command_as_the_error_it_is(serve: Any) -> None:
    job = PatientJob()
    serve(job)
    with pytest.raises(ConfigurationError, match="nowhere to put it"):
        find_job("tides").take_savepoint("/nowhere")
    answer = in_background(lambda: find_job("tides").take_savepoint())
    assert job.asked.wait(PATIENCE_S)
    job.orders[0].answer.set_exception(SavepointError("a task declined"))
    with pytest.raises(SavepointError, match="a task declined"):
        answer.result(PATIENCE_S)


def test_cancel_and_suspend_answer_with_the_status_in_which_the_job_ended(serve: Any) -> None:
    serve(PatientJob("one", "one"))
    serve(PatientJob("two", "two"))
    assert find_job("one").cancel() == "CANCELED"
    assert find_job("two").suspend() == "SUSPENDED"


def test_a_command_that_goes_away_does_not_take_its_order_back(serve: Any) -> None:
    job = PatientJob()
    server = serve(job)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with reachable(server.path) as address:
        sock.connect(address)
    data = msgspec.msgpack.encode(TakeSavepoint())
    sock.sendall(len(data).to_bytes(4, "big") + data)
    assert job.asked.wait(PATIENCE_S)
    sock.close()
    assert not job.orders[0].answer.done()
    assert find_job("tides").report["status"] == "RUNNING"
    job.orders[0].answer.set_result(Savepoint("p", 1, 1, 1))


def test_a_job_answers_its_own_user_only(serve: Any) -> None:
    """The kernel says who is at the other end; here the job belongs to somebody else than this process."""
    job = PatientJob()
    server = serve(job, owner=os.geteuid() + 1)
    stranger = RunningJob(server.path, os.getpid(), {})
    with pytest.raises(JobControlError, match=f"user {os.geteuid()} may not ask"):
        stranger.take_savepoint()
    assert job.orders == []


def test_a_stranger_who_asks_late_is_told_why_it_is_refused(serve: Any) -> None:
    server = serve(PatientJob(), owner=os.geteuid() + 1)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with reachable(server.path) as address:
        sock.connect(address)
    # Long enough for the job to have looked at who is there.
    time.sleep(0.2)
    connection = Connection(sock)
    connection.send(msgspec.msgpack.encode(TakeSavepoint()))
    reply = msgspec.msgpack.decode(connection.receive(), type=AnyReply)
    connection.close()
    assert isinstance(reply, Refused)
    assert "may not ask" in reply.message


def test_the_directory_of_sockets_is_the_users_alone_whatever_the_umask(serve: Any, state_dir: Path) -> None:
    control = state_dir / "control"
    control.mkdir(parents=True)
    control.chmod(0o777)
    before = os.umask(0)
    try:
        server = serve(PatientJob())
    finally:
        os.umask(before)
    assert stat.S_IMODE(control.stat().st_mode) == 0o700
    assert stat.S_IMODE(server.path.stat().st_mode) == 0o600


def test_a_place_that_is_no_directory_of_ours_leaves_the_job_running_without_a_channel(state_dir: Path) -> None:
    state_dir.mkdir()
    (state_dir / "elsewhere").mkdir()
    (state_dir / "control").symlink_to(state_dir / "elsewhere")
    job = PatientJob()
    told: list[Any] = []
    job.board.event_listeners.append(told.append)
    assert serve_requests(job) is None
    assert [event.kind for event in told] == ["no-channel"]


def test_a_socket_that_a_killed_job_left_is_removed_by_whoever_finds_it(state_dir: Path) -> None:
    program = (
        "import os, signal, socket, sys\n"
        "s = socket.socket(socket.AF_UNIX); os.chdir(sys.argv[1]); s.bind(sys.argv[2]); s.listen(1)\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    name = f"tides.{machine()}.4711.1.sock"
    subprocess.run([sys.executable, "-c", program, str(control_directory()), name], check=False)
    assert (state_dir / "control" / name).exists()
    with pytest.raises(JobControlError, match=r'No running job is called "tides"\. None of your jobs runs'):
        find_job("tides")
    assert not (state_dir / "control" / name).exists()


def test_sockets_of_another_machine_are_left_alone_and_those_before_the_last_boot_are_not(state_dir: Path) -> None:
    control = control_directory()
    elsewhere = control / "tides.0123456789abcdef.4711.1.sock"
    earlier = control / f"tides.{machine()[:8]}00000000.4711.1.sock"
    for path in (elsewhere, earlier):
        path.touch()
    assert running_jobs() == []
    assert elsewhere.exists()
    assert not earlier.exists()


def test_a_job_that_has_ended_leaves_no_socket_and_cannot_be_found(serve: Any, state_dir: Path) -> None:
    server = serve(PatientJob())
    assert [job.name for job in running_jobs()] == ["Tides"]
    server.close()
    assert os.listdir(state_dir / "control") == []
    assert running_jobs() == []


def test_a_state_directory_of_any_depth_will_do(serve: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = tmp_path.joinpath(*["a-directory-with-a-long-name"] * 6)
    monkeypatch.setenv("HEADRACE_STATE_DIR", str(deep))
    serve(PatientJob("x" * 100, "a long one"))
    assert find_job("a long one").job_id == "x" * 100


def test_names_ids_and_beginnings_find_a_job_and_what_is_ambiguous_is_named(serve: Any) -> None:
    serve(PatientJob("tides-north", "Tides (north)"))
    serve(PatientJob("tides-south", "Tides (south)"))
    serve(PatientJob("tides", "Tides"))
    assert find_job("tides").name == "Tides"
    assert find_job("Tides (n").job_id == "tides-north"
    assert find_job("tides-s").job_id == "tides-south"
    with pytest.raises(JobControlError, match=r'"tides-" may be any of 2 running jobs: "Tides \(north\)" \(id tides-n'):
        find_job("tides-")
    with pytest.raises(JobControlError, match='Running are: "Tides", "Tides'):
        find_job("ebb")


def test_two_jobs_of_one_name_are_told_apart_by_their_process(serve: Any, state_dir: Path) -> None:
    serve(PatientJob())
    other = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys; sys.path.insert(0, sys.argv[1]); import test_requests as t\n"
            "from headrace.runtime.job.requests import RequestServer, control_directory\n"
            "server = RequestServer(t.PatientJob(), control_directory()); print('ready', flush=True); sys.stdin.read()",
            str(Path(__file__).parent),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert other.stdout is not None
        assert other.stdout.readline() == "ready\n"
        with pytest.raises(JobControlError, match="may be any of 2 running jobs") as several:
            find_job("Tides")
        assert str(os.getpid()) in str(several.value)
        assert str(other.pid) in str(several.value)
        assert find_job(str(other.pid)).pid == other.pid
    finally:
        other.communicate("")


def test_last_reports_are_those_of_the_status_files_and_nonsense_is_passed_over(state_dir: Path) -> None:
    state_dir.mkdir()
    (state_dir / "a.json").write_text('{"job_id": "a", "name": "A", "status": "FINISHED", "pid": 1}')
    (state_dir / "b.json").write_text("{half")
    (state_dir / "c.json").write_text("[1]")
    assert [report["job_id"] for report in last_reports()] == ["a"]


def test_garbage_on_the_socket_harms_nobody(serve: Any) -> None:
    job = PatientJob()
    server = serve(job)
    for garbage in (b"", b"GET / HTTP/1.1\r\n\r\n", b"\xff\xff\xff\xff", b"\x00\x00\x00\x03abc"):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            with reachable(server.path) as address:
                sock.connect(address)
            sock.sendall(garbage)
            sock.shutdown(socket.SHUT_WR)
            assert sock.recv(1) == b""
    assert find_job("tides").report["name"] == "Tides"


def test_a_job_out_of_descriptors_can_be_asked_again_when_there_are_some(serve: Any) -> None:
    server = serve(PatientJob())
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as waiting, reachable(server.path) as address:
        resource.setrlimit(resource.RLIMIT_NOFILE, (LOW_LIMIT, hard))
        try:
            waiting.connect(address)
            # Long enough that accept() has failed at least once.
            time.sleep(0.3)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert find_job("tides").report["name"] == "Tides"


def test_a_question_has_one_deadline_however_slowly_it_arrives(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests_module, "REQUEST_TIMEOUT_S", 0.5)
    server = serve(PatientJob())
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as slow, reachable(server.path) as address:
        slow.connect(address)
        slow.settimeout(0.2)
        slow.sendall((1_000).to_bytes(4, "big"))
        for _ in range(60):
            try:
                slow.sendall(b"x")
                if slow.recv(1) == b"":
                    return
            except TimeoutError:
                continue
            except OSError:
                return
    raise AssertionError("it was never cut off")
