"""The small files that say which checkpoints count: JSON with a checksum of itself.

    {"attempt": 3, …, "checksum": "9f86d081884c7d65"}     the first 16 hex digits of sha256 over the other fields

Files of versions before 0.2 have no checksum. They are read all the same, as long as they hold nothing but the fields
of those versions: a damaged name of a field is not taken for an old file.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection
from typing import Any

_CHECKSUM = "checksum"


class DamagedRecordError(ValueError):
    """The bytes are not what was written."""


def encode_record(fields: dict[str, Any]) -> bytes:
    """The bytes of a control file."""
    return _canonical({**fields, _CHECKSUM: _checksum(fields)})


def decode_record(data: bytes, old_fields: Collection[str]) -> dict[str, Any]:
    """Its fields; `DamagedRecordError` if they are not those that were written.

    `old_fields`: what a file without a checksum may hold.
    """
    try:
        record = json.loads(data)
    except ValueError as error:
        raise DamagedRecordError(f"it holds no JSON ({error})") from None
    if not isinstance(record, dict):
        raise DamagedRecordError("it holds no JSON object")
    checksum = record.pop(_CHECKSUM, None)
    if checksum is None:
        if not record or not record.keys() <= set(old_fields):
            raise DamagedRecordError("it has no checksum")
    elif checksum != _checksum(record):
        raise DamagedRecordError("its checksum does not match")
    return record


def _checksum(fields: dict[str, Any]) -> str:
    return hashlib.sha256(_canonical(fields)).hexdigest()[:16]


def _canonical(fields: dict[str, Any]) -> bytes:
    return json.dumps(fields, sort_keys=True).encode()
