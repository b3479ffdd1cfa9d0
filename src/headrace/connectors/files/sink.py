"""The file sink: exactly-once files by two-phase commit.

Records go into files under `<path>/.staging`; at the barrier the files are closed and made durable; when the checkpoint
is complete they get their final names. What a reader sees is always complete and never changes. See `files/staging.py`
for names and steps. The path is a folder, or a place in S3.

The files of one checkpoint appear one after the other, not in one instant: a crash in between leaves some for
recovery to show.
"""

from __future__ import annotations

import datetime
import hashlib
import os
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, cast

from headrace.checkpoint.handles import HistoryPoint
from headrace.connectors.files.buckets import BasePath, BucketAssigner, checked_bucket
from headrace.connectors.files.encoders import (
    CsvEncoder,
    Encoder,
    JsonEncoder,
    OutputFormat,
    ParquetOutput,
    PartEncoder,
)
from headrace.connectors.files.listing import local_path
from headrace.connectors.files.local_staging import LocalStaging
from headrace.connectors.files.rolling import RollingPolicy
from headrace.connectors.files.source import PathLike
from headrace.connectors.files.staged_names import LEDGER_SUFFIX, stem_of
from headrace.connectors.files.staging import FileTransaction, Owner, PreparedFile, Staging
from headrace.connectors.sink import CommittedOutput, Committer, WriterContext
from headrace.connectors.two_phase import TwoPhaseCommitSink, TwoPhaseCommitter
from headrace.errors import CommitFailedError, ConfigurationError
from headrace.types.information import TypeLike, type_of

MAX_OPEN_FILES = 64
_S3_SCHEMES = ("s3://", "s3a://", "s3n://")


@dataclass(frozen=True, slots=True)
class OutputFileConfig:
    """What visible names begin and end with."""

    part_prefix: str = "part"
    part_suffix: str | None = None
    """None for the format's own."""

    @staticmethod
    def builder() -> OutputFileConfig:
        return OutputFileConfig()

    def with_part_prefix(self, prefix: str) -> OutputFileConfig:
        return replace(self, part_prefix=prefix)

    def with_part_suffix(self, suffix: str) -> OutputFileConfig:
        return replace(self, part_suffix=suffix)

    def build(self) -> OutputFileConfig:
        return self


