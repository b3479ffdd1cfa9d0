"""Finds files in the driver and deals them out.

A fixed set is listed once, at the first start. A watched folder is listed again and again: a file counts when two
listings in a row show it with the same size and time, so one that is still being written waits. Its age plays no part.
A file that counted once is remembered as long as it is in the folder, and for a week after it was removed
(`seen_files.py`). If its name turns up with another size or time, it was rewritten: that is counted and logged, and it
is not read again. Write new rows into a new file.

The first listing of a new job refuses a path that does not exist. Later a folder may be unreachable for a while, for
example while its volume is remounted: that is logged once, and nothing is found until it is back.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import msgspec

from headrace.clocks import SYSTEM_CLOCKS, Clocks
from headrace.connectors.files.listing import list_files, list_present_files
from headrace.connectors.files.seen_files import SeenFiles
from headrace.connectors.files.split import FileSplit, Fingerprint
from headrace.connectors.source import EnumeratorContext, SplitEnumerator

log = logging.getLogger(__name__)


class _State(msgspec.Struct):
    """What a checkpoint holds."""

    waiting: list[FileSplit]
    """Found, not yet given to a reader."""
    rewritten: int
    seen: bytes = b""
    """Files of a watched folder that counted: `SeenFiles.encode`."""
    known: dict[str, Fingerprint] = {}
    """The same by path, as checkpoints written before `seen` existed have it."""


class FileEnumerator(SplitEnumerator[FileSplit]):
    """`rewritten` counts files that changed after they were found."""

    def __init__(
        self,
        context: EnumeratorContext,
        paths: Sequence[str],
        watch_ms: int | None,
        restored: bytes | None,
        clocks: Clocks = SYSTEM_CLOCKS,
    ) -> None:
        self.discovery_interval_ms = watch_ms
        self._context = context
        self._paths = paths
        self._watching = watch_ms is not None
        self._fresh = restored is None
        self._clocks = clocks
        state = _State([], 0) if restored is None else msgspec.msgpack.decode(restored, type=_State)
        self._waiting = state.waiting
        self._rewritten = state.rewritten
        self._seen = SeenFiles(state.seen)
        for path, looks in state.known.items():
            self._seen.put(path, looks)
        self._seen_once: dict[str, Fingerprint] = {}
        self._away: set[str] = set()
        """Paths that could not be listed the last time."""
        self._asking: list[int] = []

    @property
    def rewritten(self) -> int:
        return self._rewritten

    def start(self) -> None:
        if self._watching:
            if self._fresh:
                self._take(list_files(self._paths))
            else:
                self.discover()
        elif self._fresh:
            self._waiting = [FileSplit(path, *print_) for path, print_ in list_files(self._paths).items()]

    def discover(self) -> None:
        found, away = list_present_files(self._paths)
        for path, error in away.items():
            if path not in self._away:
                log.warning("%s cannot be listed (%s). No new files are found there until it is back.", path, error)
        for path in self._away - away.keys():
            log.info("%s can be listed again.", path)
        self._away = set(away)
        self._take(found)
        if not away:
            self._seen.listed(found, self._clocks.wall_ms())

    def _take(self, found: dict[str, Fingerprint]) -> None:
        still_new: dict[str, Fingerprint] = {}
        for path, looks in found.items():
            known = self._seen.get(path)
            if known is None:
                if self._seen_once.get(path) == looks:
                    self._seen.put(path, looks)
                    self._waiting.append(FileSplit(path, *looks))
                else:
                    still_new[path] = looks
            elif known != looks:
                self._seen.put(path, looks)
                self._rewritten += 1
                log.warning(
                    "%s was rewritten after it was found (%s, now %s) and is not read again.", path, known, looks
                )
        self._seen_once = still_new
        while self._waiting and self._asking:
            self._context.assign(self._asking.pop(0), [self._waiting.pop(0)])

    def handle_split_request(self, subtask: int) -> None:
        if self._waiting:
            self._context.assign(subtask, [self._waiting.pop(0)])
        elif not self._watching:
            self._context.no_more_splits(subtask)
        elif subtask not in self._asking:
            self._asking.append(subtask)

    def add_splits_back(self, splits: Sequence[FileSplit]) -> None:
        # In front: files that were begun are finished before new ones are.
        self._waiting[:0] = splits

    def snapshot_state(self) -> bytes:
        return msgspec.msgpack.encode(_State(self._waiting, self._rewritten, self._seen.encode()))
