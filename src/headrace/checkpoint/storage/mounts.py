"""Which file system a path lies on, and whether an absent file may be believed there.

A driver is fenced off by a file that another one creates. An NFS client may answer from its cache that the file is not
there, long after the server has it, unless it is mounted so that it asks the server each time.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from headrace.errors import ConfigurationError

_NFS = ("nfs", "nfs4")
_ASKS_THE_SERVER = {"lookupcache=none", "lookupcache=pos", "lookupcache=positive", "noac"}
_OCTAL = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True, slots=True)
class Mount:
    """One line of `/proc/self/mountinfo`."""

    point: str
    kind: str
    options: frozenset[str]


def parse_mounts(mountinfo: str) -> list[Mount]:
    """All mounts, in the order of the file: a later one covers an earlier one at the same place."""
    mounts: list[Mount] = []
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        fields, rest = before.split(), after.split()
        if len(fields) < 6 or len(rest) < 1:
            continue
        options = {*fields[5].split(","), *(rest[2].split(",") if len(rest) > 2 else ())}
        point = _OCTAL.sub(lambda match: chr(int(match[1], 8)), fields[4])
        mounts.append(Mount(point, rest[0], frozenset(options)))
    return mounts


def mount_of(path: Path, mounts: Sequence[Mount]) -> Mount | None:
    """The mount that an absolute path without symbolic links lies on."""
    found: Mount | None = None
    for mount in mounts:
        if path.is_relative_to(mount.point) and (found is None or len(mount.point) >= len(found.point)):
            found = mount
    return found


def refuse_cached_lookups(path: Path, mountinfo: str | None = None) -> None:
    """Raise `ConfigurationError` if the client of the file system may hide a file that others have created.

    `mountinfo`: instead of what the system says now. Where that cannot be read, nothing is refused.
    """
    if mountinfo is None:
        try:
            mountinfo = Path("/proc/self/mountinfo").read_text()
        except OSError:
            return
    mount = mount_of(path.resolve(), parse_mounts(mountinfo))
    if mount is None or mount.kind not in _NFS or mount.options & _ASKS_THE_SERVER:
        return
    raise ConfigurationError(
        f"{path} is on NFS, mounted at {mount.point} without lookupcache=none: its client may answer from a cache that "
        "a file is not there, so a driver that was replaced would not notice it and could publish and commit. Mount it "
        "with the option lookupcache=none (or lookupcache=positive, or noac), or use other storage."
    )
