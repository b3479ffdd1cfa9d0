"""Open a checkpoint or savepoint by the path a person gives: its directory, or its `_metadata`.

A checkpoint of a job lies at `<root>/<job_id>/run-000001/chk-000007`, and names its files from `<root>`; a savepoint is
its own root. Which of the two it is, the path tells.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from urllib.parse import urlsplit

from headrace.checkpoint.metadata.codec import decode_metadata
from headrace.checkpoint.metadata.model import CheckpointMetadata
from headrace.checkpoint.storage.base import CheckpointStorage, MissingFileError, storage_for
from headrace.errors import RestoreError, permanent

_CHECKPOINT = re.compile(r"(?P<root>.*)/(?P<inside>[^/]+/run-\d+/chk-\d+)")


class MissingCheckpointError(RestoreError):
    """There is no `_metadata` at that place."""

    recovery = permanent("the same place is looked at again")


@dataclass(frozen=True, slots=True)
class OpenedCheckpoint:
    """A checkpoint somewhere, with the storage from which its files can be read."""

    metadata: CheckpointMetadata
    storage: CheckpointStorage
    path: str
    inside: str = ""
    """Its directory within the storage; empty for a savepoint, which is its own root."""


def open_checkpoint(path: str) -> OpenedCheckpoint:
    """Read and check its metadata; `RestoreError` if there is none."""
    # Absolute from here on: it is written down, and read again by a process that may start somewhere else.
    plain = path if urlsplit(path).scheme else os.path.abspath(os.path.expanduser(path))
    place = plain.rstrip("/").removesuffix("/_metadata")
    match = _CHECKPOINT.fullmatch(place)
    root, inside = (match["root"] or "/", match["inside"]) if match else (place, "")
    storage = storage_for(root)
    try:
        data = storage.read(f"{inside}/_metadata" if inside else "_metadata")
    except MissingFileError as error:
        raise MissingCheckpointError(
            f"There is no checkpoint at {path}: it has no _metadata. Give the directory of a completed checkpoint "
            "(…/<job>/run-000001/chk-000007) or of a savepoint."
        ) from error
    return OpenedCheckpoint(decode_metadata(data, path), storage, place, inside)
