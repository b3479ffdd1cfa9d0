"""Functions that misbehave once, at a record that the test names, and then never again.

They live in a module of their own so that workers load them by name.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ledger import LedgerSource, LedgerSplit

from headrace import MapFunction, RuntimeContext
from headrace.connectors.queue_enumerator import Dealing, QueueEnumerator
from headrace.runtime.control.client import ControlClient
from headrace.runtime.control.results import ResultsClient


def once(mark: str | Path) -> bool:
    """True for the first of all processes that asks for this mark."""
    Path(mark).parent.mkdir(parents=True, exist_ok=True)
    try:
        with open(mark, "x"):
            return True
    except FileExistsError:
        return False


def raise_an_error() -> None:
    raise ZeroDivisionError("the books do not balance")


def kill_the_worker() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def exit_the_worker() -> None:
    os._exit(7)


def stop_the_worker() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def cut_the_control_connection() -> None:
    """Only the connection to the driver: the worker itself stays as it is."""
    for client in [o for o in gc.get_objects() if isinstance(o, ControlClient)]:
        with contextlib.suppress(OSError):
            client._connection._socket.shutdown(socket.SHUT_RDWR)


def cut_the_results_connection() -> None:
    """Only the one on which collected results travel, and only once it is there."""
    for client in [o for o in gc.get_objects() if isinstance(o, ResultsClient)]:
        if client._connection is not None:
            with contextlib.suppress(OSError):
                client._connection._socket.shutdown(socket.SHUT_RDWR)


def block_for_ever() -> None:
    threading.Event().wait()


class Saboteur(MapFunction):
    """Passes records on; at the record that `at` names it does `deed`, as often as there are `marks`."""

    def __init__(self, deed: Callable[[], None], at: Callable[[Any], bool], marks: list[str]) -> None:
        self._deed = deed
        self._at = at
        self._marks = marks

    def map(self, value: Any) -> Any:
        if self._at(value) and any(once(mark) for mark in self._marks):
            self._deed()
        return value


class AlwaysFailing(MapFunction):
    """Fails at the same record in every life."""

    def __init__(self, at: Callable[[Any], bool]) -> None:
        self._at = at

    def map(self, value: Any) -> Any:
        if self._at(value):
            raise_an_error()
        return value


class StopsWhenOpened(MapFunction):
    """Stops its process in `open`, the first time; passes records on."""

    def __init__(self, mark: str) -> None:
        self._mark = mark

    def open(self, runtime_context: Any) -> None:
        if once(self._mark):
            stop_the_worker()

    def map(self, value: Any) -> Any:
        return value


class NeverOpen(MapFunction):
    """Loads for ever."""

    def open(self, runtime_context: RuntimeContext) -> None:
        block_for_ever()

    def map(self, value: Any) -> Any:
        return value


class ForgetfulEnumerator(QueueEnumerator[LedgerSplit]):
    """Cannot say once what it must remember, in the driver, when the third checkpoint begins."""

    mark = ""
    asked = 0

    def snapshot_state(self) -> bytes:
        self.asked += 1
        if self.asked == 3 and once(self.mark):
            raise_an_error()
        return super().snapshot_state()


class ForgetfulSource(LedgerSource):
    """The ledger with such an enumerator."""

    mark = ""

    def create_enumerator(self, context: Any, restored: bytes | None) -> ForgetfulEnumerator:
        splits = self.ledger.splits
        enumerator = ForgetfulEnumerator(
            context,
            LedgerSplit,
            first=lambda: [LedgerSplit(first, splits) for first in range(splits)],
            restored=restored,
            dealing=Dealing.ALL_AT_ONCE,
        )
        enumerator.mark = self.mark
        return enumerator
