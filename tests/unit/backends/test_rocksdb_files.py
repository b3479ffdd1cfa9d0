"""What the RocksDB backend leaves on disk and in checkpoint storage."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from backend_workshop import BY_ITEM, COUNT, LAST, SEEN, Workshop, at, contents

from headrace.backends.rocksdb.backend import RocksDBBackend
from headrace.backends.rocksdb.database import Database
from headrace.backends.rocksdb.layout import after, prefix_for, split
from headrace.backends.rocksdb.options import RocksDBOptions
from headrace.errors import ConfigurationError, DamagedCheckpointError, StorageError
from headrace.state.backend import BackendContext
from headrace.state.codecs import codec_for
from headrace.state.key_groups import key_group
from headrace.state.keys import encode_key, stored_form
from headrace.types.information import Types


@pytest.fixture
def shop(tmp_path: Path) -> Workshop:
    return Workshop("rocksdb", tmp_path)


def raw_families(snapshot: object, shop: Workshop, folder: Path) -> dict[str, dict[bytes, bytes]]:
    """Read a checkpoint's files with RocksDB alone, without Headrace."""
    import msgspec
    import rocksdict

    folder.mkdir()
    names = msgspec.msgpack.decode(snapshot.details)["names"]  # type: ignore[attr-defined]
    for name, file in zip(names, snapshot.files, strict=False):  # type: ignore[attr-defined]
        shop.store.fetch(file, folder / name)
    options = rocksdict.Options(raw_mode=True)
    families = rocksdict.Rdict.list_cf(str(folder), options)
    database = rocksdict.Rdict(str(folder), options, dict.fromkeys(families, options))
    found = {name: dict(database.get_column_family(name).items()) for name in families if name != "default"}
    database.close()
    return found


def test_each_state_is_a_column_family_with_keys_of_group_key_namespace_and_entry(
    shop: Workshop, tmp_path: Path
) -> None:
    backend = shop.backend()
    at(backend, "é")
    backend.state(LAST).update(1.5)
    backend.state(COUNT).set_namespace(b"window")
    backend.state(COUNT).update(7)
    backend.state(SEEN).add_all([4, 5])
    backend.state(BY_ITEM).put("x", 9)
    found = raw_families(shop.snapshot(backend), shop, tmp_path / "raw")
    key = encode_key("é")
    start = key_group("é", 16).to_bytes(2, "big") + len(key).to_bytes(4, "big") + key
    long, double, text = (codec_for(t()).encode for t in (Types.LONG, Types.DOUBLE, Types.STRING))
    assert found == {
        "state:last": {start + b"\x00\x00": double(1.5)},
        "state:count": {start + b"\x00\x06window": long(7)},
        "state:seen": {start + b"\x00\x00" + i.to_bytes(8, "big"): long(4 + i) for i in (0, 1)},
        "state:by-item": {start + b"\x00\x00" + text("x"): long(9)},
    }


@pytest.mark.parametrize("key", [1, "a", b"\xff" * 9, 1.5, ("a", 1), 2**90, ""])
@pytest.mark.parametrize("namespace", [b"", b"w", b"\xff" * 300])
def test_database_keys_can_be_split_again(key: object, namespace: bytes) -> None:
    stored = stored_form(key)
    prefix = prefix_for(128)(stored, namespace)
    assert split(prefix + b"entry") == (stored, namespace, b"entry")
    assert prefix + b"\xff" * 20 < after(prefix)


@pytest.mark.parametrize("raw", [b"", b"\x00", b"\x00\x01\xff\xff\xff\xffa", b"\x00\x01\x00\x00\x00\x01\xc1\x00\x00"])
def test_database_keys_of_no_layout_are_damage(raw: bytes) -> None:
    with pytest.raises(DamagedCheckpointError):
        split(raw)


@pytest.mark.thorough
@pytest.mark.parametrize("cycles", [100, pytest.param(500, marks=pytest.mark.slow)])
def test_openings_restores_and_closings_leave_no_file_mapping_or_memory_behind(shop: Workshop, cycles: int) -> None:
    early: dict[str, int] = {}
    last = None
    for cycle in range(cycles):
        backend = shop.restored(last) if last is not None and cycle % 5 == 0 else shop.backend()
        at(backend, cycle)
        backend.state(COUNT).update(cycle)
        work = backend.snapshot(cycle)
        if cycle % 3:
            last = work.write(shop.store)
        backend.close()
        shop.made.clear()
        if cycle == cycles // 4:
            early = _footprint()
    late = _footprint()
    assert late["files"] <= early["files"]
    assert late["threads"] <= early["threads"] + 4
    assert late["mappings"] <= early["mappings"] + 20
    assert late["MiB"] <= early["MiB"] + 32
    assert list(shop.root.glob("local-*/*")) == []


