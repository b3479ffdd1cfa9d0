"""The spool: what a Spark query has written, in files between it and the job that reads them.

    batch-0000000003                    manifest, by exclusive create: names the files of batch 3 that count (msgpack)
    data/0000000003/<try>/part-00002-000-<token>
                                        Arrow stream, rows of one Spark partition; a try that died leaves its own behind
    _end                                no further batch will come; JSON: how many there are
    _query                              the id of the streaming query that writes here
    _elsewhere                          this run reads another spool: it was restored from a savepoint; a location
    pin-<savepoint>                     a savepoint needs this batch and all after it; JSON
    spark/                              the streaming query's own checkpoint, which is Spark's

A batch whose manifest exists is never written again, so it does not matter whether the query would give the same rows
twice. Readers see what manifests name and nothing else. A manifest that is removed was the reader's last need of it:
the newest stays, because Spark may ask once more for the last batch it ran. So there is no gap in the numbers of
manifests: one that is missing between others was lost.

Manifests and JSON files carry a checksum of themselves; those of version 0.1.0 have none and are read all the same.
"""

from __future__ import annotations

import copy
import hashlib
from typing import Any

import msgspec

from headrace.checkpoint.control_files import DamagedRecordError, decode_record, encode_record
from headrace.checkpoint.handles import StateFile
from headrace.checkpoint.publication import publish_exclusively
from headrace.checkpoint.storage.base import AlreadyExistsError, CheckpointStorage, MissingFileError, storage_for
from headrace.errors import DamagedCheckpointError, StorageError, permanent

_BATCH = "batch-"
_PIN = "pin-"
_END = "_end"
_QUERY = "_query"
_ELSEWHERE = "_elsewhere"


class DamagedSpoolError(DamagedCheckpointError, StorageError):
    """A file of the spool is not as it was written, or a batch in the middle has lost its manifest."""

    recovery = permanent("no attempt mends a file; a person can put it back")


class SpoolFile(msgspec.Struct, frozen=True, array_like=True):
    """Some rows of one Spark partition."""

    file: StateFile
    rows: int
    partition: int


class Manifest(msgspec.Struct, frozen=True):
    """The files of one batch, in order."""

    batch: int
    type: str
    """The row type in text form, so that a program with other columns is refused."""
    files: tuple[SpoolFile, ...]
    version: int = 1
    checksum: str = ""
    """The first 16 hex digits of sha256 over the manifest with this field empty."""


