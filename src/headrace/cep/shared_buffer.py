"""The events that partial matches have taken, each kept once, and the chains that lead through them.

A partial match holds the last link of its chain; a link knows its event, its pattern and the link before. Matches
that began alike share their links, and several links share an event. Both are counted, and what no partial match
leads to any more is removed at once:

    events   event id -> the event in the codec of its stream's type
    links    link id  -> msgpack array: pattern, event id, link before (-1: none), how many links and matches hold it

The first link of a chain needs no entry, for its number says it all: -2 - (event id * number of patterns + pattern).
Holds of it are holds of the event.

Ids are given per key and only grow while there is a partial match, so a greater event id is a later event.

While one event is processed, holds are only noted; `settle` writes the sum of them. So a match that moves on by one
event costs one new link, and one that begins and ends with the same event costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from headrace.cep.partial_matches import PartialMatches
from headrace.state.codecs import codec_for
from headrace.types.information import TypeInformation

NONE = -1
Link = tuple[int, int, int, int]
"""(pattern, event id, link before, holds)."""

_pack: Callable[[Link], bytes] = msgspec.msgpack.Encoder().encode
_unpack: Callable[[bytes], Link] = msgspec.msgpack.Decoder(tuple[int, int, int, int]).decode


class Store(Protocol):
    """The part of `MapState` that the buffer needs; tests give a dict."""

    def get(self, key: int) -> bytes | None: ...

    def put(self, key: int, value: bytes) -> None: ...

    def remove(self, key: int) -> None: ...


class SharedBuffer:
    """One for an operator; it speaks of the current key, as the states below it do.

    For each event: `begin`; `take`, `hold` and `drop` as matches move; reading with `ids_of` and `event`; `settle`.
    """

    def __init__(self, events: Store, links: Store, event_type: TypeInformation, patterns: int) -> None:
        """`patterns`: how many names there are that an event can be taken for."""
        self._patterns = patterns
        self._events = events
        self._links = links
        codec = codec_for(event_type)
        self._encode, self._decode = codec.encode, codec.decode
        self._immutable = codec.immutable
        self._matches = PartialMatches()
        self._event: Any = None
        self._encoded: bytes | None = None
        self._event_id = NONE
        self._fresh: dict[int, Link] = {}
        self._loaded: dict[int, Link] = {}
        self._known: dict[int, Any] = {}
        self._change: dict[int, int] = {}

    def begin(self, matches: PartialMatches, event: Any = None, encoded: bytes | None = None) -> None:
        """An event, or a moment in time, of the current key is about to be processed. `encoded`: if it is at hand."""
        self._matches = matches
        self._event = event
        self._encoded = encoded
        self._event_id = NONE
        self._fresh = {}
        self._loaded = {}
        self._known = {}
        self._change = {}

    def take(self, pattern: int, before: int) -> int:
        """A new link for the event at hand; held by nobody yet."""
        matches = self._matches
        if self._event_id == NONE:
            self._event_id = matches.next_event
            matches.next_event += 1
        if before == NONE:
            return -2 - (self._event_id * self._patterns + pattern)
        link = matches.next_link
        matches.next_link += 1
        self._fresh[link] = (pattern, self._event_id, before, 0)
        return link

    @property
    def event_id(self) -> int:
        """Id of the event at hand; it has one once it was taken."""
        return self._event_id

    def hold(self, link: int) -> None:
        """One more partial match ends in this link."""
        self._change[link] = self._change.get(link, 0) + 1

    def drop(self, link: int) -> None:
        """One less."""
        self._change[link] = self._change.get(link, 0) - 1

    def ids_of(self, link: int) -> list[tuple[int, int]]:
        """Pattern and event id of a chain, from the first event to the last."""
        found = []
        while link > NONE:
            pattern, event_id, link, _ = self._link(link)
            found.append((pattern, event_id))
        if link < NONE:
            event_id, pattern = divmod(-2 - link, self._patterns)
            found.append((pattern, event_id))
        found.reverse()
        return found

    def event(self, event_id: int) -> Any:
        """An event. Each call gives a copy of its own if events can change."""
        known = self._known
        if event_id in known:
            return known[event_id]
        if event_id == self._event_id:
            event = self._event if self._immutable else self._decode(self._encoding())
        else:
            packed = self._events.get(event_id)
            assert packed is not None, "an event that is held has an entry"
            event = self._decode(packed)
        if self._immutable:
            known[event_id] = event
        return event

    def _encoding(self) -> bytes:
        if self._encoded is None:
            self._encoded = self._encode(self._event)
        return self._encoded

    def settle(self) -> None:
        """Write new links that are held, and remove what is held no longer."""
        matches, change = self._matches, self._change
        counts = matches.event_holds
        for link, (pattern, event_id, before, _) in self._fresh.items():
            holds = change.pop(link, 0)
            if holds:
                self._links.put(link, _pack((pattern, event_id, before, holds)))
                counts[event_id] = counts.get(event_id, 0) + 1
                change[before] = change.get(before, 0) + 1
        # New holds first: nothing must be removed while what needs it is still to be counted.
        for link, by in change.items():
            if by > 0:
                if link < NONE:
                    event_id = (-2 - link) // self._patterns
                    counts[event_id] = counts.get(event_id, 0) + by
                else:
                    self._count(link, by)
        if self._event_id in counts:
            self._events.put(self._event_id, self._encoding())
        for link, by in change.items():
            if by < 0:
                self._release(link, by)

    def _link(self, link: int) -> Link:
        found = self._fresh.get(link) or self._loaded.get(link)
        if found is None:
            packed = self._links.get(link)
            assert packed is not None, "a link that is held has an entry"
            found = self._loaded[link] = _unpack(packed)
        return found

    def _count(self, link: int, by: int) -> int:
        pattern, event_id, before, holds = self._link(link)
        holds += by
        self._loaded[link] = (pattern, event_id, before, holds)
        if holds:
            self._links.put(link, _pack((pattern, event_id, before, holds)))
        return holds

    def _release(self, link: int, by: int) -> None:
        while link > NONE:
            if self._count(link, by):
                return
            _, event_id, before, _ = self._link(link)
            self._links.remove(link)
            self._release_event(event_id, -1)
            link, by = before, -1
        self._release_event((-2 - link) // self._patterns, by)

    def _release_event(self, event_id: int, by: int) -> None:
        counts = self._matches.event_holds
        counts[event_id] += by
        if not counts[event_id]:
            del counts[event_id]
            self._events.remove(event_id)
