"""A source whose input is a script: values, and between them crashes, checkpoints and conditions.

    TestSource(["a", CHECKPOINT, "b", WaitUntil(log_has_two_lines), CRASH, "c"])

Nothing here sleeps to hope that something has happened by then: the source holds its next value back until what
the script names has happened.
"""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import msgspec

from headrace.connectors.queue_enumerator import QueueEnumerator
from headrace.connectors.source import (
    EnumeratorContext,
    PollStatus,
    ReaderContext,
    Source,
    SourceBatch,
    SourceReader,
    SplitEnumerator,
)
from headrace.types.information import TypeInformation, TypeLike, type_of

LOOK_AGAIN_S = 0.005


class Marker(Enum):
    """What may stand between values besides `WaitUntil`. Markers are not records and have no position."""

    CRASH = "the worker that reads the source is killed (SIGKILL), once"
    CHECKPOINT = "wait until a checkpoint is complete that holds all values before this place"


CRASH = Marker.CRASH
CHECKPOINT = Marker.CHECKPOINT


@dataclass(frozen=True, slots=True)
class WaitUntil:
    """Hold the next value back until `condition()` is true. It is called often, in the worker, and must not block."""

    condition: Callable[[], bool]


class ScriptSplit(msgspec.Struct):
    """The whole script, from the value at `position` on. `passed` counts the markers at that place already passed."""

    position: int
    passed: int = 0

    @property
    def split_id(self) -> str:
        return "script"


class TestSource(Source[ScriptSplit]):
    """The values of a script, in order, read by one subtask; markers between them steer the run.

    A crash happens once in the life of this object, however often its place is read again. A value before a crash
    has left the source, but need not have been processed further on: put `CHECKPOINT` or a `WaitUntil` between
    where that matters. `CHECKPOINT` counts on one checkpoint at a time (the default) and needs checkpointing to be on.
    """

    __test__ = False  # not a test class, whatever pytest makes of the name
    split_type = ScriptSplit

    def __init__(
        self,
        script: Iterable[Any],
        type_info: TypeLike | None = None,
        *,
        timestamp: Callable[[Any], int] | None = None,
    ) -> None:
        self.values: list[Any] = []
        self.markers: dict[int, list[Marker | WaitUntil]] = {}
        for item in script:
            if isinstance(item, Marker | WaitUntil):
                self.markers.setdefault(len(self.values), []).append(item)
            else:
                self.values.append(item)
        self.type_info = None if type_info is None else type_of(type_info)
        self.timestamp = timestamp
        self._home = tempfile.TemporaryDirectory(prefix="headrace-script-")
        self.crash_log = self._home.name

    @property
    def produced_type(self) -> TypeInformation | None:
        return self.type_info

    @property
    def crashes(self) -> int:
        """How many of the script's crashes have happened."""
        return len(os.listdir(self.crash_log))

    def create_enumerator(self, context: EnumeratorContext, restored: bytes | None) -> SplitEnumerator[ScriptSplit]:
        return QueueEnumerator(context, ScriptSplit, first=lambda: [ScriptSplit(0)], restored=restored)

    def create_reader(self, context: ReaderContext) -> SourceReader[ScriptSplit]:
        return _ScriptReader(self)

    def describe(self) -> str:
        return f"script of {len(self.values)} values"

    def __getstate__(self) -> dict[str, Any]:
        # The directory belongs to the program that made it; a task's copy must not remove it.
        return {name: value for name, value in self.__dict__.items() if name != "_home"}


class _ScriptReader(SourceReader[ScriptSplit]):
    def __init__(self, source: TestSource) -> None:
        self._source = source
        self._split: ScriptSplit | None = None
        self._no_more = False
        self._saved_here = False
        """A snapshot was taken while the script stood where it stands now."""
        self._complete_here = False

    def add_splits(self, splits: Sequence[ScriptSplit]) -> None:
        for split in splits:
            self._split = split

    def no_more_splits(self) -> None:
        self._no_more = True

    def poll(self, limit: int) -> SourceBatch | PollStatus:
        split, source = self._split, self._source
        if split is None:
            return PollStatus.ENDED if self._no_more else PollStatus.NEEDS_SPLIT
        if not self._pass_markers(split):
            return PollStatus.IDLE
        if split.position >= len(source.values):
            self._split = None
            return PollStatus.ENDED if self._no_more else PollStatus.NEEDS_SPLIT
        stops = [place for place in source.markers if place > split.position]
        until = min([split.position + limit, len(source.values), *stops])
        values = source.values[split.position : until]
        split.position, split.passed = until, 0
        self._saved_here = self._complete_here = False
        timestamps = None if source.timestamp is None else [source.timestamp(value) for value in values]
        return SourceBatch(split.split_id, values=values, timestamps=timestamps)

    def _pass_markers(self, split: ScriptSplit) -> bool:
        """Do what the script says at this place; False to wait here."""
        markers = self._source.markers.get(split.position, [])
        while split.passed < len(markers):
            marker = markers[split.passed]
            if marker is Marker.CRASH:
                self._crash(split)
            elif marker is Marker.CHECKPOINT:
                if not self._complete_here:
                    return False
            elif isinstance(marker, WaitUntil) and not marker.condition():
                return False
            split.passed += 1
            self._saved_here = self._complete_here = False
        return True

    def _crash(self, split: ScriptSplit) -> None:
        try:
            with open(os.path.join(self._source.crash_log, f"{split.position}-{split.passed}"), "x"):
                pass
        except FileExistsError:
            return
        os.kill(os.getpid(), signal.SIGKILL)

    def idle_until(self) -> float | None:
        return time.monotonic() + LOOK_AGAIN_S

    def snapshot(self) -> list[ScriptSplit]:
        split = self._split
        if split is None:
            return []
        self._saved_here = True
        # Markers behind the last value are still to come, so the split is unfinished until they are passed.
        return [ScriptSplit(split.position, split.passed)]

    def checkpoint_complete(self, checkpoint_id: int) -> None:
        self._complete_here = self._saved_here
