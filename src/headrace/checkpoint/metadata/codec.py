"""The bytes of `_metadata` (big-endian).

    "HRCP" | format version u16 | body length u64 | sha256 of all before it and of the body, 32 bytes | body (msgpack)

The version stands before the encoded body, so that a reader can refuse a newer file by name
before it interprets anything. The length is compared with what is there and never used to allocate.
"""

from __future__ import annotations

import hashlib
import struct

import msgspec

from headrace.checkpoint.handles import StateFile
from headrace.checkpoint.metadata.model import FORMAT_VERSION, CheckpointMetadata, files_of, state_files
from headrace.checkpoint.storage.paths import check_path
from headrace.errors import DamagedCheckpointError, StorageError, UnsupportedFormatError

__all__ = ["MAGIC", "decode_metadata", "encode_metadata", "files_of"]

MAGIC = b"HRCP"
_HEADER = struct.Struct(">4sHQ")
_HASH_SIZE = 32


def encode_metadata(metadata: CheckpointMetadata) -> bytes:
    """The bytes to publish. Equal metadata gives equal bytes, so that a read-back can be compared."""
    body = msgspec.msgpack.encode(metadata, order="deterministic")
    header = _HEADER.pack(MAGIC, FORMAT_VERSION, len(body))
    return header + _digest(header, body) + body


def decode_metadata(data: bytes, where: str = "_metadata") -> CheckpointMetadata:
    """Read what `encode_metadata` wrote; `where` names the file in errors.

    Raises `UnsupportedFormatError` for a newer format and `DamagedCheckpointError` for anything else that is
    not exactly what was written.
    """
    if len(data) < _HEADER.size + _HASH_SIZE:
        raise _damaged(where, f"only {len(data)} bytes")
    magic, version, length = _HEADER.unpack_from(data)
    if magic != MAGIC:
        raise _damaged(where, "not a Headrace checkpoint")
    if version > FORMAT_VERSION:
        raise UnsupportedFormatError(
            f"{where} is written in format {version}; this version of Headrace reads up to {FORMAT_VERSION}. "
            f"Restore it with the version that wrote it, or a newer one."
        )
    body = memoryview(data)[_HEADER.size + _HASH_SIZE :]
    if version < 1 or length != len(body):
        raise _damaged(where, f"{len(body)} bytes of contents where {length} were announced")
    if _digest(data[: _HEADER.size], body) != data[_HEADER.size : _HEADER.size + _HASH_SIZE]:
        raise _damaged(where, "another hash than was recorded")
    try:
        metadata = msgspec.msgpack.decode(body, type=CheckpointMetadata)
        for file in state_files(metadata):
            if file.inline is None:
                check_path(file.path)
            problem = _misplaced(file)
            if problem:
                raise _damaged(where, problem)
    except (msgspec.MsgspecError, StorageError, UnicodeDecodeError, RecursionError) as error:
        raise _damaged(where, str(error)) from error
    return metadata


def _misplaced(file: StateFile) -> str:
    """What is wrong with the place of a part in its pack; empty for a part that lies inside, and for whole files."""
    if not file.pack_size:
        return f"{file.path} begins at {file.offset} of no pack" if file.offset else ""
    if file.inline is not None or min(file.offset, file.size) < 0 or file.offset + file.size > file.pack_size:
        return f"a part of {file.path} lies at {file.offset}+{file.size} of {file.pack_size} bytes"
    return ""


def _digest(header: bytes, body: bytes | memoryview) -> bytes:
    digest = hashlib.sha256(header)
    digest.update(body)
    return digest.digest()


def _damaged(where: str, what: str) -> DamagedCheckpointError:
    return DamagedCheckpointError(
        f"{where} is damaged: {what}. Restore from another checkpoint or a savepoint with --from."
    )
