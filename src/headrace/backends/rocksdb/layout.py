"""Key layout of keyed state in RocksDB. One column family per state, named `state:` and the state's name:

    key_group u16 | key_len u32 | key | namespace_len u16 | namespace | entry      (big-endian)

Byte order is key-group order, so a key group is one range of every family. Lengths make the parts
unambiguous: everything under one key and namespace is one range too, and no key is a prefix of another's.

    key         `state.keys.encode_key`
    namespace   empty for the void namespace, else what the window operator made of the window
    entry       value, reducing, aggregating: empty
                list: u64, 0 for the first element of a list, so that one read tells whether there is a list; for
                      others a number that grows with every addition to that state in this subtask
                map: the encoded map key

Values are in the codec of the state. Timers have families of their own where they are in the database; see `timers`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from struct import Struct
from typing import Any, TypeAlias

import numpy as np

from headrace.backends.table import groups_of, runs_of_groups
from headrace.errors import DamagedCheckpointError, JobDefinitionError
from headrace.state.key_groups import key_group
from headrace.state.keys import decode_key, encode_key

FAMILY_PREFIX = "state:"
TIMERS_PREFIX = "timers:"
NOT_A_STATE = "\0"
"""Begins the names by which a database knows families that are no state's."""
GROUP = Struct(">H")
POSITION = Struct(">Q")
FIRST, BEYOND = GROUP.pack(0), b"\xff\xff"
"""All keys of a family lie between them."""
HEAD = POSITION.pack(0)
"""The entry of the first element of a list."""

_HEAD = Struct(">HI")
_NAMESPACE = Struct(">H")
_VOID = _NAMESPACE.pack(0)
_FEW = 8
"""Below this, a column of keys costs more to set up than it saves: namespaces of session windows hold one key."""
_COLUMN = 16_384
"""Keys whose groups are reckoned at once, which holds the interpreter."""

Prefix: TypeAlias = Callable[[Any, bytes], bytes]
"""The bytes under which all entries of a stored key and a namespace lie."""


def family_of(state_name: str) -> str:
    """The column family of a state. The prefix keeps a state called "default" apart from RocksDB's own."""
    if state_name.startswith(NOT_A_STATE):
        return state_name.removeprefix(NOT_A_STATE)
    return FAMILY_PREFIX + state_name


def timers_family(domain: str) -> str:
    """By what name a database knows the column family of the timers of a time domain."""
    return f"{NOT_A_STATE}{TIMERS_PREFIX}{domain}"


def prefix_for(max_parallelism: int) -> Prefix:
    """`prefix(stored key, namespace)` for that number of key groups."""
    head = _HEAD.pack

    def prefix(key: Any, namespace: bytes) -> bytes:
        raw = encode_key(key)
        start = head(key_group(key, max_parallelism), len(raw))
        return start + raw + (_VOID if not namespace else _namespace(namespace))

    return prefix


def prefixes_for(max_parallelism: int) -> Callable[[list[Any], bytes], list[bytes]]:
    """`prefix_for` for many keys of one namespace at once."""
    head = _HEAD.pack
    one = prefix_for(max_parallelism)

    def prefixes(keys: list[Any], namespace: bytes) -> list[bytes]:
        if len(keys) < _FEW:
            return [one(key, namespace) for key in keys]
        tail = _namespace(namespace)
        groups = groups_of(keys, max_parallelism).tolist()
        return [head(group, len(raw)) + raw + tail for group, raw in zip(groups, map(encode_key, keys), strict=True)]

    return prefixes


def prefixes_by_group(
    keys: list[Any], counts: dict[bytes, int], max_parallelism: int
) -> Iterator[tuple[list[bytes], list[int]]]:
    """`prefix_for` for many keys, one key group after another: the prefixes, and where their keys stand in `keys`.

    `counts`: how many of the keys, in their order, are of which namespace.
    """
    groups = np.concatenate(
        [groups_of(keys[start : start + _COLUMN], max_parallelism) for start in range(0, len(keys), _COLUMN)]
    )
    tails = [tail for namespace, count in counts.items() for tail in [_namespace(namespace)] * count]
    order, runs = runs_of_groups(groups)
    for group, start, stop in runs:
        where = order[start:stop].tolist()
        raws = [encode_key(keys[place]) for place in where]
        heads = {size: _HEAD.pack(group, size) for size in set(map(len, raws))}
        if len(heads) == len(counts) == 1:
            (head,), tail = heads.values(), tails[0]
            yield [head + raw + tail for raw in raws], where
        else:
            yield [heads[len(raw)] + raw + tails[place] for raw, place in zip(raws, where, strict=True)], where


def _namespace(namespace: bytes) -> bytes:
    if len(namespace) > 0xFFFF:
        raise JobDefinitionError(
            f"A namespace of keyed state has {len(namespace)} bytes; at most 65535 can be kept. Use shorter ones."
        )
    return _NAMESPACE.pack(len(namespace)) + namespace


def split(raw: bytes) -> tuple[Any, bytes, bytes]:
    """(stored key, namespace, entry) of a database key; its key group is the first two bytes."""
    try:
        _, key_length = _HEAD.unpack_from(raw)
        key_end = _HEAD.size + key_length
        (space_length,) = _NAMESPACE.unpack_from(raw, key_end)
        space_start = key_end + _NAMESPACE.size
        space_end = space_start + space_length
        if space_end > len(raw):
            raise ValueError
        return decode_key(raw[_HEAD.size : key_end]), raw[space_start:space_end], raw[space_end:]
    except Exception as error:
        raise DamagedCheckpointError(
            f"A database key of {len(raw)} bytes ({raw[:16].hex(' ')}…) is not in the layout of keyed state. "
            "Restore from another checkpoint."
        ) from error


def after(prefix: bytes) -> bytes:
    """The smallest bytes above all that begin with `prefix`; there are such, because no key group is 0xFFFF."""
    stripped = prefix.rstrip(b"\xff")
    return stripped[:-1] + bytes([stripped[-1] + 1])


def group_bounds(groups: range) -> tuple[bytes, bytes]:
    """Where the key groups begin and end in every family."""
    return GROUP.pack(groups.start), GROUP.pack(groups.stop)
