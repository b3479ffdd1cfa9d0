"""The files of a watched folder that were found before, so that none is read twice.

A file that disappears from the folder is remembered for another `FORGET_AFTER_MS`, and then forgotten: the memory holds
what is in the folder plus what was removed within that time, however old the job is. A folder that is empty for a
moment, such as a mount point without its volume, therefore loses nothing.

In a checkpoint each file takes 36 bytes, one after the other (big-endian):

    digest of the path, 12 bytes | size i64 | mtime_ns i64 | missing since, wall-clock ms i64 (0: it is there)

The digest keeps the length of paths out of checkpoints. At 96 bits, two of a million files share one with a
probability below 10⁻¹⁶.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from hashlib import blake2b

from headrace.connectors.files.split import Fingerprint
from headrace.errors import RestoreError

FORGET_AFTER_MS = 7 * 24 * 3_600_000
"""A week: longer than an outage of a mounted volume lasts."""

_DIGEST_BYTES = 12
_RECORD = struct.Struct(f">{_DIGEST_BYTES}sqqq")


class SeenFiles:
    """Each file's last known fingerprint. Records are kept encoded, so that a checkpoint only joins them."""

    def __init__(self, encoded: bytes = b"") -> None:
        if len(encoded) % _RECORD.size:
            raise RestoreError(
                f"The list of files that a FileSource has found has {len(encoded)} bytes, which is not a multiple of "
                f"{_RECORD.size}: the checkpoint is damaged. Restore an older one."
            )
        self._records: dict[bytes, bytes] = {
            encoded[start : start + _DIGEST_BYTES]: encoded[start : start + _RECORD.size]
            for start in range(0, len(encoded), _RECORD.size)
        }
        self._missing: dict[bytes, int] = {
            digest: since for digest, record in self._records.items() if (since := _RECORD.unpack(record)[3])
        }

    def __len__(self) -> int:
        return len(self._records)

    def get(self, path: str) -> Fingerprint | None:
        """How the file looked last; None if it is new."""
        record = self._records.get(_digest(path))
        if record is None:
            return None
        _, size, mtime_ns, _ = _RECORD.unpack(record)
        return Fingerprint(size, mtime_ns)

    def put(self, path: str, looks: Fingerprint) -> None:
        """Remember the file as it looks now."""
        digest = _digest(path)
        self._missing.pop(digest, None)
        self._records[digest] = _RECORD.pack(digest, looks.size, looks.mtime_ns, 0)

    def listed(self, paths: Iterable[str], now_ms: int) -> None:
        """A look at every folder found these. Start or stop the clock of each missing file; forget those overdue."""
        present = {_digest(path) for path in paths}
        for digest in self._missing.keys() & present:
            del self._missing[digest]
            self._note_missing_since(digest, 0)
        for digest in self._records.keys() - present - self._missing.keys():
            self._missing[digest] = now_ms
            self._note_missing_since(digest, now_ms)
        for digest in [d for d, since in self._missing.items() if now_ms - since >= FORGET_AFTER_MS]:
            del self._missing[digest]
            del self._records[digest]

    def encode(self) -> bytes:
        """For a checkpoint."""
        return b"".join(self._records.values())

    def _note_missing_since(self, digest: bytes, since_ms: int) -> None:
        _, size, mtime_ns, _ = _RECORD.unpack(self._records[digest])
        self._records[digest] = _RECORD.pack(digest, size, mtime_ns, since_ms)


def _digest(path: str) -> bytes:
    # A file name need not be valid Unicode.
    return blake2b(path.encode("utf-8", "surrogateescape"), digest_size=_DIGEST_BYTES).digest()
