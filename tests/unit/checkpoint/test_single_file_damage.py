"""One file of a job directory is lost or damaged: what a start does about it, file by file.

The table in docs/checkpoints-and-recovery.md is this one. A start here is the driver's own, from the lease to the bytes
of every file that it restores.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner
from golden_jobs import JOB, Publisher, Shape, job

from headrace.checkpoint.handles import ChannelSnapshot
from headrace.checkpoint.job_directory import JobDirectory
from headrace.checkpoint.lease import Lease
from headrace.checkpoint.location import open_checkpoint
from headrace.checkpoint.metadata.model import CheckpointMetadata, state_files
from headrace.checkpoint.packs import write_shared_pack
from headrace.checkpoint.storage.filesystem import FileSystemCheckpointStorage
from headrace.checkpoint.storage.parts import PartReader
from headrace.cli.main import main
from headrace.errors import CheckpointLostError, DamagedCheckpointError, HeadraceError

NEWEST = 3
RUN = f"{JOB}/run-000001"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A job directory with two checkpoints, the files of two attempts, and a savepoint that was to stop the job."""
    root = tmp_path_factory.mktemp("made") / "checkpoints"
    storage = FileSystemCheckpointStorage(str(root), file_state_size_threshold=0)
    Lease(storage, JOB).acquire()
    with job(Shape(backend="rocksdb", checkpoint_id=1)) as running:
        Publisher(storage).publish(running, 1)
        publisher = Publisher(storage)
        for checkpoint_id in (2, NEWEST):
            running.set_count(f"k{checkpoint_id}", checkpoint_id)
            running.shape = dataclasses.replace(running.shape, checkpoint_id=checkpoint_id, attempt=publisher.attempt)
            store = publisher.store(checkpoint_id)
            cells = ChannelSnapshot(1, 0, store.write("channels", [bytes(30_000)]), 1)
            for number in range(2):
                (root.parent / f"{number}.sst").write_bytes(bytes([checkpoint_id, number]) * 15_000)
            parts = write_shared_pack(store, root.parent, "two", [root.parent / f"{n}.sst" for n in range(2)])
            channels = (cells, *(ChannelSnapshot(2, slot, part, 1) for slot, part in enumerate(parts)))
            metadata = msgspec.structs.replace(running.metadata(store), channels=channels)
            publisher.directory.publish(metadata)
            publisher.known = frozenset(file.path for file in state_files(metadata) if file.shared)
        publisher.directory.drop([1])
        for checkpoint_id in (4, 5):
            publisher.directory.record_stopping(publisher.attempt, checkpoint_id, str(root / f"saved-{checkpoint_id}"))
    return root


@pytest.fixture
def root(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "checkpoints"))


def start(root: Path, history: str) -> CheckpointMetadata | None:
    """What the next start restores, with every byte of it read."""
    storage = FileSystemCheckpointStorage(str(root))
    lease = Lease(storage, JOB)
    lease.acquire(take_over=True)
    directory = JobDirectory(storage, JOB)
    directory.open_run()
    attempt = directory.claim_attempt()
    survey = directory.survey()
    stopping = directory.stopping_savepoint()
    assert stopping is None or not Path(stopping).exists()
    newest = survey.newest()
    metadata = None if newest is None else survey.metadata(newest)
    directory.record_restored(attempt, newest.checkpoint_id if newest else None)
    assert directory.history == history
    assert attempt == 3
    store = PartReader(storage.file_store(directory.prefix_for(0, attempt)))
    for file in state_files(metadata) if metadata is not None else ():
        store.read(file)
    return metadata


