"""Key groups: the fixed shares of the key space that are dealt out to subtasks.

    group   = hash(key) % max_parallelism          never changes while the job lives
    subtask = group * parallelism // max_parallelism

The hash is 32 bits wide and part of the checkpoint format: it depends on nothing but the key.

    int within 64 bits   upper half of splitmix64's finaliser of its two's complement
    str                  its UTF-8 in words, below
    bytes                the same, started at another value
    all other keys       crc32 of their encoding, started at a third value, mixed

    words of n bytes     x = seed + n * golden, all in 64 bits
                         for each 8 bytes, little-endian, zeros after the last: x = (x ^ word) * A;  x ^= x >> 32
                         upper half of x * B
    more than 256 bytes  crc32, started at the seed's lower half, is the only word

Int and str come in a form for whole columns too, which agrees with the one for single keys: that is why text is
hashed in words, which numpy can read straight from an Arrow column, for all rows at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from struct import Struct
from typing import Final, NamedTuple
from zlib import crc32

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.errors import ConfigurationError
from headrace.state.keys import StoredKey, encode_key

DEFAULT_MAX_PARALLELISM: Final = 128
MAX_MAX_PARALLELISM: Final = 32_768
"""Key groups are written as u16, and stay positive in every language that may read them."""

_TEXT_SEED: Final = 0x746578745F6B6579
_BYTES_SEED: Final = 0x62797465735F6B65
_OTHER_SEED: Final = 0x6F746872
_MOST_BYTES: Final = 256
"""Up to this size by words."""

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
            return _hash_of_bytes(stored.encode(), _TEXT)  # type: ignore[union-attr]
        except UnicodeEncodeError:
            return _hash_of_bytes(stored.encode("utf-8", "surrogatepass"), _TEXT)  # type: ignore[union-attr]
    if kind is bytes:
        return _hash_of_bytes(stored, _BYTES)  # type: ignore[arg-type]
    if kind is int and -0x8000000000000000 <= stored <= 0x7FFFFFFFFFFFFFFF:  # type: ignore[operator]
        x = (stored + _GOLDEN) & _M64  # type: ignore[operator]
        x = ((x ^ (x >> 30)) * _A) & _M64
        x = ((x ^ (x >> 27)) * _B) & _M64
        return (x ^ (x >> 31)) >> 32
    h = crc32(encode_key(stored), _OTHER_SEED)
    h = ((h ^ (h >> 16)) * _C) & _M32
    return h ^ (h >> 15)


class _Size(NamedTuple):
    """What hashing some number of bytes begins with."""

    start: int
    unpack: Callable[[bytes], tuple[int, ...]]
    """From bytes with zeros to the end of the last word, to words."""
    width: int
    """With those zeros."""


def _sizes(seed: int) -> list[_Size]:
    """By number of bytes."""
    words = [-(-n // 8) for n in range(_MOST_BYTES + 1)]
    return [_Size((seed + n * _GOLDEN) & _M64, Struct(f"<{w}Q").unpack, 8 * w) for n, w in enumerate(words)]


_TEXT: Final = _sizes(_TEXT_SEED)
_BYTES: Final = _sizes(_BYTES_SEED)


def _hash_of_bytes(data: bytes, sizes: list[_Size]) -> int:
    n = len(data)
    if n <= _MOST_BYTES:
        x, unpack, width = sizes[n]
        words = unpack(data.ljust(width, b"\0"))
    else:
        seed = sizes[0].start
        x, words = (seed + n * _GOLDEN) & _M64, (crc32(data, seed & _M32),)
    for word in words:
        x = ((x ^ word) * _A) & _M64
        x ^= x >> 32
    return ((x * _B) & _M64) >> 32


def key_group(stored: StoredKey, max_parallelism: int) -> int:
    """The group of a key in stored form. Called once per record where no column form applies."""
    return key_hash(stored) % max_parallelism


def key_groups_of_ints(keys: npt.NDArray[np.int64], max_parallelism: int) -> npt.NDArray[np.int64]:
    """`key_group` of every int of a column."""
    # Unsigned arithmetic of numpy arrays wraps around, which is what the masks do above.
    x = keys.astype(np.int64, copy=False).view(np.uint64) + np.uint64(_GOLDEN)
    x ^= x >> np.uint64(30)
    x *= np.uint64(_A)
    x ^= x >> np.uint64(27)
    x *= np.uint64(_B)
    x ^= x >> np.uint64(31)
    return _groups(x, max_parallelism)


def key_groups_of_strings(keys: Sequence[str], max_parallelism: int) -> npt.NDArray[np.int64]:
    """`key_group` of every str of a column. Uses no Arrow, so that a forked child may call it."""
    if not keys:
        return np.empty(0, np.int64)
    try:
        text = "".join(keys).encode()
    except UnicodeEncodeError:
        return np.fromiter((key_group(k, max_parallelism) for k in keys), np.int64, len(keys))
    measured = keys if text.isascii() else [key.encode() for key in keys]
    sizes = np.fromiter(map(len, measured), np.int64, len(keys))
    return _groups_of_text(_with_room(text), np.cumsum(sizes) - sizes, sizes, max_parallelism)


def key_groups_of_string_array(keys: pa.Array, max_parallelism: int) -> npt.NDArray[np.int64]:
    """`key_group` of every str of an Arrow column, which must not hold nulls; no Python object is made of any."""
    if not pa.types.is_string(keys.type) and not pa.types.is_large_string(keys.type):
        keys = keys.cast(pa.large_string())
    if not len(keys):
        return np.empty(0, np.int64)
    _, offsets, data = keys.buffers()
    width = np.int32 if pa.types.is_string(keys.type) else np.int64
    ends = np.frombuffer(offsets, width, keys.offset + len(keys) + 1)[keys.offset :].astype(np.int64)
    starts, sizes = ends[:-1] - ends[0], ends[1:] - ends[:-1]
    first, last = int(ends[0]), int(ends[-1])
    text = _with_room(memoryview(data)[first:last] if last > first else b"")
    return _groups_of_text(text, starts, sizes, max_parallelism)


def _with_room(text: bytes | memoryview) -> bytearray:
    """A copy with room behind: eight bytes can be read wherever a word might be looked for."""
    roomy = bytearray(len(text) + _MOST_BYTES + 8)
    roomy[: len(text)] = text
    return roomy


def _groups_of_text(
    text: bytearray, starts: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64], max_parallelism: int
) -> npt.NDArray[np.int64]:
    """The group of each row of `text`; changes `sizes`."""
    x = sizes.view(np.uint64) * np.uint64(_GOLDEN)
    x += np.uint64(_TEXT_SEED)
    if int(sizes.max()) > _MOST_BYTES:
        for row in np.flatnonzero(sizes > _MOST_BYTES).tolist():
            start = int(starts[row])
            crc = crc32(memoryview(text)[start : start + int(sizes[row])], _TEXT_SEED & _M32)
            h = ((int(x[row]) ^ crc) * _A) & _M64
            x[row] = h ^ (h >> 32)
            sizes[row] = 0
    words: npt.NDArray[np.uint64] = np.ndarray(len(text) - 7, "<u8", text, strides=(1,))
    _take_up_words(x, words, starts, sizes)
    x *= np.uint64(_B)
    return _groups(x, max_parallelism)


def _take_up_words(
    x: npt.NDArray[np.uint64],
    words: npt.NDArray[np.uint64],
    starts: npt.NDArray[np.int64],
    sizes: npt.NDArray[np.int64],
    begin: int = 0,
) -> None:
    """Change `x` by the first word of every row, then by the second, until the longest row is at its end.

    `words` has the eight bytes that begin at each byte of the text; `begin` is where in the rows to start.
    """
    shortest, longest = int(sizes.min()), int(sizes.max())
    side_by_side = shortest == longest and int(starts[-1]) - int(starts[0]) == longest * (len(starts) - 1)
    for at in range(begin, longest, 8):
        if at < shortest:
            going_on = None
        else:
            going_on = sizes > at
            if 4 * np.count_nonzero(going_on) < len(x):
                # Most rows are at their end: go on with the few others.
                rows = np.flatnonzero(going_on)
                few = x[rows]
                _take_up_words(few, words, starts[rows], sizes[rows], at)
                x[rows] = few
                return
        word = words[int(starts[0]) + at :: longest][: len(x)].copy() if side_by_side else words[starts + at]
        if shortest < at + 8:
            # What stands behind the end of a row is the next row.
            beyond = np.maximum(8 * (at + 8) - 8 * sizes, 0).view(np.uint64)
            word <<= beyond
            word >>= beyond
        word ^= x
        word *= np.uint64(_A)
        word ^= word >> np.uint64(32)
        np.copyto(x, word, where=True if going_on is None else going_on)


def _groups(x: npt.NDArray[np.uint64], max_parallelism: int) -> npt.NDArray[np.int64]:
    """The group of each row, whose hash is the upper half of `x`; changes `x`."""
    x >>= np.uint64(32)
    if max_parallelism & (max_parallelism - 1) == 0:
        x &= np.uint64(max_parallelism - 1)  # several times faster than a division
    else:
        x %= np.uint64(max_parallelism)
    return x.view(np.int64)


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