class FileSink(TwoPhaseCommitSink[FileTransaction]):
    """Writes files that appear when their checkpoint is complete.

        FileSink.json_lines("alerts/")
        FileSink.parquet("s3://bucket/alerts", row_type)                   needs headrace[s3]
        FileSink.for_row_format("alerts/", Encoder.simple_string_encoder()).with_bucket_assigner(…).build()

    The setters change this sink and return it, so that PyFlink's chains of calls work; `build` returns it as it is.
    """

    transaction_type = FileTransaction

    def __init__(self, path: PathLike, output_format: OutputFormat) -> None:
        self.staging = staging_at(path)
        self.format = output_format
        self.buckets: BucketAssigner = BasePath()
        self.rolling = RollingPolicy()
        self.names = OutputFileConfig()

    @property
    def path(self) -> Path:
        """The folder that is written to."""
        if not isinstance(self.staging, LocalStaging):
            raise ConfigurationError(f"{self.staging.shown} is no folder of this machine. Use describe().")
        return self.staging.base

    @classmethod
    def for_row_format(cls, base_path: PathLike, encoder: Encoder) -> FileSink:
        """Each record encoded on its own."""
        return cls(base_path, encoder)

    @classmethod
    def for_bulk_format(cls, base_path: PathLike, output_format: OutputFormat) -> FileSink:
        """Files that are encoded as a whole."""
        return cls(base_path, output_format)

    @classmethod
    def text(cls, path: PathLike, charset: str = "UTF-8") -> FileSink:
        """`str(record)`, one a line."""
        return cls(path, Encoder.simple_string_encoder(charset))

    @classmethod
    def json_lines(cls, path: PathLike) -> FileSink:
        """One JSON value a line; rows become objects."""
        return cls(path, JsonEncoder())

    @classmethod
    def csv(
        cls, path: PathLike, type_info: TypeLike | None = None, *, delimiter: str = ",", header: bool | None = None
    ) -> FileSink:
        """Rows, tuples and lists. With `type_info`, every file begins with a header unless `header=False`."""
        row_type = None if type_info is None else type_of(type_info)
        return cls(path, CsvEncoder(row_type, delimiter, header if header is not None else row_type is not None))

    @classmethod
    def parquet(cls, path: PathLike, type_info: TypeLike, *, compression: str = "snappy") -> FileSink:
        """Rows of `type_info`."""
        return cls(path, ParquetOutput(type_of(type_info), compression))

    def with_bucket_assigner(self, assigner: BucketAssigner) -> FileSink:
        self.buckets = assigner
        return self

    def with_rolling_policy(self, policy: RollingPolicy) -> FileSink:
        self.rolling = policy
        return self

    def with_output_file_config(self, config: OutputFileConfig) -> FileSink:
        if config.part_prefix.startswith((".", "_")) or "/" in config.part_prefix + (config.part_suffix or ""):
            raise ConfigurationError(
                f"OutputFileConfig has prefix {config.part_prefix!r} and suffix {config.part_suffix!r}: names must "
                'begin with neither "." nor "_", which hide files from readers, and hold no "/".'
            )
        self.names = config
        return self

    def build(self) -> FileSink:
        return self

    def describe(self) -> str:
        return f"{self.format.name} files in {self.staging.shown}"

    def preflight(self) -> None:
        super().preflight()
        try:
            self.staging.check()
        except OSError as error:
            raise ConfigurationError(
                f"FileSink cannot write to {self.staging.shown}: {error.strerror or error}. Make it writable, or "
                "choose another place."
            ) from error

    # What a task does.

    def open(self, context: WriterContext) -> None:
        self._mark = secrets.token_hex(6)
        self._counter = 0
        self._parts: dict[str, _Part] = {}
        self._stem = stem_of(context.job_id, context.uid, context.subtask, context.history, context.attempt, self._mark)

    def begin(self) -> FileTransaction:
        context = self.context
        return FileTransaction(
            f"{self._stem}{LEDGER_SUFFIX}",
            [],
            attempt=context.attempt,
            history=context.history,
            base=self.staging.shown,
        )

    def invoke(self, txn: FileTransaction, value: Any, timestamp: int | None) -> None:
        self._write(txn, self.buckets.bucket_of(value, timestamp), (value,))

    def invoke_batch(self, txn: FileTransaction, values: Sequence[Any], timestamps: Sequence[int] | None) -> None:
        if isinstance(self.buckets, BasePath):
            self._write(txn, "", values)
            return
        sorted_out: dict[str, list[Any]] = {}
        for i, value in enumerate(values):
            bucket = self.buckets.bucket_of(value, None if timestamps is None else timestamps[i])
            sorted_out.setdefault(bucket, []).append(value)
        for bucket, members in sorted_out.items():
            self._write(txn, bucket, members)

    def pre_commit(self, txn: FileTransaction) -> None:
        for bucket in list(self._parts):
            self._close_part(txn, bucket)
        txn.checkpoint_id = self.checkpoint_id
        self.staging.sync(self._stem)

    def abort(self, txn: FileTransaction) -> None:
        for part in self._parts.values():
            part.give_up()
        self._parts.clear()
        self.staging.discard(txn)

    def _write(self, txn: FileTransaction, bucket: str, values: Sequence[Any]) -> None:
        part = self._parts.pop(bucket, None)
        if part is not None and self.rolling.is_full(part.size, part.age_ms()):
            self._parts[bucket] = part
            self._close_part(txn, bucket)
            part = None
        if part is None:
            if len(self._parts) >= MAX_OPEN_FILES:
                self._close_part(txn, next(iter(self._parts)))
            part = self._open_part(checked_bucket(bucket))
        # Put in last, so that the first one is always the one that was not written to for longest.
        self._parts[bucket] = part
        part.encoder.write(values)

    def _open_part(self, bucket: str) -> _Part:
        context, number = self.context, self._counter
        self._counter += 1
        suffix = self.format.suffix if self.names.part_suffix is None else self.names.part_suffix
        name = f"{self.names.part_prefix}-{context.subtask}-{context.attempt}-{number}-{self._mark}{suffix}"
        return _Part(self.staging, f"{self._stem}-{number}", os.path.join(bucket, name), self.format)

    def _close_part(self, txn: FileTransaction, bucket: str) -> None:
        txn.files.append(self._parts.pop(bucket).prepare())

    # What a committer does, beside the task or in the driver.

    def commit(self, txn: FileTransaction) -> None:
        self._place_of(txn).commit(txn)

    def _place_of(self, txn: FileTransaction) -> Staging:
        """Where a prepared transaction is committed.

        In the sink's own place if anything of it is there, because the whole tree may have been moved or copied. Else
        where it was prepared, because the program may write to another path now.
        """
        own = self.staging
        try:
            here = not txn.base or txn.base == own.shown or own.knows(txn)
        except OSError as error:
            raise CommitFailedError(f"{own.shown} cannot be read: {error}.") from error
        return own if here else staging_at(txn.base)

    def recover_and_abort(self, txn: FileTransaction) -> None:
        self.staging.discard(txn)

    def committed_since(self, job_id: str, uid: str, point: HistoryPoint) -> Sequence[CommittedOutput]:
        return self.staging.committed_since(job_id, uid, point)

    def create_committer(self) -> Committer:
        return _FileCommitter(self, self._live_writers())