class Spool:
    """One spool, known by its location. Holds settings only and travels to tasks; opens nothing until used."""

    def __init__(self, location: str, settings: CheckpointStorage | None = None) -> None:
        """`settings`: the storage at that location, where its URI alone does not say all (an endpoint, time limits)."""
        self.location = location.rstrip("/")
        self._settings = settings
        self._opened: CheckpointStorage | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": None}

    def __repr__(self) -> str:
        return f"Spool({self.location!r})"

    @property
    def storage(self) -> CheckpointStorage:
        if self._opened is None:
            storage = storage_for(self.location) if self._settings is None else copy.copy(self._settings)
            if hasattr(storage, "inline_threshold"):
                storage.inline_threshold = 0  # a manifest names rows, it does not carry them
            self._opened = storage
        return self._opened

    # The writing side: the query's driver

    def publish(self, manifest: Manifest) -> bool:
        """Make these files the batch; False if the batch has files already, which stay the ones that count."""
        try:
            sealed = msgspec.structs.replace(manifest, checksum=_checksum(manifest))
            publish_exclusively(self.storage, _name(manifest.batch), msgspec.msgpack.encode(sealed))
        except AlreadyExistsError:
            return False
        return True

    def end(self, batches: int) -> None:
        """No batch will follow the first so many. Harmless if that is known."""
        self._create(_END, {"batches": batches})

    def query(self, query_id: str) -> str:
        """The id of the query this spool belongs to: this one, if it is the first."""
        self._create(_QUERY, {"id": query_id})
        return str(self._noted(_QUERY, "id"))

    def data_prefix(self, batch: int, attempt: str) -> str:
        """Where one try of a batch stores its files."""
        return f"data/{batch:010d}/{attempt}"

    # The reading side

    def has(self, batch: int) -> bool:
        return self.storage.exists(_name(batch))

    def manifest(self, batch: int) -> Manifest | None:
        """The manifest of a batch; None if it has none, or none any more."""
        try:
            data = self.storage.read(_name(batch))
        except MissingFileError:
            return None
        try:
            manifest = msgspec.msgpack.decode(data, type=Manifest)
        except msgspec.DecodeError as error:
            raise self._damaged(_name(batch), f"it is no manifest ({error})") from error
        if manifest.checksum not in ("", _checksum(manifest)):
            raise self._damaged(_name(batch), "its checksum does not match")
        if manifest.batch != batch:
            raise self._damaged(_name(batch), f"it is the manifest of batch {manifest.batch}")
        return manifest

    def batches(self) -> list[int]:
        """Numbers of all batches that have a manifest."""
        names = (name.removeprefix(_BATCH) for name in self.storage.list(_BATCH))
        return sorted(int(name) for name in names if name.isascii() and name.isdigit())

    def require_unbroken(self, first: int) -> None:
        """`DamagedSpoolError` if a batch from `first` on has no manifest, although a later one has."""
        known = self.batches()
        for batch in range(first, known[-1] if known else first):
            if batch not in known:
                raise self._damaged(_name(batch), f"it is missing, although batch {known[-1]} is there")

    def ended(self) -> int | None:
        """How many batches there are in all; None while more may come."""
        try:
            return self._number(_END, "batches")
        except MissingFileError:
            return None

    # Where it goes on after a restore from outside

    def elsewhere(self) -> str | None:
        """The spool that is read in place of this one."""
        try:
            return str(self._noted(_ELSEWHERE, "location"))
        except MissingFileError:
            return None

    def point_to(self, location: str) -> None:
        self.storage.replace(_ELSEWHERE, encode_record({"location": location}))

    # Removal

    def pin(self, name: str, first: int) -> None:
        """Keep this batch and all after it, whatever checkpoints need: a savepoint refers to them."""
        self._create(f"{_PIN}{name}", {"first": first})

    def unpin(self, name: str) -> None:
        """Forget that savepoint. Harmless if it is not known."""
        self.storage.delete(f"{_PIN}{name}")

    def pinned(self) -> int | None:
        """The first batch that any savepoint needs."""
        return min((self._number(name, "first") for name in self.storage.list(_PIN)), default=None)

    def collect(self, first_needed: int) -> list[int]:
        """Remove the batches before this one, unless a savepoint needs them; gives those that were removed."""
        pinned = self.pinned()
        bound = first_needed if pinned is None else min(first_needed, pinned)
        known = self.batches()
        gone = [batch for batch in known if batch < bound]
        for batch in gone:
            if batch != known[-1]:
                self.storage.delete(_name(batch))
            self.storage.delete_tree(f"data/{batch:010d}")
        return gone

    def _create(self, name: str, record: dict[str, Any]) -> None:
        try:
            self.storage.create_exclusive(name, encode_record(record))
        except AlreadyExistsError:
            return

    def _number(self, name: str, field: str) -> int:
        found = self._noted(name, field)
        if not isinstance(found, int):
            raise self._damaged(name, f"{field} is {found!r}")
        return found

    def _noted(self, name: str, field: str) -> Any:
        """A field of one of the small JSON files."""
        data = self.storage.read(name)
        try:
            return decode_record(data, (field,))[field]
        except (DamagedRecordError, KeyError) as error:
            raise self._damaged(name, error) from error

    def _damaged(self, name: str, reason: object) -> DamagedSpoolError:
        return DamagedSpoolError(
            f"{self.location}/{name} is damaged: {reason}. Restore the spool from a copy, or start the job under "
            "another name."
        )


def _name(batch: int) -> str:
    return f"{_BATCH}{batch:010d}"


def _checksum(manifest: Manifest) -> str:
    plain = msgspec.msgpack.encode(msgspec.structs.replace(manifest, checksum=""))
    return hashlib.sha256(plain).hexdigest()[:16]
