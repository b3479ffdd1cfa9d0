"""An asyncio event loop on a thread of its own, for the coroutines of one subtask."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable
from typing import Any

PATIENCE_S = 5.0
"""How long closing waits for coroutines that were cancelled."""


class EventLoopThread:
    """Runs until `close`. The thread is a daemon: user code that never returns does not keep the process alive."""

    def __init__(self, name: str) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()
        self.loop.close()

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Run a function, or a coroutine function, on the loop and wait for what it gives or raises."""

        async def run() -> Any:
            answer = function(*arguments)
            return await answer if inspect.isawaitable(answer) else answer

        return asyncio.run_coroutine_threadsafe(run(), self.loop).result()

    def cancel_all(self) -> None:
        """Cancel every coroutine that runs, and wait a while for them to end."""

        async def cancel() -> None:
            others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
            for task in others:
                task.cancel()
            if others:
                await asyncio.wait(others, timeout=PATIENCE_S)

        self.call(cancel)

    def close(self) -> None:
        """Stop the loop and wait a while for its thread."""
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(PATIENCE_S)
