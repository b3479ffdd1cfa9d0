"""The channel between a command and a running job: a Unix domain socket, so no port is opened.

    <state directory>/control/<job>.<host><boot>.<pid>.<n>.sock        the directory is the user's alone (0700)

    frame:      length u32 (big-endian) | msgpack
    dialogue:   command → one request;  job → any number of `Underway`, then one final reply, then it closes

The job answers its own user only: who connects is told by the kernel (SO_PEERCRED), not by the peer. A command that
goes away does not take back what it asked for. A socket that nobody listens to was left by a killed job; whoever
finds it removes it. Host and boot are in the name, since a home directory may be shared by several machines.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import re
import socket
import stat
import struct
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotYet
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import msgspec

from headrace.errors import HeadraceError
from headrace.runtime.control.wire import Connection, ConnectionLost
from headrace.runtime.coordinator.savepoints import SavepointOrder
from headrace.runtime.job.status import StatusBoard
from headrace.runtime.job.status_file import state_directory

REQUEST_TIMEOUT_S = 10.0
"""For the whole question, however slowly it arrives, and for each reply to be taken."""
MAX_REQUESTS = 64
"""Requests that are answered at once; further connections are closed."""
ACCEPT_PAUSE_S = 0.1
PROGRESS_EVERY_S = 0.1
FAREWELL_S = 5.0
"""How long a job that has ended waits for those whom it still owes an answer."""
_LONGEST_ADDRESS = 100
"""The kernel takes 108 bytes."""

_numbers = itertools.count(1)


class Request(msgspec.Struct, frozen=True, tag=True):
    """Base of all requests; the struct's name is its tag."""


class Describe(Request, frozen=True):
    """What are you doing?"""


class TakeSavepoint(Request, frozen=True):
    """Take a savepoint, and stop after it if `stop`."""

    directory: str | None = None
    stop: bool = False
    drain: bool = False


class CancelJob(Request, frozen=True):
    """Stop for good."""


class SuspendJob(Request, frozen=True):
    """Stop and keep everything."""


class Reply(msgspec.Struct, frozen=True, tag=True):
    """Base of all replies."""


class Described(Reply, frozen=True):
    """The status report, as in the status file."""

    report: dict[str, Any]


class Underway(Reply, frozen=True):
    """How far it is, for people; more follows."""

    text: str


class SavepointReady(Reply, frozen=True):
    """It is complete and, if that was asked for, the job has stopped."""

    path: str
    checkpoint_id: int
    duration_ms: int
    size_bytes: int


class Ended(Reply, frozen=True):
    """The job has ended with this status."""

    status: str


class Refused(Reply, frozen=True):
    """It cannot be done, or failed: the name of the error, and its message."""

    error: str
    message: str


AnyRequest = Describe | TakeSavepoint | CancelJob | SuspendJob
AnyReply = Described | Underway | SavepointReady | Ended | Refused


class Controllable(Protocol):
    """What a job does on request."""

    job_id: str
    board: StatusBoard

    def order_savepoint(
        self, directory: str | None = None, *, stop: bool = False, drain: bool = False
    ) -> SavepointOrder: ...

    def cancel(self) -> Future[None]: ...

    def suspend(self) -> Future[None]: ...


def peer_uid(sock: socket.socket) -> int | None:
    """The user at the other end, as the kernel knows it; None where the kernel does not tell."""
    if not hasattr(socket, "SO_PEERCRED"):
        return None
    credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", credentials)[1])


