"""Checkpoints in S3, or any store that speaks its protocol.

Bulk files by `pyarrow.fs.S3FileSystem`, the driver's few small ones by boto3: it has the conditional put
(`If-None-Match: *`) that makes the commit point, and a listing by plain prefix. An object is there whole or not at
all, and there is no rename in the protocol. Credentials, profile and region are found as AWS tools find them
(environment, files, role of the machine), by every process for itself; none travel with the job.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Self, TypeVar
from urllib.parse import urlsplit

from headrace.checkpoint.storage.arrow import ArrowCheckpointStorage
from headrace.checkpoint.storage.base import AlreadyExistsError
from headrace.checkpoint.storage.operations import TransferOptions
from headrace.checkpoint.storage.paths import check_path, check_prefix
from headrace.checkpoint.storage.posix import LARGEST_WHOLE
from headrace.errors import ConfigurationError, MissingDependencyError, StorageError

T = TypeVar("T")

_MISSING = ("404", "NoSuchKey", "NoSuchBucket", "NotFound")
_FORBIDDEN = ("403", "AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken")
_TAKEN = ("412", "PreconditionFailed")
_WRITER = "headrace-writer"
_MOST_DELETED = 1000
"""Objects that one request may delete."""


class S3CheckpointStorage(ArrowCheckpointStorage):
    """Checkpoints below `s3://bucket/prefix`.

    `endpoint_url`: a store that is not AWS; by default what `AWS_ENDPOINT_URL_S3` or `AWS_ENDPOINT_URL` says. The
    command line finds it there too. The bucket must exist.
    """

    def __init__(
        self,
        uri: str,
        file_state_size_threshold: int | None = None,
        options: TransferOptions | None = None,
        *,
        endpoint_url: str | None = None,
        region: str | None = None,
    ) -> None:
        super().__init__("s3" + uri[uri.find(":") :], file_state_size_threshold, options)
        parts = urlsplit(self.uri)
        if not parts.netloc:
            raise ConfigurationError(f"{uri!r} names no bucket. Write s3://bucket/path.")
        self.bucket = parts.netloc
        self.prefix = parts.path.strip("/")
        if self.prefix:
            check_path(self.prefix)
        self.endpoint_url = endpoint_url
        self.region = region

    def _reset(self) -> None:
        super()._reset()
        self._client: Any = None

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in super().__getstate__().items() if name != "_client"}

    def below(self, path: str) -> Self:
        other = super().below(path)
        other.prefix = self._key(path)
        return other

    # Clients

    def _endpoint(self) -> str | None:
        return self.endpoint_url or os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or None

    def _region(self) -> str | None:
        return self.region or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or None

    def _connect(self) -> tuple[Any, str]:
        from pyarrow import fs

        settings: dict[str, Any] = {"connect_timeout": min(10.0, self.options.timeout_s)}
        endpoint = urlsplit(self._endpoint() or "")
        if endpoint.netloc:
            settings |= {"endpoint_override": endpoint.netloc, "scheme": endpoint.scheme}
        if self._region():
            settings["region"] = self._region()
        retries = fs.AwsStandardS3RetryStrategy(max_attempts=self.options.attempts)
        filesystem = fs.S3FileSystem(retry_strategy=retries, **settings)
        return filesystem, f"{self.bucket}/{self.prefix}" if self.prefix else self.bucket

    def _boto(self) -> Any:
        with self._lock:
            if self._client is None:
                try:
                    import boto3
                    from botocore.config import Config
                except ImportError as error:
                    raise MissingDependencyError(
                        'Checkpoints in S3 need boto3, which cannot be imported here: pip install "headrace[s3]".'
                    ) from error
                # Tries are ours to count: after a repeat that we do not know of, a refusal could be our own success.
                config = Config(
                    retries={"total_max_attempts": 1},
                    connect_timeout=min(10.0, self.options.timeout_s),
                    read_timeout=self.options.timeout_s,
                )
                self._client = boto3.session.Session().client(
                    "s3", endpoint_url=self._endpoint(), region_name=self._region(), config=config
                )
            return self._client

    def _ask(self, doing: str, path: str, call: Callable[[Any], T]) -> T:
        """One request about a path, tried again as the options say."""
        client = self._boto()

        def ask() -> T:
            with _s3_errors():
                return call(client)

        # boto3 keeps its own time limits.
        return self._operations.run(doing, f"{self.uri}/{path}", ask, watched=False)

    def _key(self, path: str) -> str:
        check_path(path)
        return f"{self.prefix}/{path}" if self.prefix else path

    # Driver side

    def create_exclusive(self, path: str, data: bytes) -> None:
        key = self._key(path)
        token = uuid.uuid4().hex
        tries = 0

        def create(client: Any) -> None:
            nonlocal tries
            tries += 1
            try:
                client.put_object(Bucket=self.bucket, Key=key, Body=data, IfNoneMatch="*", Metadata={_WRITER: token})
            except client.exceptions.ClientError as error:
                if _code(error) not in _TAKEN:
                    raise
                # An earlier try of ours may have arrived while its answer was lost; the object knows its writer.
                if tries == 1 or self._writer(client, key) != token:
                    raise AlreadyExistsError(f"{self.uri}/{path} exists already; it was left as it is.") from error

        self._ask("create", path, create)

    def _writer(self, client: Any, key: str) -> str:
        found = client.head_object(Bucket=self.bucket, Key=key)
        return str(found.get("Metadata", {}).get(_WRITER, ""))

    def replace(self, path: str, data: bytes) -> None:
        key = self._key(path)
        self._ask("replace", path, lambda client: client.put_object(Bucket=self.bucket, Key=key, Body=data))

    def read(self, path: str) -> bytes:
        key = self._key(path)

        def get(client: Any) -> bytes:
            found = client.get_object(Bucket=self.bucket, Key=key)
            if found["ContentLength"] > LARGEST_WHOLE:
                raise StorageError(f"{self.uri}/{path} has {found['ContentLength']} bytes; such a file has far less.")
            return found["Body"].read()  # type: ignore[no-any-return]

        return self._ask("read", path, get)

    def _size(self, path: str) -> int | None:
        key = self._key(path)

        def look(client: Any) -> int | None:
            try:
                return int(client.head_object(Bucket=self.bucket, Key=key)["ContentLength"])
            except client.exceptions.ClientError as error:
                if _code(error) in _MISSING:
                    return None
                raise

        return self._ask("look for", path, look)

    def list(self, prefix: str) -> list[str]:
        start = f"{self.prefix}/" if self.prefix else ""
        wanted = start + check_prefix(prefix)

        def look(client: Any) -> list[str]:
            pages = client.get_paginator("list_objects_v2").paginate(Bucket=self.bucket, Prefix=wanted)
            keys = [item["Key"] for page in pages for item in page.get("Contents", ())]
            # A name that ends in a slash is how other tools draw a directory.
            return sorted(key[len(start) :] for key in keys if not key.endswith("/"))

        return self._ask("list", prefix, look)

    def list_names(self, directory: str, start: str = "") -> Sequence[str]:
        above = f"{self._key(directory)}/"

        def look(client: Any) -> list[str]:
            pages = client.get_paginator("list_objects_v2").paginate(
                Bucket=self.bucket, Prefix=above + start, Delimiter="/"
            )
            names: set[str] = set()
            for page in pages:
                names.update(item["Key"][len(above) :] for item in page.get("Contents", ()))
                names.update(item["Prefix"][len(above) :] for item in page.get("CommonPrefixes", ()))
            return sorted(names - {""})

        return self._ask("list", directory, look)

    def delete(self, path: str) -> None:
        key = self._key(path)
        self._ask("delete", path, lambda client: client.delete_object(Bucket=self.bucket, Key=key))

    def delete_tree(self, prefix: str) -> None:
        check_path(prefix)
        paths = self.list(f"{prefix}/")
        for start in range(0, len(paths), _MOST_DELETED):
            keys = [{"Key": self._key(path)} for path in paths[start : start + _MOST_DELETED]]
            answer = self._ask("delete", prefix, lambda client, keys=keys: self._delete_all(client, keys))  # type: ignore[misc]
            if answer:
                raise StorageError(
                    f"Cannot delete {self.uri}/{answer[0]['Key']}: {answer[0].get('Message', 'refused')}."
                )

    def _delete_all(self, client: Any, keys: Any) -> Any:
        answer = client.delete_objects(Bucket=self.bucket, Delete={"Objects": keys, "Quiet": True})
        return answer.get("Errors", [])


def _code(error: Any) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))


@contextmanager
def _s3_errors() -> Iterator[None]:
    """Turn what boto3 raises into the errors of an operating system, which `Operations` tells apart."""
    from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError, ReadTimeoutError

    try:
        yield
    except ClientError as error:
        code = _code(error)
        if code in _MISSING:
            raise FileNotFoundError(str(error)) from error
        if code in _FORBIDDEN:
            raise PermissionError(str(error)) from error
        raise OSError(str(error)) from error
    except NoCredentialsError as error:
        raise PermissionError(f"{error} Set them as for any AWS tool") from error
    except ReadTimeoutError as error:
        raise TimeoutError(str(error)) from error
    except BotoCoreError as error:
        raise OSError(str(error)) from error
