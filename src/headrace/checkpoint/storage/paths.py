"""Names of files in checkpoint storage: which are allowed, and what they tell.

    <home>/chk-000007/attempt-000003/<name>-<token>             one checkpoint, one attempt, one writer
    <home>/shared/<2 hex>/<sha256>-000003-000007.sst            by content; first stored by attempt 3 in checkpoint 7
    <home>/shared/<2 hex>/<sha256>-000003-000007.pack           the same, several small files one after the other

A shared name carries attempt and checkpoint besides the content, so a name is written for one
checkpoint only. The collector can then tell from the name alone that nobody is about to use a file,
and never races with a task that stores the same content again.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from headrace.errors import StorageError, permanent

_CHECKPOINT_PREFIX = re.compile(r"(?:(?P<home>.+)/)?chk-(?P<checkpoint>\d{1,18})/attempt-(?P<attempt>\d{1,18})")
_SHARED = re.compile(
    r"(?:.+/)?shared/[0-9a-f]{2}/(?P<sha256>[0-9a-f]{64})(?:-(?P<attempt>\d{1,18})-(?P<checkpoint>\d{1,18}))?"
    r"\.(?:sst|pack)"
)


PACK = ".pack"
"""The suffix of a pack's name, locally and in storage; whatever else is shared is called a table file there."""


class UnsafePathError(StorageError):
    """A path that leaves the storage root, or something that is no plain file where one should be."""

    recovery = permanent("the path stays what it is")


def check_path(path: str) -> str:
    """`path` itself if it stays inside the storage root: relative, forward slashes, no `..`, no empty part."""
    parts = path.split("/")
    if not path or "\\" in path or "\0" in path or any(part in ("", ".", "..") for part in parts):
        raise UnsafePathError(
            f"{path!r} is no path inside checkpoint storage: it must be relative, with forward slashes, without '..'."
        )
    return path


def check_prefix(prefix: str) -> str:
    """Like `check_path`, but `""` stands for the root and a trailing slash is allowed."""
    if prefix.rstrip("/"):
        check_path(prefix[:-1] if prefix.endswith("/") else prefix)
    elif prefix:
        check_path(prefix)
    return prefix


@dataclass(frozen=True, slots=True)
class WriterScope:
    """For which checkpoint and attempt a task writes; told by the prefix it was given."""

    home: str = ""
    """The directory of the run, in which `shared/` stands; empty for the storage root."""
    checkpoint_id: int = 0
    attempt: int = 0

    @classmethod
    def of(cls, prefix: str) -> WriterScope:
        match = _CHECKPOINT_PREFIX.fullmatch(prefix)
        if match is None:
            return cls()
        return cls(match["home"] or "", int(match["checkpoint"]), int(match["attempt"]))

    @property
    def prefix(self) -> str:
        own = f"chk-{self.checkpoint_id:06d}/attempt-{self.attempt:06d}"
        return f"{self.home}/{own}" if self.home else own

    def shared_path(self, sha256: str, suffix: str = ".sst") -> str:
        """Where a file of that content goes when this writer is the first to store it."""
        writer = f"-{self.attempt:06d}-{self.checkpoint_id:06d}" if self.attempt else ""
        return f"{self.shared_directory}/{sha256[:2]}/{sha256}{writer}{PACK if suffix == PACK else '.sst'}"

    @property
    def shared_directory(self) -> str:
        return f"{self.home}/shared" if self.home else "shared"


@dataclass(frozen=True, slots=True)
class SharedName:
    """What the path of a shared file tells; attempt and checkpoint are 0 where it was stored without them."""

    sha256: str
    attempt: int
    checkpoint_id: int

    @classmethod
    def of(cls, path: str) -> SharedName | None:
        match = _SHARED.fullmatch(path)
        if match is None:
            return None
        return cls(match["sha256"], int(match["attempt"] or 0), int(match["checkpoint"] or 0))
