"""How an operation on a remote store is tried: in time, again after a while, and with a typed error at the end.

A store over a network fails in three ways that must not look alike: an answer that does not come (a time limit, which
clients do not keep on every platform), a fault that passes (tried again, each time later), and a refusal (raised at
once). All end as a `StorageError` that names the path.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from headrace.checkpoint.storage.base import MissingFileError
from headrace.errors import ConfigurationError, StorageError, retry

T = TypeVar("T")

_REFUSALS = (FileExistsError, IsADirectoryError, NotADirectoryError, PermissionError, NotImplementedError)
"""Answers that would be the same the next time."""


class StorageTimeoutError(StorageError, TimeoutError):
    """The store did not answer in time. What was asked for may or may not have happened."""

    recovery = retry("storage may answer again")


@dataclass(frozen=True, slots=True)
class TransferOptions:
    """How patient and how parallel transfers to and from a remote store are. Light: it travels to every task."""

    attempts: int = 5
    """Tries of one operation, the first included."""
    first_delay_s: float = 0.1
    """Before the second try; doubled before each further one, and spread by chance so that tasks come apart."""
    max_delay_s: float = 5.0
    timeout_s: float = 60.0
    """For one try of one operation: a small file, or one part of a large one."""
    threads: int = 8
    """Parts of one file that are fetched at once."""
    part_bytes: int = 8 << 20
    """Size of a part; a file up to this size is written in one request, which is tried again as a whole."""

    def __post_init__(self) -> None:
        for name in ("attempts", "threads", "part_bytes"):
            if getattr(self, name) < 1:
                raise ConfigurationError(f"TransferOptions.{name} is {getattr(self, name)}; it must be 1 or more.")
        if self.timeout_s <= 0 or self.first_delay_s < 0 or self.max_delay_s < self.first_delay_s:
            raise ConfigurationError(
                f"TransferOptions: timeout_s must be above 0 and first_delay_s between 0 and max_delay_s, not {self}."
            )


class Operations:
    """Runs single operations by these rules. Thread-safe; keeps nothing between calls."""

    def __init__(self, options: TransferOptions, sleep: Callable[[float], None] = time.sleep) -> None:
        self.options = options
        self._sleep = sleep

    def run(
        self, doing: str, path: Path | str, call: Callable[[], T], *, again: bool = True, watched: bool = True
    ) -> T:
        """The result of `call`. `again`: it may be repeated. `watched`: it keeps no time limit of its own."""
        options = self.options
        delay = options.first_delay_s
        for attempt in range(1, options.attempts + 1 if again else 2):
            try:
                return _in_time(call, options.timeout_s) if watched else call()
            except StorageError:
                raise
            except FileNotFoundError as error:
                raise MissingFileError(f"Cannot {doing} {path}: there is no such file.") from error
            except _REFUSALS as error:
                raise StorageError(f"Cannot {doing} {path}: {error}. Check the name and your permissions.") from error
            except OSError as error:
                if again and attempt < options.attempts:
                    self._sleep(delay * random.uniform(0.5, 1.0))
                    delay = min(2 * delay, options.max_delay_s)
                    continue
                tries = f" after {attempt} tries" if attempt > 1 else ""
                kind = StorageTimeoutError if isinstance(error, TimeoutError) else StorageError
                raise kind(f"Cannot {doing} {path}{tries}: {error}. Check that the store can be reached.") from error
        raise AssertionError("a loop of at least one try")


def _in_time(call: Callable[[], T], timeout_s: float) -> T:
    """Run it on a thread of its own, which is left behind if it does not come back: there is no way to stop it."""
    outcome: list[Any] = []
    done = threading.Event()

    def work() -> None:
        try:
            outcome.append((call(), None))
        except BaseException as error:
            outcome.append((None, error))
        finally:
            done.set()

    # A daemon: a call that hangs for good must not keep the process from ending.
    threading.Thread(target=work, name="storage-operation", daemon=True).start()
    if not done.wait(timeout_s):
        raise TimeoutError(f"no answer within {timeout_s:g} s")
    result, error = outcome[0]
    if error is not None:
        raise error
    return result  # type: ignore[no-any-return]
