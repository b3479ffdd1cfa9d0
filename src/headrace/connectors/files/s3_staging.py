"""Staging in S3, or any store that speaks its protocol: a file becomes visible by a copy within the store.

A staged object lies below `.staging/`, a name that Spark, Hive, Athena and our own sources take for hidden. It is
written in parts of 8 MiB and appears when it is whole. Committing, in the steps of `Staging.commit`: the store copies
it to its final name on condition that nothing has that name (`If-None-Match: *`); a copy appears whole or not at all,
and is durable then. The ledger is noted, the staged object deleted. So the data goes over the network once.

Not a multipart upload that is completed by the commit: once completed it leaves no trace, and if a reader then takes
the file away, a commit that is asked a second time could not tell that from output that was lost.

The visible object carries the hash of its content as metadata (`headrace-sha256`).
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable
from typing import Any

from headrace.checkpoint.storage.base import MissingFileError
from headrace.checkpoint.storage.s3 import S3CheckpointStorage
from headrace.connectors.files.commit_notes import NOTES_KEPT
from headrace.connectors.files.staged_names import STAGING, StagedName
from headrace.connectors.files.staging import FileTransaction, PreparedFile, StagedFile, Staging

PART_BYTES = 8 << 20
"""What is collected before a part is sent; S3 wants 5 MiB or more."""
LARGEST_COPY = 5 << 30
"""What S3 copies in one request; larger objects are copied in parts."""
_HASH = "headrace-sha256"
_TAKEN = ("412", "PreconditionFailed")
_MISSING = ("404", "NoSuchKey", "NotFound")
_NO_UPLOAD = "NoSuchUpload"


class S3Staging(Staging):
    """Below `s3://bucket/prefix`. The client, its patience and its credentials are those of checkpoints in S3."""

    def __init__(self, uri: str) -> None:
        self._bucket = _Bucket(uri)
        self.shown = self._bucket.uri

    def check(self) -> None:
        probe = f"{STAGING}/preflight-{secrets.token_hex(6)}"
        self._bucket.create_exclusive(probe, b"")
        self._bucket.delete(probe)

    def create(self, staged: str) -> StagedFile:
        return _S3File(self._bucket, staged)

    def sync(self, stem: str) -> None:
        """What S3 has answered for is durable."""

    def show(self, file: PreparedFile, txn: FileTransaction, touched: set[str]) -> bool:
        found = self._bucket.hash_of(file.final)
        if found is not None and found != file.sha256.hex():
            raise self.differs(file)
        if found is not None:
            # A commit that died between step 1 and step 4, or that is asked for again.
            return self._bucket.exists(file.staged)
        try:
            self._bucket.copy(file)
        except MissingFileError:
            self.check_noted(file, txn)
            return False
        except FileExistsError:
            # Another process commits the same file right now.
            if self._bucket.hash_of(file.final) != file.sha256.hex():
                raise self.differs(file) from None
        return True

    def exists(self, path: str) -> bool:
        return self._bucket.exists(path)

    def names(self, folder: str) -> list[str]:
        return self._bucket.list(f"{folder}/")

    def read(self, path: str) -> bytes:
        with contextlib.suppress(MissingFileError):
            return self._bucket.read(path)
        return b""

    def replace(self, path: str, data: bytes) -> None:
        self._bucket.replace(path, data)

    def append(self, path: str, data: bytes) -> None:
        # Nobody else writes it: a ledger belongs to one writer, and its successor has fenced it off. Objects do not
        # grow, so it is written anew, and kept short.
        lines = (self.read(path) + data).split(b"\n")
        self.replace(path, b"\n".join([line for line in lines if line][-NOTES_KEPT:]) + b"\n")

    def remove(self, path: str) -> None:
        self._bucket.delete(path)

    def remove_half_written(self, folder: str, is_leftover: Callable[[StagedName], bool]) -> None:
        # It costs space only, and not everybody may list uploads.
        with contextlib.suppress(OSError):
            for path, upload in self._bucket.uploads(f"{folder}/"):
                name = StagedName.of(path)
                if name is not None and is_leftover(name):
                    self._bucket.abort_upload(path, upload)


class _S3File:
    """An object that appears when it is finished."""

    def __init__(self, bucket: _Bucket, path: str) -> None:
        self._bucket = bucket
        self._path = path
        self._buffer = bytearray()
        self._upload = ""
        self._tags: list[str] = []
        self._size = 0

    def write(self, data: memoryview) -> None:
        self._buffer += data
        self._size += data.nbytes
        while len(self._buffer) >= PART_BYTES:
            self._send_part(bytes(self._buffer[:PART_BYTES]))
            del self._buffer[:PART_BYTES]

    def flush(self) -> None:
        """A part must be large, and nobody reads it before the end."""

    def finish(self) -> None:
        if not self._upload:
            self._bucket.replace(self._path, bytes(self._buffer))
            return
        if self._buffer:
            self._send_part(bytes(self._buffer))
        self._bucket.complete_upload(self._path, self._upload, self._tags, self._size)

    def give_up(self) -> None:
        self._buffer.clear()
        if self._upload:
            # What is left of it recovery removes.
            with contextlib.suppress(OSError):
                self._bucket.abort_upload(self._path, self._upload)

    def _send_part(self, data: bytes) -> None:
        if not self._upload:
            self._upload = self._bucket.begin_upload(self._path)
        self._tags.append(self._bucket.upload_part(self._path, self._upload, len(self._tags) + 1, data))


class _Bucket(S3CheckpointStorage):
    """What output needs of a bucket beyond what checkpoints do."""

    def hash_of(self, path: str) -> str | None:
        """The hash that the object says it has, empty if it says none; None if there is no object."""
        key = self._key(path)

        def look(client: Any) -> str | None:
            try:
                found = client.head_object(Bucket=self.bucket, Key=key)
            except client.exceptions.ClientError as error:
                if _code(error) in _MISSING:
                    return None
                raise
            return str(found.get("Metadata", {}).get(_HASH, ""))

        return self._ask("look for", path, look)

    def copy(self, file: PreparedFile) -> None:
        """Copy the staged object to its final name; `FileExistsError` if something has that name."""
        source = {"Bucket": self.bucket, "Key": self._key(file.staged)}
        key = self._key(file.final)
        about = {"MetadataDirective": "REPLACE", "Metadata": {_HASH: file.sha256.hex()}}
        taken: list[Exception] = []

        def copy(client: Any) -> None:
            try:
                if file.size <= LARGEST_COPY:
                    client.copy_object(Bucket=self.bucket, Key=key, CopySource=source, IfNoneMatch="*", **about)
                else:
                    from boto3.s3.transfer import TransferConfig

                    # The name is the writer's own, and nothing had it a moment ago.
                    parts = TransferConfig(multipart_threshold=LARGEST_COPY, multipart_chunksize=LARGEST_COPY // 5)
                    client.copy(source, self.bucket, key, ExtraArgs=about, Config=parts)
            except client.exceptions.ClientError as error:
                if _code(error) not in _TAKEN:
                    raise
                taken.append(error)

        self._ask("show", file.final, copy)
        if taken:
            raise FileExistsError(str(taken[0]))

    def begin_upload(self, path: str) -> str:
        key = self._key(path)
        return str(
            self._ask("write", path, lambda client: client.create_multipart_upload(Bucket=self.bucket, Key=key))[
                "UploadId"
            ]
        )

    def upload_part(self, path: str, upload: str, number: int, data: bytes) -> str:
        key = self._key(path)

        def send(client: Any) -> Any:
            return client.upload_part(Bucket=self.bucket, Key=key, UploadId=upload, PartNumber=number, Body=data)

        return str(self._ask("write", path, send)["ETag"])

    def complete_upload(self, path: str, upload: str, tags: list[str], size: int) -> None:
        key = self._key(path)
        parts = [{"PartNumber": number, "ETag": tag} for number, tag in enumerate(tags, start=1)]

        def complete(client: Any) -> None:
            try:
                client.complete_multipart_upload(
                    Bucket=self.bucket, Key=key, UploadId=upload, MultipartUpload={"Parts": parts}
                )
            except client.exceptions.ClientError as error:
                # The answer to an earlier try may have been lost; then the object is there.
                if _code(error) != _NO_UPLOAD or self._size(path) != size:
                    raise

        self._ask("finish", path, complete)

    def abort_upload(self, path: str, upload: str) -> None:
        key = self._key(path)

        def abort(client: Any) -> None:
            try:
                client.abort_multipart_upload(Bucket=self.bucket, Key=key, UploadId=upload)
            except client.exceptions.ClientError as error:
                if _code(error) != _NO_UPLOAD:
                    raise

        self._ask("give up", path, abort)

    def uploads(self, prefix: str) -> list[tuple[str, str]]:
        """Uploads below a prefix that nobody has finished: path and id."""
        start = f"{self.prefix}/" if self.prefix else ""

        def look(client: Any) -> list[tuple[str, str]]:
            pages = client.get_paginator("list_multipart_uploads").paginate(Bucket=self.bucket, Prefix=start + prefix)
            return [
                (item["Key"][len(start) :], item["UploadId"]) for page in pages for item in page.get("Uploads") or ()
            ]

        return self._ask("list", prefix, look)


def _code(error: Any) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))