def staging_at(path: PathLike) -> Staging:
    """Where a sink writes whose path this is: a plain path, a `file://` URI, or `s3://bucket/prefix`."""
    text = os.fspath(path)
    if text.startswith(_S3_SCHEMES):
        # Loaded when it is used: most programs write to no bucket.
        from headrace.connectors.files.s3_staging import S3Staging

        return S3Staging(text)
    return LocalStaging(Path(local_path(path)))


class _FileCommitter(TwoPhaseCommitter[FileTransaction]):
    knows_other_jobs = True

    def __init__(self, sink: FileSink, live: set[str]) -> None:
        super().__init__(sink, live)
        self._staging = sink.staging
        self._before: Owner | None = None

    def abort_leftovers(self, job_id: str, uid: str, attempt: int, keep: Sequence[bytes]) -> None:
        # File by file: a transaction that was never prepared is known by its files alone.
        kept = self.transactions(keep)
        places = [self._staging]
        # Where the program wrote before its path was changed.
        places += [staging_at(base) for base in {txn.base for txn in kept} - {"", self._staging.shown}]
        for place in places:
            try:
                place.remove_leftovers(job_id, uid, self.history, attempt, kept)
            except OSError as error:
                raise CommitFailedError(f"What older attempts left in {place.shown} stays: {error}.") from error
        self._take_over(job_id, uid, attempt)

    def _take_over(self, job_id: str, uid: str, attempt: int) -> None:
        if not self.history:
            return
        try:
            self._before = self._staging.owner(job_id, uid)
            self._staging.take(job_id, uid, self.history, attempt)
        except OSError as error:
            raise CommitFailedError(f"The owner of {self._staging.shown} cannot be recorded: {error}.") from error

    def other_owner(self) -> str:
        before = self._before
        if before is None or before.history == self.history:
            return ""
        when = datetime.datetime.fromtimestamp(before.started_ms / 1_000, datetime.UTC)
        return (
            f"{self._staging.shown} was also written to by a job of this name with another checkpoint directory, last "
            f"started {when:%Y-%m-%d %H:%M:%S} UTC (attempt {before.attempt}, process {before.pid} on {before.host}). "
            "Neither touches the other's output. If both read the same input, it is there twice."
        )


class _Part:
    """A file being written. It hashes what it writes, so that a commit can tell its own file from another."""

    def __init__(self, staging: Staging, staged: str, final: str, output_format: OutputFormat) -> None:
        self._staged = staged
        self._final = final
        self._file = staging.create(staged)
        self._hash = hashlib.sha256()
        self._since = time.monotonic()
        self.size = 0
        self.encoder: PartEncoder = output_format.start(cast(BinaryIO, self))

    def age_ms(self) -> float:
        return (time.monotonic() - self._since) * 1_000

    def prepare(self) -> PreparedFile:
        """Complete the file, make it durable and close it."""
        self.encoder.finish()
        self._file.finish()
        return PreparedFile(self._staged, self._final, self.size, self._hash.digest())

    def give_up(self) -> None:
        self._file.give_up()

    # What encoders, Arrow's among them, see of it: a binary file that only grows.

    closed = False

    def write(self, data: Any) -> int:
        view = memoryview(data)
        self._hash.update(view)
        self._file.write(view)
        self.size += view.nbytes
        return view.nbytes

    def tell(self) -> int:
        return self.size

    def flush(self) -> None:
        self._file.flush()

    def writable(self) -> bool:
        return True

    def close(self) -> None:
        """Arrow closes what it wrote to; the file stays open until it is synced."""