def flipped(path: Path, other: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def swapped(path: Path, other: Path) -> None:
    mine, its = path.read_bytes(), other.read_bytes()
    path.write_bytes(its)
    other.write_bytes(mine)


DAMAGE: dict[str, Callable[[Path, Path], None]] = {
    "deleted": lambda path, other: path.unlink(),
    "emptied": lambda path, other: path.write_bytes(b""),
    "halved": lambda path, other: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "swapped": swapped,
    "one bit flipped": flipped,
}


def state_path(root: Path, kind: str) -> tuple[str, str]:
    metadata = open_checkpoint(str(root / RUN / f"chk-{NEWEST:06d}")).metadata
    paths = {
        "own": [f.path for f in state_files(metadata) if f"/chk-{NEWEST:06d}/" in f.path and "channels" not in f.path],
        "shared": [f.path for f in state_files(metadata) if f.path.endswith(".sst")],
        "pack": [f.path for f in state_files(metadata) if f.path.endswith(".pack")],
        "channel": [metadata.channels[0].cells.path],
    }
    wanted = min(paths[kind])
    return wanted, next(path for path in sorted(f.path for f in state_files(metadata) if f.path) if path != wanted)


GOES_ON, LOST, DAMAGED = "goes on from the newest", CheckpointLostError, DamagedCheckpointError
ALWAYS = dict.fromkeys(DAMAGE, GOES_ON)
NEVER = dict.fromkeys(DAMAGE, DAMAGED)
TABLE: dict[str, dict[str, str | type[HeadraceError]]] = {
    "chk-000003/_metadata": {**NEVER, "deleted": LOST},
    "chk-000002/_metadata": {**ALWAYS, "swapped": DAMAGED},  # with the newest: both are damaged then
    "published-000002-000003": ALWAYS,
    "attempt-000002": ALWAYS,
    "restored-000002": {**NEVER, "deleted": GOES_ON},
    "stopping-000002-000005": {**NEVER, "deleted": GOES_ON},
    "lease-000001": ALWAYS,
    "own": NEVER,
    "shared": NEVER,
    "pack": NEVER,
    "channel": NEVER,
}
SIBLINGS = {
    "chk-000003/_metadata": "chk-000002/_metadata",
    "chk-000002/_metadata": "chk-000003/_metadata",
    "published-000002-000003": "published-000002-000002",
    "attempt-000002": "attempt-000001",
    "restored-000002": "restored-000001",
    "stopping-000002-000005": "stopping-000002-000004",
}
CELLS = [
    (name, damage)
    for name in TABLE
    for damage in DAMAGE
    if damage != "swapped" or name in (*SIBLINGS, "own", "shared", "pack", "channel")
]


def files_of_cell(root: Path, name: str) -> tuple[Path, Path]:
    if name in ("own", "shared", "pack", "channel"):
        path, other = state_path(root, name)
        return root / path, root / other
    home = root / JOB if name.startswith("lease-") else root / RUN
    return home / name, home / SIBLINGS.get(name, name)


@pytest.mark.parametrize(("name", "damage"), CELLS)
def test_what_a_start_does(root: Path, name: str, damage: str) -> None:
    history = str(json.loads((root / RUN / "attempt-000001").read_bytes())["history"])
    DAMAGE[damage](*files_of_cell(root, name))
    expected = TABLE[name][damage]
    if isinstance(expected, str):
        restored = start(root, history)
        assert restored is not None
        assert restored.checkpoint_id == NEWEST
    else:
        with pytest.raises(expected, match=name.rpartition("/")[2] if name in SIBLINGS else "chk-|shared"):
            start(root, history)


@pytest.mark.parametrize(("name", "damage"), CELLS)
def test_verify_finds_it(root: Path, name: str, damage: str) -> None:
    DAMAGE[damage](*files_of_cell(root, name))
    # Of a control file that is gone nothing tells that it was there; its absence harms no start, as above.
    unseen = damage == "deleted" and TABLE[name][damage] == GOES_ON
    outcome = CliRunner().invoke(main, ["checkpoints", "verify", str(root / JOB)])
    assert outcome.exit_code == (0 if unseen else 1), outcome.output
    if not unseen and name in SIBLINGS:
        assert name.partition("/")[0] in outcome.output.replace("\n", "")


@pytest.mark.parametrize("damage", [name for name in DAMAGE if name != "swapped"])
def test_a_run_that_has_ended_is_not_begun_again(root: Path, damage: str) -> None:
    storage = FileSystemCheckpointStorage(str(root))
    directory = JobDirectory(storage, JOB)
    directory.open_run()
    directory.end("FINISHED")
    directory.delete_checkpoints()
    ended = root / RUN / "_ended"
    DAMAGE[damage](ended, ended)
    again = JobDirectory(storage, JOB)
    if damage == "deleted":
        again.open_run()
        with pytest.raises(CheckpointLostError, match="Checkpoint 3"):
            again.newest()
    else:
        assert again.open_run() == 2


def test_the_exit_codes_of_verify_and_gc_are_those_that_are_documented(root: Path) -> None:
    def run(*arguments: str) -> int:
        return CliRunner().invoke(main, ["checkpoints", *arguments]).exit_code

    home, metadata = str(root / JOB), root / RUN / "chk-000003/_metadata"
    lease = Lease(FileSystemCheckpointStorage(str(root)), JOB)
    assert run("verify", home) == 0
    assert run("verify", str(root / "nothing")) == 3
    assert run("gc", str(root / "nothing")) == 3
    lease.acquire(take_over=True)
    assert run("gc", home, "--delete") == 4
    lease.release()
    assert run("gc", home) == 0
    whole = metadata.read_bytes()
    for damage in (lambda: metadata.write_bytes(whole[:-1]), metadata.unlink):
        damage()
        assert run("verify", home) == 1
        assert run("gc", home) == 3
        assert run("gc", home, "--delete") == 3
        metadata.write_bytes(whole)
    assert run("gc", home, "--delete") == 0
    assert run("verify", home) == 0
