"""An enumerator for inputs that are fully known when the job starts: a list of splits, dealt on request."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import TypeVar

import msgspec

from headrace.connectors.source import EnumeratorContext, Split, SplitEnumerator

QueuedT = TypeVar("QueuedT", bound=Split)


class Dealing(Enum):
    """How many splits a reader gets when it asks."""

    ONE_BY_ONE = "one; when it has read it, it asks again"
    ALL_AT_ONCE = "its even share of all, so that every split is being read from the start"


class QueueEnumerator(SplitEnumerator[QueuedT]):
    """Deals a fixed list of splits; a reader that asks when nothing is left for it will get no more, ever.

    Its state is the list of splits that nobody has yet. `widen`, if given, turns the splits that are there at
    the start of an attempt into at least as many as there are readers, so that a job restored at a higher
    parallelism has work for all of them.
    """

    def __init__(
        self,
        context: EnumeratorContext,
        split_type: type[QueuedT],
        *,
        first: Callable[[], Sequence[QueuedT]],
        restored: bytes | None,
        widen: Callable[[list[QueuedT], int], list[QueuedT]] | None = None,
        dealing: Dealing = Dealing.ONE_BY_ONE,
    ) -> None:
        self._context = context
        self._widen = widen
        self._dealing = dealing
        self._waiting: list[QueuedT] = (
            list(first()) if restored is None else msgspec.msgpack.decode(restored, type=list[split_type])  # type: ignore[valid-type]
        )
        self._shares: list[list[QueuedT]] = []

    def start(self) -> None:
        parallelism = self._context.parallelism
        if self._widen is not None:
            self._waiting = self._widen(self._waiting, parallelism)
        if self._dealing is Dealing.ALL_AT_ONCE:
            self._shares = [self._waiting[subtask::parallelism] for subtask in range(parallelism)]
            self._waiting = []

    def handle_split_request(self, subtask: int) -> None:
        if self._shares and self._shares[subtask]:
            self._context.assign(subtask, self._shares[subtask])
            self._shares[subtask] = []
        elif self._waiting:
            self._context.assign(subtask, [self._waiting.pop(0)])
        else:
            self._context.no_more_splits(subtask)

    def add_splits_back(self, splits: Sequence[QueuedT]) -> None:
        self._waiting.extend(splits)

    def snapshot_state(self) -> bytes:
        return msgspec.msgpack.encode([split for share in (*self._shares, self._waiting) for split in share])
