"""A list of any Python values as bytes that may lie in a checkpoint: plain and safe, or pickle where only pickle can.

tag u8 (0 plain, 1 pickle) | body
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

from headrace.errors import TypeMismatchError
from headrace.state.plain_values import decode_plain, encode_plain

_PLAIN = b"\x00"
_PICKLE = b"\x01"


def encode_batch(values: Sequence[Any]) -> bytes:
    """All values in order."""
    try:
        return _PLAIN + encode_plain(list(values))
    except TypeMismatchError:
        return _PICKLE + pickle.dumps(list(values), protocol=pickle.HIGHEST_PROTOCOL)


def decode_batch(data: bytes) -> list[Any]:
    """The values again."""
    if data[:1] == _PICKLE:
        return list(pickle.loads(data[1:]))
    return list(decode_plain(data[1:]))
