"""The commit point: one small file by exclusive create, and what an error in between means."""

from __future__ import annotations

from headrace.checkpoint.storage.base import (
    AlreadyExistsError,
    CheckpointStorage,
    DurabilityUnknownError,
    MissingFileError,
)
from headrace.errors import StorageError, retry


class PublishOutcomeUnknownError(StorageError):
    """The checkpoint may or may not have been published. Keep its files and older checkpoints; recovery will see."""

    recovery = retry("the next attempt reads what was published")


def publish_exclusively(storage: CheckpointStorage, path: str, data: bytes, *, inside: str = "") -> None:
    """Create `path` with `data`; after an error, read back to learn what happened.

    `inside`: a directory that must be there already.

    Returns: it is there, and it is ours. `PublishOutcomeUnknownError`: nobody knows. Another `StorageError`: it
    is not there, or somebody else's is.
    """
    try:
        if inside:
            storage.create_inside(inside, path, data)
        else:
            storage.create_exclusive(path, data)
    except DurabilityUnknownError as error:
        # It can be read now and be gone after a power loss: too little to commit output on.
        raise PublishOutcomeUnknownError(f"Whether {path} was published is not known: {error}") from error
    except StorageError as error:
        try:
            found = storage.read(path)
        except MissingFileError:
            # Raised as it came: nothing was published.
            raise error from None
        except StorageError as second:
            raise PublishOutcomeUnknownError(
                f"Whether {path} was published is not known: {error} Reading it back failed too: {second}"
            ) from error
        if found == data:
            return
        if isinstance(error, AlreadyExistsError):
            raise AlreadyExistsError(f"{path} was published by somebody else; it was left as it is.") from error
        raise StorageError(f"{path} was published by somebody else: {error}") from error
