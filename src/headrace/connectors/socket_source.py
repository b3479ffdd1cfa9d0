"""Lines of text from a TCP socket, for teaching: `nc -lk 9999` in one terminal, a job in another.

A socket cannot be asked for what it has sent before. After a failure the job connects again and goes on with whatever
comes then; what was read since the last checkpoint is lost. So a job on it is at-most-once, and `explain` says so.
"""

from __future__ import annotations

import codecs
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

import msgspec

from headrace.connectors.queue_enumerator import QueueEnumerator
from headrace.connectors.source import (
    Boundedness,
    EnumeratorContext,
    PollStatus,
    ReaderContext,
    Source,
    SourceBatch,
    SourceReader,
    SplitEnumerator,
)
from headrace.errors import ConfigurationError, HeadraceError, retry
from headrace.types.information import TypeInformation, Types

MOST_LINES_AHEAD = 10_000
"""Above this the reader stops taking from the socket, and the sender feels it."""
_RECEIVE_BYTES = 64 * 1024
_LOOK_AROUND_S = 0.2


class SocketUnavailableError(HeadraceError, ConnectionError):
    """Nobody listens at the address, or the connection broke. Start the sender first, or set `max_retry`."""

    recovery = retry("the sender may listen again")


class SocketSplit(msgspec.Struct):
    """The whole socket. There is no position: it cannot go back."""

    host: str
    port: int

    @property
    def split_id(self) -> str:
        return f"{self.host}:{self.port}"


class SocketSource(Source[SocketSplit]):
    """Text from `host:port`, cut at `delimiter`; read by one subtask, ended when the other side closes.

    `max_retry` is for how many seconds to try again while nobody listens: 0 for once only, -1 for ever.
    """

    split_type = SocketSplit
    replayable = False

    def __init__(self, host: str, port: int, delimiter: str = "\n", max_retry: int = 0) -> None:
        if not 0 < int(port) < 65_536:
            raise ConfigurationError(f"SocketSource has port {port}. Wanted a number from 1 to 65535.")
        if not delimiter:
            raise ConfigurationError("SocketSource has an empty delimiter, which would never end a line.")
        self.host = host
        self.port = int(port)
        self.delimiter = delimiter
        self.max_retry = max_retry

    @property
    def boundedness(self) -> Boundedness:
        return Boundedness.UNBOUNDED

    @property
    def produced_type(self) -> TypeInformation:
        return Types.STRING()

    def create_enumerator(self, context: EnumeratorContext, restored: bytes | None) -> SplitEnumerator[SocketSplit]:
        return QueueEnumerator(
            context, SocketSplit, first=lambda: [SocketSplit(self.host, self.port)], restored=restored
        )

    def create_reader(self, context: ReaderContext) -> SourceReader[SocketSplit]:
        return SocketReader(self, context)

    def describe(self) -> str:
        return f"text from socket {self.host}:{self.port} (cannot be replayed)"


class SocketReader(SourceReader[SocketSplit]):
    """Takes lines from a thread that may block on the socket."""

    def __init__(self, source: SocketSource, context: ReaderContext) -> None:
        self._source = source
        self._wake = context.wake
        self._line_of: _Receiver | None = None
        self._split: SocketSplit | None = None
        self._no_more = False

    def add_splits(self, splits: Sequence[SocketSplit]) -> None:
        for split in splits:
            self._split = split
            self._line_of = _Receiver(self._source, self._wake)
            self._line_of.start()

    def no_more_splits(self) -> None:
        self._no_more = True

    def poll(self, limit: int) -> SourceBatch | PollStatus:
        if self._split is None or self._line_of is None:
            return PollStatus.ENDED if self._no_more else PollStatus.NEEDS_SPLIT
        lines = self._line_of.take(limit)
        if lines:
            return SourceBatch(self._split.split_id, values=lines)
        if self._line_of.ended:
            self._split = None
        return PollStatus.IDLE if self._split is not None else self.poll(limit)

    def snapshot(self) -> list[SocketSplit]:
        # An ended socket stays out: a restored job must not wait for a sender that has said all it had to say.
        return [] if self._split is None else [self._split]

    def close(self) -> None:
        if self._line_of is not None:
            self._line_of.stop()


class _Receiver(threading.Thread):
    """Connects and cuts what comes into lines."""

    def __init__(self, source: SocketSource, wake: Callable[[], None]) -> None:
        super().__init__(name=f"socket {source.host}:{source.port}", daemon=True)
        self._source = source
        self._wake = wake
        self._lines: deque[str] = deque()
        self._change = threading.Condition()
        self._stopped = False
        self._finished = False
        self._error: SocketUnavailableError | None = None

    @property
    def ended(self) -> bool:
        with self._change:
            return self._finished and not self._lines

    def take(self, limit: int) -> list[str]:
        """Lines that are there, or the error that came after the last of them."""
        with self._change:
            lines = [self._lines.popleft() for _ in range(min(limit, len(self._lines)))]
            if lines:
                self._change.notify_all()
            elif self._error is not None:
                raise self._error
            return lines

    def stop(self) -> None:
        with self._change:
            self._stopped = True
            self._change.notify_all()

    def run(self) -> None:
        try:
            with self._connected() as connection:
                connection.settimeout(_LOOK_AROUND_S)
                self._receive(connection)
        except OSError as error:
            source = self._source
            with self._change:
                self._error = SocketUnavailableError(
                    f"Socket {source.host}:{source.port} gave no text: {error}. Start the sender first "
                    f"(nc -lk {source.port}), or give it time with max_retry."
                )
        finally:
            with self._change:
                self._finished = True
            self._wake()

    def _connected(self) -> socket.socket:
        source = self._source
        give_up_at = None if source.max_retry < 0 else time.monotonic() + source.max_retry
        while True:
            try:
                return socket.create_connection((source.host, source.port), timeout=10)
            except OSError:
                with self._change:
                    if self._stopped or (give_up_at is not None and time.monotonic() >= give_up_at):
                        raise
                    self._change.wait(_LOOK_AROUND_S)

    def _receive(self, connection: socket.socket) -> None:
        decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        rest = ""
        while self._room():
            try:
                data = connection.recv(_RECEIVE_BYTES)
            except TimeoutError:
                continue
            *lines, rest = (rest + decoder.decode(data, final=not data)).split(self._source.delimiter)
            if not data and rest:
                lines.append(rest)
            if self._source.delimiter == "\n":
                lines = [line.removesuffix("\r") for line in lines]
            if lines:
                with self._change:
                    self._lines.extend(lines)
                self._wake()
            if not data:
                return

    def _room(self) -> bool:
        """Wait while the task is behind; False once nobody wants more."""
        with self._change:
            while len(self._lines) >= MOST_LINES_AHEAD and not self._stopped:
                self._change.wait()
            return not self._stopped
