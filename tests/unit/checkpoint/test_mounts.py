"""An NFS mount whose client may hide a new file is refused by name; others are not."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.checkpoint.storage.filesystem import FileSystemCheckpointStorage
from headrace.checkpoint.storage.mounts import mount_of, parse_mounts, refuse_cached_lookups
from headrace.errors import ConfigurationError

MOUNTS = """\
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw,errors=remount-ro
40 22 0:35 / /mnt/team\\040state rw,relatime shared:20 - nfs4 files:/state rw,vers=4.2,hard,proto=tcp{options}
41 40 0:36 / /mnt/team\\040state/local rw - tmpfs tmpfs rw
42 22 0:37 / /mnt/team\\040state-of-old rw - ext4 /dev/sdb1 rw
broken line
"""


@pytest.mark.parametrize("options", ["", ",lookupcache=all", ",ac"])
@pytest.mark.parametrize("place", ["/mnt/team state", "/mnt/team state/checkpoints/alerts"])
def test_nfs_that_caches_what_is_not_there_is_refused_with_mount_point_and_option(place: str, options: str) -> None:
    with pytest.raises(ConfigurationError, match=r"mounted at /mnt/team state without lookupcache=none"):
        refuse_cached_lookups(Path(place), MOUNTS.format(options=options))


@pytest.mark.parametrize("option", ["lookupcache=none", "lookupcache=pos", "lookupcache=positive", "noac"])
def test_nfs_that_asks_the_server_is_taken(option: str) -> None:
    refuse_cached_lookups(Path("/mnt/team state/checkpoints"), MOUNTS.format(options=f",{option}"))


@pytest.mark.parametrize("place", ["/", "/var/checkpoints", "/mnt/team state/local/x", "/mnt/team state-of-old/x"])
def test_other_file_systems_are_taken(place: str) -> None:
    refuse_cached_lookups(Path(place), MOUNTS.format(options=""))


def test_a_later_mount_covers_an_earlier_one_at_the_same_place() -> None:
    mounts = parse_mounts(MOUNTS.format(options="") + "50 22 0:40 / /mnt/team\\040state rw - xfs /dev/sdc1 rw\n")
    found = mount_of(Path("/mnt/team state/x"), mounts)
    assert found is not None
    assert found.kind == "xfs"


def test_a_directory_of_this_machine_is_taken(tmp_path: Path) -> None:
    FileSystemCheckpointStorage(str(tmp_path / "not-there-yet")).check_exclusive_create()
    assert list(tmp_path.iterdir()) == []
