"""Key groups: the fixed shares of the key space that are dealt out to subtasks.

    group   = hash(key) % max_parallelism          never changes while the job lives
    subtask = group * parallelism // max_parallelism

The hash is 32 bits wide and part of the checkpoint format: it depends on nothing but the key.

    int within 64 bits   upper half of splitmix64's finaliser of its two's complement
    str                  crc32 of its UTF-8, mixed
    bytes                crc32 of them, started at another value, mixed
    all other keys       crc32 of their encoding, started at a third value, mixed

Int and str come in a form for whole columns too, which agrees with the one for single keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from zlib import crc32

import numpy as np
import numpy.typing as npt

from headrace.errors import ConfigurationError
from headrace.state.keys import StoredKey, encode_key

DEFAULT_MAX_PARALLELISM: Final = 128
MAX_MAX_PARALLELISM: Final = 32_768
"""Key groups are written as u16, and stay positive in every language that may read them."""

_BYTES_SEED: Final = 0x62797465
_OTHER_SEED: Final = 0x6F746872

_M64: Final = 0xFFFFFFFFFFFFFFFF
_M32: Final = 0xFFFFFFFF
_A: Final = 0xBF58476D1CE4E5B9
_B: Final = 0x94D049BB133111EB
_GOLDEN: Final = 0x9E3779B97F4A7C15
_C: Final = 0x85EBCA6B


def key_hash(stored: StoredKey) -> int:
    """32 bits of a key in stored form: the same in every process, on every machine, for ever."""
    kind = type(stored)
    if kind is str:
        try:
            h = crc32(stored.encode())  # type: ignore[union-attr]
        except UnicodeEncodeError:
            h = crc32(stored.encode("utf-8", "surrogatepass"))  # type: ignore[union-attr]
    elif kind is int:
        if -0x8000000000000000 <= stored <= 0x7FFFFFFFFFFFFFFF:  # type: ignore[operator]
            x = (stored + _GOLDEN) & _M64  # type: ignore[operator]
            x = ((x ^ (x >> 30)) * _A) & _M64
            x = ((x ^ (x >> 27)) * _B) & _M64
            return (x ^ (x >> 31)) >> 32
        h = crc32(encode_key(stored), _OTHER_SEED)
    elif kind is bytes:
        h = crc32(stored, _BYTES_SEED)  # type: ignore[arg-type]
    else:
        h = crc32(encode_key(stored), _OTHER_SEED)
    h = ((h ^ (h >> 16)) * _C) & _M32
    return h ^ (h >> 15)


def key_group(stored: StoredKey, max_parallelism: int) -> int:
    """The group of a key in stored form. Called once per record where no column form applies."""
    return key_hash(stored) % max_parallelism


def key_groups_of_ints(keys: npt.NDArray[np.int64], max_parallelism: int) -> npt.NDArray[np.int64]:
    """`key_group` of every int of a column."""
    # Unsigned arithmetic of numpy arrays wraps around, which is what the masks do above.
    x = keys.astype(np.int64, copy=False).view(np.uint64) + np.uint64(_GOLDEN)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(_A)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(_B)
    x = (x ^ (x >> np.uint64(31))) >> np.uint64(32)
    return (x % np.uint64(max_parallelism)).astype(np.int64)


def key_groups_of_strings(keys: Sequence[str], max_parallelism: int) -> npt.NDArray[np.int64]:
    """`key_group` of every str of a column."""
    try:
        sums = np.fromiter(map(crc32, map(str.encode, keys)), np.uint32, len(keys))
    except UnicodeEncodeError:
        return np.fromiter((key_group(k, max_parallelism) for k in keys), np.int64, len(keys))
    h = (sums ^ (sums >> np.uint32(16))) * np.uint32(_C)
    h = h ^ (h >> np.uint32(15))
    return (h % np.uint32(max_parallelism)).astype(np.int64)


def subtask_of_group(group: int, parallelism: int, max_parallelism: int) -> int:
    """The subtask that owns the group."""
    return group * parallelism // max_parallelism


def group_range(subtask: int, parallelism: int, max_parallelism: int) -> range:
    """The groups a subtask owns: all and only those that `subtask_of_group` sends to it."""
    first = -(-subtask * max_parallelism // parallelism)
    end = -(-(subtask + 1) * max_parallelism // parallelism)
    return range(first, end)


def check_parallelism(parallelism: int, max_parallelism: int, where: str) -> None:
    """Refuse numbers that cannot work; `where` names the operator or the setting. Called before a job starts."""
    if not 1 <= max_parallelism <= MAX_MAX_PARALLELISM:
        raise ConfigurationError(
            f"{where}: max parallelism is {max_parallelism}. Set it between 1 and {MAX_MAX_PARALLELISM}."
        )
    if not 1 <= parallelism <= max_parallelism:
        raise ConfigurationError(
            f"{where}: parallelism {parallelism} does not fit max parallelism {max_parallelism}, the number of key "
            f"groups. Set parallelism between 1 and {max_parallelism}."
        )
