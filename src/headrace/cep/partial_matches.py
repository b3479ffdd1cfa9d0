"""What is kept of one key between two events: partial matches, and complete ones that wait for earlier ones.

In the state backend it is one msgpack array of these fields, in this order, under the name `_pattern-matches`; a key
without partial matches has none. The events and chains they refer to are in the `SharedBuffer`.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

Partial = tuple[int, int, int, int, int]
"""(state, last link, id of its first event, time of its first event, time of its last event)."""


class PartialMatches(msgspec.Struct, array_like=True):
    """The partial matches of a key, in the order in which they began."""

    fingerprint: int = 0
    """Of the automaton whose states these are."""
    partial: list[Partial] = []
    complete: list[Partial] = []
    """Matches that must wait, because one that began earlier may still become a match and discard them."""
    next_event: int = 0
    next_link: int = 0
    event_holds: dict[int, int] = {}
    """How many links refer to each buffered event."""
    timer_ms: int | None = None
    """When the timer of the key is set for, if there is one."""

    @property
    def is_empty(self) -> bool:
        return not self.partial and not self.complete


encode_matches: Callable[[PartialMatches], bytes] = msgspec.msgpack.Encoder().encode
decode_matches: Callable[[bytes], PartialMatches] = msgspec.msgpack.Decoder(PartialMatches).decode
