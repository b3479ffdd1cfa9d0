"""The contract that both state backends keep; `tests/contracts/test_keyed_backend.py` runs on each.

A backend belongs to one subtask of one keyed operator. It is touched by the mailbox thread only,
except for `SnapshotWork.write`, which runs in the background while processing goes on.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol

from headrace.checkpoint.handles import KeyedSnapshot, StateFile
from headrace.state.descriptors import StateDescriptor


def wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000


class KeyContext:
    """The key that keyed state is scoped to right now; one per backend, read by all its states.

    `key` is in *stored form*: a plain `str`, `int` or `bytes` as it is, anything else a one-tuple
    of its encoding, so that keys which Python holds equal (1, 1.0, True) stay apart in a dict.
    """

    __slots__ = ("key", "listeners")

    def __init__(self) -> None:
        self.key: Any = None
        self.listeners: list[Callable[[], None]] = []

    def listen(self, call: Callable[[], None]) -> None:
        """Have `call` run whenever the key is set: once for every record and timer.

        The object changes its class then, so that setting a key to which nobody listens stays a plain assignment.
        """
        self.listeners.append(call)
        self.__class__ = _HeardKeyContext


_key_slot: Any = KeyContext.__dict__["key"]


class _HeardKeyContext(KeyContext):
    """The same, with listeners."""

    __slots__ = ()

    @property
    def key(self) -> Any:
        return _key_slot.__get__(self)

    @key.setter
    def key(self, key: Any) -> None:
        _key_slot.__set__(self, key)
        for call in self.listeners:
            call()


class FileStore(Protocol):
    """How a task writes and reads the files of a checkpoint. Thread-safe."""

    def write(self, name: str, chunks: Iterable[bytes | memoryview]) -> StateFile:
        """Store a file that belongs to this checkpoint alone."""

    def write_shared(self, path: Path) -> StateFile:
        """Store a local file under a name made of its content; skip it if a retained checkpoint has it."""

    def open(self, file: StateFile) -> IO[bytes]:
        """A seekable reader over its bytes."""

    def read(self, file: StateFile) -> bytes:
        """All its bytes, checked against size and hash."""

    def fetch(self, file: StateFile, to: Path) -> None:
        """Bring it to a local path, checked against size and hash."""


class SnapshotWork(Protocol):
    """The part of a snapshot that may take its time."""

    def write(self, store: FileStore) -> KeyedSnapshot:
        """Write the view that was frozen at the barrier. Called once, on a background thread."""

    def cancel(self) -> None:
        """The checkpoint was aborted: stop soon and release the view. May come from any thread."""


class TimerQueue(Protocol):
    """Timers of one time domain, unique per (time, key, namespace), part of every snapshot."""

    def register(self, time_ms: int, key: Any, namespace: bytes = b"") -> bool:
        """Add a timer; False if it is there already."""

    def has(self, time_ms: int, key: Any, namespace: bytes = b"") -> bool:
        """Whether it is there. Answered from memory, unless there are more timers than that should hold."""

    def delete(self, time_ms: int, key: Any, namespace: bytes = b"") -> bool:
        """Take it away; False if there was none."""

    def peek(self) -> int | None:
        """Time of the earliest timer."""

    def pop_due(self, until_ms: int) -> tuple[int, Any, bytes] | None:
        """Remove and return the earliest timer with time ≤ `until_ms`, as (time, stored key, namespace)."""

    def __len__(self) -> int: ...


@dataclass(frozen=True, slots=True)
class BackendContext:
    """Where a backend lives. `key_groups` is what this subtask owns of `max_parallelism` groups."""

    uid: str
    subtask: int
    key_groups: range
    max_parallelism: int
    local_dir: Path
    """A private directory of this attempt and subtask; the backend may fill it and leaves it empty on close."""
    object_reuse: bool = False
    now_ms: Callable[[], int] = wall_clock_ms
    """The clock by which entries with a time-to-live grow old."""


class KeyedStateBackend(ABC):
    """Keyed state and timers of one subtask."""

    key_context: KeyContext
    declared: dict[str, Any]
    """By name, every state that `state` has given out; for tools and tests that look at state from outside."""

    @abstractmethod
    def state(self, descriptor: StateDescriptor) -> Any:
        """The state of that name, created at first use. Another shape under a known name is refused.

        The object is one of ValueState, ListState, MapState, ReducingState, AggregatingState and always
        speaks of the key in `key_context` and of the namespace set by `set_namespace` (void at first).
        For a descriptor of `state.folding` it is a `FoldingState` too.
        """

    @abstractmethod
    def timers(self, domain: str) -> TimerQueue:
        """The timers of `"event"` or `"processing"` time."""

    @abstractmethod
    def keys(self, state_name: str, namespace: bytes = b"") -> Iterator[Any]:
        """Stored forms of all keys that have a value in that state."""

    @abstractmethod
    def snapshot(self, checkpoint_id: int, *, canonical: bool = False) -> SnapshotWork:
        """Freeze a view of all state and timers as of now. The mailbox stands still for this call only.

        `canonical` asks for the `table` format, which every backend reads (savepoints).
        """

    @abstractmethod
    def restore(self, snapshots: Sequence[KeyedSnapshot], store: FileStore) -> None:
        """Load the entries that fall into this subtask's key groups. Called once, before any state is used."""

    @abstractmethod
    def checkpoint_complete(self, checkpoint_id: int) -> None:
        """That checkpoint is durable and retained."""

    @abstractmethod
    def entry_count(self) -> int:
        """How many (key, namespace, entry) triples there are, about; for status pages."""

    @abstractmethod
    def close(self) -> None:
        """Release memory, files and handles. Called once, also after a failure."""


BackendFactory = Callable[[BackendContext], KeyedStateBackend]
