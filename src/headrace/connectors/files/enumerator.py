"""Finds files in the driver and deals them out.

A fixed set is listed once, at the first start. A watched folder is looked at again and again: a file counts when two
looks in a row saw it with the same size and time, so one that is still being written waits. Its age plays no part. A
file that counted once is remembered for the life of the job; if its name turns up with another size or time, it was
rewritten: that is counted and logged, and it is not read again. Write new rows into a new file.

The first look of a new job refuses a path that is not there. Later the folder may be away for a while, as while it is
mounted anew: that is logged once, and nothing is found until it is back.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import msgspec

from headrace.connectors.files.listing import list_files, list_present_files
from headrace.connectors.files.split import FileSplit, Fingerprint
from headrace.connectors.source import EnumeratorContext, SplitEnumerator

log = logging.getLogger(__name__)


class _State(msgspec.Struct):
    waiting: list[FileSplit]
    """Found, not yet given to a reader."""
    known: dict[str, Fingerprint]
    """Every file of a watched folder that ever counted, as it looked last."""
    rewritten: int


class FileEnumerator(SplitEnumerator[FileSplit]):
    """`rewritten` counts files that changed after they were found."""

    def __init__(
        self, context: EnumeratorContext, paths: Sequence[str], watch_ms: int | None, restored: bytes | None
    ) -> None:
        self.discovery_interval_ms = watch_ms
        self._context = context
        self._paths = paths
        self._watching = watch_ms is not None
        self._fresh = restored is None
        self._state = _State([], {}, 0) if restored is None else msgspec.msgpack.decode(restored, type=_State)
        self._seen_once: dict[str, Fingerprint] = {}
        self._away: set[str] = set()
        """Paths that could not be looked at the last time."""
        self._asking: list[int] = []

    @property
    def rewritten(self) -> int:
        return self._state.rewritten

    def start(self) -> None:
        if self._watching:
            if self._fresh:
                self._take(list_files(self._paths))
            else:
                self.discover()
        elif self._fresh:
            self._state.waiting = [FileSplit(path, *print_) for path, print_ in list_files(self._paths).items()]

    def discover(self) -> None:
        found, away = list_present_files(self._paths)
        for path, error in away.items():
            if path not in self._away:
                log.warning("%s cannot be looked at (%s). Nothing is found there until it is back.", path, error)
        for path in self._away - away.keys():
            log.info("%s can be looked at again.", path)
        self._away = set(away)
        self._take(found)

    def _take(self, found: dict[str, Fingerprint]) -> None:
        still_new: dict[str, Fingerprint] = {}
        for path, looks in found.items():
            known = self._state.known.get(path)
            if known is None:
                if self._seen_once.get(path) == looks:
                    self._state.known[path] = looks
                    self._state.waiting.append(FileSplit(path, *looks))
                else:
                    still_new[path] = looks
            elif known != looks:
                self._state.known[path] = looks
                self._state.rewritten += 1
                log.warning(
                    "%s was rewritten after it was found (%s, now %s) and is not read again.", path, known, looks
                )
        self._seen_once = still_new
        while self._state.waiting and self._asking:
            self._context.assign(self._asking.pop(0), [self._state.waiting.pop(0)])

    def handle_split_request(self, subtask: int) -> None:
        if self._state.waiting:
            self._context.assign(subtask, [self._state.waiting.pop(0)])
        elif not self._watching:
            self._context.no_more_splits(subtask)
        elif subtask not in self._asking:
            self._asking.append(subtask)

    def add_splits_back(self, splits: Sequence[FileSplit]) -> None:
        # In front: files that were begun are finished before new ones are.
        self._state.waiting[:0] = splits

    def snapshot_state(self) -> bytes:
        return msgspec.msgpack.encode(self._state)
