"""An async function whose calls a test answers one by one."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from headrace.operators.async_functions import AsyncFunction

PATIENCE_S = 60.0


class HelpDesk:
    """Knows who waits for an answer. Shared by all copies of the function, since it holds a lock."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._calls: list[tuple[Any, asyncio.AbstractEventLoop, asyncio.Future[Any]]] = []
        self.asked: list[Any] = []
        """Every call that was ever made, in order."""
        self.most_at_once = 0
        self.cancelled: list[Any] = []

    async def ask(self, value: Any) -> Any:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        with self._changed:
            self.asked.append(value)
            call = (value, loop, future)
            self._calls.append(call)
            self.most_at_once = max(self.most_at_once, len(self._calls))
            self._changed.notify_all()
        try:
            return await future
        except asyncio.CancelledError:
            self.cancelled.append(value)
            raise
        finally:
            with self._changed:
                if call in self._calls:
                    self._calls.remove(call)

    def wait_for(self, value: Any) -> None:
        """Until a call for that value waits."""
        with self._changed:
            assert self._changed.wait_for(lambda: any(v == value for v, _, _ in self._calls), PATIENCE_S), value

    def answer(self, value: Any, results: Any = None, error: Exception | None = None) -> None:
        """Answer the oldest call for that value, waiting until there is one. Without results: the value itself."""
        self.wait_for(value)
        with self._changed:
            call = next(c for c in self._calls if c[0] == value)
            self._calls.remove(call)
        _, loop, future = call
        if error is not None:
            loop.call_soon_threadsafe(_settle, future.set_exception, future, error)
        else:
            loop.call_soon_threadsafe(_settle, future.set_result, future, [value] if results is None else results)


def _settle(settle: Any, future: asyncio.Future[Any], what: Any) -> None:
    if not future.done():
        settle(what)


class Ask(AsyncFunction):
    """Asks the desk for every record."""

    def __init__(self, desk: HelpDesk) -> None:
        self.desk = desk

    async def async_invoke(self, value: Any) -> list[Any]:
        return await self.desk.ask(value)  # type: ignore[no-any-return]


class AskWithExcuse(Ask):
    """Gives a result of its own when the time is over."""

    def timeout(self, value: Any) -> list[Any]:
        return [("too late", value)]
