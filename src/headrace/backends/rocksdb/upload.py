"""Bringing the files of a linked database into checkpoint storage.

    table files (.sst)   never change: one that the last completed checkpoint has is named again; new ones are shared
    all others           belong to this checkpoint alone
    small ones           go into packs, shared and own apart (see `checkpoint.packs`)

Several files are under way at once: reading, hashing and writing let other threads run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from headrace.checkpoint.handles import StateFile
from headrace.checkpoint.packs import to_pack, worth_keeping, write_pack, write_shared_pack
from headrace.state.backend import FileStore

TABLE_FILE = ".sst"

_CHUNK = 1 << 20
_THREADS = 4
_LEFT_OUT = ("LOCK", "LOG", "IDENTITY", "OPTIONS")
"""Files that belong to the running database, not to its contents. Options are those of the task that restores it."""


class DatabaseUpload:
    """The upload of one snapshot. Used once, on a background thread."""

    def __init__(
        self,
        store: FileStore,
        name: str,
        known: dict[str, StateFile] | None,
        *,
        merge: bool,
        stop_if_cancelled: Callable[[], None],
    ) -> None:
        """`name` begins the names of files that are this checkpoint's alone. `known`: table files of the last completed
        checkpoint by local name; None: nothing is shared. `stop_if_cancelled` raises when the checkpoint is given up.
        """
        self._store = store
        self._name = name
        self._known = known
        self._merge = merge
        self._stop_if_cancelled = stop_if_cancelled

    def run(self, folder: Path) -> dict[str, StateFile]:
        """Handles of all files of the database by name, in order of name."""
        paths = {path.name: path for path in sorted(folder.iterdir()) if _belongs(path)}
        done = {} if self._known is None else worth_keeping(self._known, paths)
        shared = [path for name, path in paths.items() if self.is_shared(name) and name not in done]
        own = [path for name, path in paths.items() if not self.is_shared(name)]
        with ThreadPoolExecutor(_THREADS, thread_name_prefix="upload") as pool:
            jobs: list[tuple[list[Path], Future[list[StateFile]]]] = []
            for files, packs, whole in (
                (shared, self._shared_pack, self._shared_file),
                (own, self._own_pack, self._own_file),
            ):
                packed = to_pack(files) if self._merge else []
                for number, members in enumerate(packed):
                    jobs.append((members, pool.submit(packs, folder, number, members)))
                in_packs = {path for members in packed for path in members}
                jobs += [([path], pool.submit(whole, path)) for path in files if path not in in_packs]
            try:
                for members, job in jobs:
                    done.update(zip((path.name for path in members), job.result(), strict=True))
            finally:
                for _, waiting in jobs:
                    waiting.cancel()
        return {name: done[name] for name in paths}

    def is_shared(self, name: str) -> bool:
        """Whether later checkpoints may refer to that file."""
        return self._known is not None and name.endswith(TABLE_FILE)

    def _shared_file(self, path: Path) -> list[StateFile]:
        self._stop_if_cancelled()
        return [self._store.write_shared(path)]

    def _own_file(self, path: Path) -> list[StateFile]:
        return [self._store.write(f"{self._name}-{path.name}", self._chunks(path))]

    def _shared_pack(self, folder: Path, number: int, members: list[Path]) -> list[StateFile]:
        self._stop_if_cancelled()
        return write_shared_pack(self._store, folder, f"shared-{number}", members)

    def _own_pack(self, folder: Path, number: int, members: list[Path]) -> list[StateFile]:
        self._stop_if_cancelled()
        return write_pack(self._store, f"{self._name}-pack-{number}", members)

    def _chunks(self, path: Path) -> Iterator[bytes]:
        with path.open("rb") as source:
            while chunk := source.read(_CHUNK):
                self._stop_if_cancelled()
                yield chunk


def _belongs(path: Path) -> bool:
    """Whether the file is part of the database's contents."""
    # With the write-ahead log off a log file is an empty leftover.
    return not path.name.startswith(_LEFT_OUT) and not (path.name.endswith(".log") and not path.stat().st_size)