class RequestServer:
    """Answers requests to one job from the moment it is made until `close`."""

    def __init__(self, job: Controllable, directory: Path, *, owner: int | None = None) -> None:
        """`owner`: the user who may ask; this process's own if not given."""
        self._job = job
        self._owner = os.geteuid() if owner is None else owner
        self._closed = False
        self._threads: set[threading.Thread] = set()
        self._lock = threading.Lock()
        self.path = directory / f"{job.job_id[:40]}.{machine()}.{os.getpid()}.{next(_numbers)}.sock"
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with contextlib.suppress(FileNotFoundError):
                self.path.unlink()
            with reachable(self.path) as address:
                self._socket.bind(address)
            os.chmod(self.path, 0o600)
            self._socket.listen(16)
        except OSError:
            self._socket.close()
            raise
        threading.Thread(target=self._accept, name="requests", daemon=True).start()

    def close(self) -> None:
        """Take no more requests; those that are being answered get their answer first."""
        self._closed = True
        with contextlib.suppress(OSError):
            self.path.unlink()
        # A blocked accept() does not notice a closed socket, but it does notice a shutdown.
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        with self._lock:
            threads = list(self._threads)
        until = time.monotonic() + FAREWELL_S
        for thread in threads:
            thread.join(max(0.0, until - time.monotonic()))

    def _accept(self) -> None:
        while not self._closed:
            try:
                sock, _ = self._socket.accept()
            except OSError:
                # Too many open files: the job must be reachable again when there are fewer.
                time.sleep(0 if self._closed else ACCEPT_PAUSE_S)
                continue
            thread = threading.Thread(target=self._serve, args=(sock,), name="request", daemon=True)
            with self._lock:
                full = len(self._threads) >= MAX_REQUESTS
                if not full:
                    self._threads.add(thread)
            if full:
                sock.close()
            else:
                thread.start()

    def _serve(self, sock: socket.socket) -> None:
        connection = Connection(sock)
        connection.receive_within(REQUEST_TIMEOUT_S)
        try:
            # Read even if it is refused: an asker cut off while it still writes sees a broken pipe, not the reason.
            question = connection.receive()
            # For what is sent: an asker that stands still is given up.
            sock.settimeout(REQUEST_TIMEOUT_S)
            who = peer_uid(sock)
            if who is not None and who != self._owner:
                text = f"This job belongs to user {self._owner}; user {who} may not ask it for anything."
                _send(connection, Refused("PermissionError", text))
                return
            request = msgspec.msgpack.decode(question, type=AnyRequest)
            for reply in self._answer(request):
                _send(connection, reply)
        except (ConnectionLost, msgspec.MsgspecError):
            # Gone, or no command of ours: what was asked for before goes on.
            pass
        finally:
            connection.close()
            with self._lock:
                self._threads.discard(threading.current_thread())

    def _answer(self, request: Any) -> Iterator[Reply]:
        try:
            match request:
                case Describe():
                    yield Described(self._job.board.report.as_json())
                case TakeSavepoint(directory, stop, drain):
                    yield from self._savepoint(directory, stop, drain)
                case CancelJob():
                    yield from self._end(self._job.cancel, "cancelling")
                case SuspendJob():
                    yield from self._end(self._job.suspend, "stopping")
        except HeadraceError as error:
            yield Refused(type(error).__name__, str(error))

    def _savepoint(self, directory: str | None, stop: bool, drain: bool) -> Iterator[Reply]:
        order = self._job.order_savepoint(directory, stop=stop, drain=drain)
        yield from _progress(order.answer, lambda: order.progress)
        done = order.answer.result()
        yield SavepointReady(done.path, done.checkpoint_id, done.duration_ms, done.size_bytes)

    def _end(self, end: Callable[[], Future[None]], word: str) -> Iterator[Reply]:
        stopped = end()
        yield from _progress(stopped, lambda: word)
        yield Ended(self._job.board.report.status.value)


def serve_requests(job: Controllable) -> RequestServer | None:
    """Begin to answer. A job must not fail for want of a place to be asked at: then it says so and goes on."""
    try:
        return RequestServer(job, control_directory())
    except OSError as error:
        job.board.event("no-channel", reason=str(error))
        return None


def control_directory() -> Path:
    """Where sockets live; made if need be, and the user's alone. `OSError` if it cannot be."""
    directory = state_directory() / "control"
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    found = os.lstat(directory)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise PermissionError(
            f"{directory} is no directory of user {os.geteuid()}, so jobs cannot be asked there. "
            "Set HEADRACE_STATE_DIR to a directory of your own."
        )
    if found.st_mode & 0o077:
        os.chmod(directory, 0o700)
    return directory


@contextmanager
def reachable(path: Path) -> Iterator[str]:
    """An address of the socket that is short enough for the kernel, wherever the state directory lies."""
    if len(os.fsencode(path)) <= _LONGEST_ADDRESS:
        yield str(path)
        return
    descriptor = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{descriptor}/{path.name}"
    finally:
        os.close(descriptor)


SOCKET_NAME = re.compile(r"(?P<job>.*)\.(?P<host>[0-9a-f]{8})(?P<boot>[0-9a-f]{8})\.(?P<pid>\d+)\.\d+\.sock")


def machine() -> str:
    """This host and this boot of it, as they stand in a socket's name."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text()
    except OSError:
        boot = ""
    return _short_hash(socket.gethostname()) + _short_hash(boot)


def _short_hash(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=4).hexdigest()


def _progress(answer: Future[Any], text: Callable[[], str]) -> Iterator[Reply]:
    """What there is to say until the answer is there."""
    said = ""
    while True:
        if (now := text()) != said:
            said = now
            yield Underway(now)
        try:
            answer.exception(PROGRESS_EVERY_S)
            return
        except NotYet:
            continue


def _send(connection: Connection, reply: Reply) -> None:
    connection.send(msgspec.msgpack.encode(reply))
