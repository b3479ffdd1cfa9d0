"""Who runs a job right now.

    <job_id>/lease-000004     JSON: owner, pid, host, machine, process, renewed_ms, released

A lease is a *generation*: to take over is to create the next number, exclusively, so of two that try one
wins. The owner renews its own file and steps back when it finds a higher number. The lease keeps two
drivers from working against each other; that nothing breaks even then is the job of the attempts.
"""

from __future__ import annotations

import contextlib
import os
import socket
import uuid
from pathlib import Path

import msgspec

from headrace.checkpoint.control_files import DamagedRecordError, decode_record, encode_record
from headrace.checkpoint.storage.base import AlreadyExistsError, CheckpointStorage, MissingFileError
from headrace.clocks import SYSTEM_CLOCKS, Clocks
from headrace.errors import FencedError, JobOwnedError, StorageError

RENEW_MS = 2_000
EXPIRE_MS = 10_000


class LeaseRecord(msgspec.Struct, frozen=True):
    """The contents of a lease file."""

    owner: str
    """A random token: tells two leases of one process apart."""
    pid: int
    host: str
    machine: str
    """Boot and pid namespace: only within the same one does a pid mean the same process."""
    process: str
    """When the process started, so that a reused pid is not taken for it."""
    renewed_ms: int
    """By the wall clock, since others read it."""
    released: bool = False


def decode_lease(data: bytes) -> LeaseRecord:
    """The contents of a lease file; `DamagedRecordError` if they are not what was written."""
    try:
        return msgspec.convert(decode_record(data, LeaseRecord.__struct_fields__), LeaseRecord)
    except msgspec.ValidationError as error:
        raise DamagedRecordError(str(error)) from None


class Lease:
    """The lease of one job. The driver acquires it at the start and calls `renew` at least every two seconds."""

    def __init__(self, storage: CheckpointStorage, job_id: str, *, clocks: Clocks = SYSTEM_CLOCKS) -> None:
        self._storage = storage
        self._job_id = job_id
        self._clocks = clocks
        self._owner = uuid.uuid4().hex
        self._generation = 0
        self._renewed_at = 0
        """On the steady clock: how often to renew is no matter of what time it is."""

    def acquire(self, take_over: bool = False) -> None:
        """Become the owner, or raise `JobOwnedError`. `take_over` does so even against a live one."""
        for _ in range(100):
            generation, current = self._current()
            if current is not None and not take_over and not self._is_free(current):
                raise self._owned_by(current)
            try:
                self._storage.create_exclusive(self._path(generation + 1), self._record())
            except AlreadyExistsError:
                # Somebody was faster; look again at who it is. Even --take-over loses against a newcomer.
                take_over = False
                continue
            newest, other = self._current()
            if newest > generation + 1 and other is not None:
                # What we saw was old: the number was free again because its successors had cleaned up.
                self._storage.delete(self._path(generation + 1))
                raise self._owned_by(other)
            self._generation = generation + 1
            for older in self._generations():
                if older < self._generation:
                    self._storage.delete(self._path(older))
            return
        raise StorageError(f"The lease of job {self._job_id} changes hands all the time; it could not be read.")

    def look(self) -> None:
        """Raise `JobOwnedError` if `acquire` would, at this moment. Nothing is written."""
        current = self.owner()
        if current is not None:
            raise self._owned_by(current)

    def renew(self) -> None:
        """Show that the owner lives. Cheap when called more often than needed.

        `FencedError` if somebody else took over, `StorageError` if storage is away: the caller goes on and tries again.
        """
        if not self._generation:
            raise ValueError("acquire() comes first")
        if self._clocks.steady_ms() - self._renewed_at < RENEW_MS:
            return
        newest, other = self._current()
        if newest < self._generation and (other is None or self._is_free(other)):
            self._restore_missing()
            return
        if newest > self._generation or (other is not None and other.owner != self._owner):
            raise FencedError(
                f"Job {self._job_id} was taken over"
                + (f" by process {other.pid} on {other.host}." if other is not None else ".")
            )
        # One that cannot be read but has our number is ours, damaged: written anew it is whole again.
        self._storage.replace(self._path(self._generation), self._record())

    def _restore_missing(self) -> None:
        """Our file is gone, and nobody took over: somebody removed it, or storage is not what it was."""
        if not self._storage.list_names(self._job_id, "run-"):
            raise StorageError(
                f"{self._storage.location} does not hold this job's own files: {self._path(self._generation)} is "
                "missing. Is the volume mounted?"
            )
        with contextlib.suppress(AlreadyExistsError):  # the next renewal sees who was faster
            self._storage.create_inside(self._job_id, self._path(self._generation), self._record())

    def release(self) -> None:
        """Give it up, so that the next start need not wait. Harmless if it was taken over or never acquired."""
        generation, self._generation = self._generation, 0
        if generation and self._current()[0] == generation:
            self._storage.replace(self._path(generation), self._record(released=True))

    def owner(self) -> LeaseRecord | None:
        """Who owns the job right now; None if nobody does, or only somebody who is known to be dead."""
        _, current = self._current()
        return None if current is None or self._is_free(current) else current

    def _current(self) -> tuple[int, LeaseRecord | None]:
        """The newest generation and its contents; None if it cannot be understood, which counts as expired."""
        while True:
            newest = max(self._generations(), default=0)
            if not newest:
                return 0, None
            with contextlib.suppress(MissingFileError):
                try:
                    return newest, decode_lease(self._storage.read(self._path(newest)))
                except DamagedRecordError:
                    return newest, None

    def _generations(self) -> list[int]:
        names = self._storage.list_names(self._job_id, "lease-")
        numbers = (name.removeprefix("lease-") for name in names)
        return [int(number) for number in numbers if number.isascii() and number.isdigit()]

    def _is_free(self, record: LeaseRecord) -> bool:
        if record.released or record.owner == self._owner or self._age_ms(record) >= EXPIRE_MS:
            return True
        return record.machine == _machine() and _process(record.pid) != record.process

    def _age_ms(self, record: LeaseRecord) -> int:
        return max(0, self._clocks.wall_ms() - record.renewed_ms)

    def _owned_by(self, record: LeaseRecord) -> JobOwnedError:
        return JobOwnedError(
            f"Job {self._job_id} is run by process {record.pid} on {record.host}, which renewed its lease "
            f"{self._age_ms(record) / 1000:.1f} s ago. Stop that process, or start with --take-over."
        )

    def _record(self, released: bool = False) -> bytes:
        self._renewed_at = self._clocks.steady_ms()
        record = LeaseRecord(
            owner=self._owner,
            pid=os.getpid(),
            host=socket.gethostname(),
            machine=_machine(),
            process=_process(os.getpid()),
            renewed_ms=self._clocks.wall_ms(),
            released=released,
        )
        return encode_record(msgspec.structs.asdict(record))

    def _path(self, generation: int) -> str:
        return f"{self._job_id}/lease-{generation:06d}"


def _machine() -> str:
    """Where a pid keeps its meaning: this boot of this kernel, in this pid namespace (a container has its own)."""
    try:
        return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return socket.gethostname()


def _process(pid: int) -> str:
    """Tells the process of that pid from any other that had the pid before; empty if there is none."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        if Path("/proc/self/stat").exists():
            return ""
        return _process_without_proc(pid)
    except OSError:
        return ""
    fields = stat.rpartition(")")[2].split()
    # Z: killed, but its parent has not asked for the exit code yet.
    return "" if fields[0] in "ZX" else f"started {fields[19]}"


def _process_without_proc(pid: int) -> str:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return ""
    except OSError:
        return "alive"
    return "alive"