def _footprint() -> dict[str, int]:
    """What this process holds."""
    return {
        "files": len(os.listdir("/proc/self/fd")),
        "threads": len(os.listdir("/proc/self/task")),
        "mappings": len(Path("/proc/self/maps").read_text().splitlines()),
        "MiB": int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") >> 20,
    }


def test_only_files_that_the_last_completed_checkpoint_lacks_are_handed_to_the_store(shop: Workshop) -> None:
    backend = shop.backend()
    state = backend.state(COUNT)
    for key in range(5_000):
        at(backend, f"key-{key}")
        state.update(key)
    first = shop.snapshot(backend, 1)
    backend.checkpoint_complete(1)
    offered: list[str] = []
    original = shop.store.write_shared
    shop.store.write_shared = lambda path: (offered.append(path.name), original(path))[1]  # type: ignore[method-assign]
    for key in range(50):
        at(backend, f"key-{key}")
        state.update(-key)
    second = shop.snapshot(backend, 2)
    shared = {file.path for file in first.files if file.shared}
    assert shared <= {file.path for file in second.files}
    assert len(offered) == 1
    again = shop.restored(second)
    found = contents(again, again.state(COUNT), "count")
    assert found == {f"key-{k}": -k if k < 50 else k for k in range(5_000)}


def test_files_of_a_checkpoint_that_never_completed_are_offered_again(shop: Workshop) -> None:
    backend = shop.backend()
    at(backend, "a")
    backend.state(COUNT).update(1)
    offered: list[str] = []
    original = shop.store.write_shared
    shop.store.write_shared = lambda path: (offered.append(path.name), original(path))[1]  # type: ignore[method-assign]
    shop.snapshot(backend, 1)
    shop.snapshot(backend, 2)
    assert len(offered) == 2
    assert len(set(offered)) == 1
    backend.checkpoint_complete(2)
    shop.snapshot(backend, 3)
    assert len(offered) == 2


def test_full_checkpoints_share_nothing(tmp_path: Path) -> None:
    shop = Workshop("rocksdb-full", tmp_path)
    backend = shop.backend()
    at(backend, "a")
    backend.state(COUNT).update(1)
    for checkpoint in (1, 2):
        snapshot = shop.snapshot(backend, checkpoint)
        backend.checkpoint_complete(checkpoint)
        assert not any(file.shared for file in snapshot.files)
    assert len(set(shop.store.uploaded)) == len(shop.store.uploaded)


def test_a_file_name_that_leads_elsewhere_is_refused(shop: Workshop) -> None:
    import msgspec

    backend = shop.backend()
    at(backend, "a")
    backend.state(COUNT).update(1)
    snapshot = shop.snapshot(backend)
    details = msgspec.msgpack.decode(snapshot.details)
    details["names"][0] = "../../escaped"
    with pytest.raises(DamagedCheckpointError, match="escaped"):
        shop.restored(msgspec.structs.replace(snapshot, details=msgspec.msgpack.encode(details)))
    assert not list(shop.root.rglob("escaped"))


def test_a_directory_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    blocked = tmp_path / "blocked"
    blocked.mkdir()
    (blocked / "db").write_text("a file where the database should be")
    backend = RocksDBBackend(BackendContext("op", 0, range(16), 16, blocked))
    with pytest.raises(StorageError, match="blocked"):
        backend.state(COUNT)
    backend.close()


@pytest.mark.parametrize("wrong", [{"cache_entries": 0}, {"dirty_limit": -1}])
def test_sizes_that_cannot_work_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ConfigurationError, match="RocksDBOptions"):
        RocksDBOptions(**wrong)  # type: ignore[arg-type]


def test_the_options_and_the_backend_do_not_import_rocksdict_before_it_is_used() -> None:
    code = (
        "import sys, headrace.backends.rocksdb.options, headrace.backends.rocksdb.backend; "
        "sys.exit('rocksdict' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_closed_backend_lets_go_of_its_database_though_its_states_are_still_held(
    shop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A database that stayed open would go on to write files into a directory that is being removed."""
    backend = shop.backend()
    state = backend.state(COUNT)
    at(backend, "a")
    state.update(1)
    shop.snapshot(backend)
    database = backend._opened().database
    with monkeypatch.context() as patch:
        patch.setattr("headrace.backends.rocksdb.backend.shutil.rmtree", lambda *args, **how: None)
        backend.close()
    Database(database.path, RocksDBOptions()).close()  # refused as long as somebody has it open
    backend.close()
    assert state.family is not None
