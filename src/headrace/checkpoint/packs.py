"""Small files of one snapshot, stored as one object: a *pack*.

    pack = file*            one after the other, nothing between; the handles know where each lies

A handle of a part has the path of the pack, its own offset, size and hash, and the size of the whole. Packs of table
files are shared between checkpoints, named by their content like any shared file, and collected like one: a pack stays
while any checkpoint names a part of it. So that a few live parts do not keep a mostly dead pack for ever, a snapshot
stores parts anew (into its own pack) once less than half of their pack is alive in it. Packs then take at most twice
the space of the files they are kept for.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec

from headrace.checkpoint.handles import StateFile
from headrace.checkpoint.storage.base import INLINE_THRESHOLD, FileStore, inline_file
from headrace.checkpoint.storage.inlining import blocks

SMALL_FILE = 1 << 20
"""Files up to this size are packed."""
LARGEST_PACK = 16 << 20
LEAST_ALIVE = 0.5
"""Below this share of live bytes the live parts of a pack are stored anew."""
MOST_INLINE = 4 * INLINE_THRESHOLD
"""Of a snapshot's tiny files so many bytes together may travel inside `_metadata` before they are packed too."""


def to_pack(paths: Iterable[Path]) -> list[list[Path]]:
    """Of a snapshot's files those that go into packs, by pack; what is not named is stored by itself.

    Tiny ones are left to travel inside `_metadata`, the smallest first, as long as they are few.
    """
    sizes = sorted((path.stat().st_size, path) for path in paths)
    inline = 0
    packs: list[list[Path]] = []
    room = 0
    for size, path in sizes:
        if size > SMALL_FILE:
            break
        if size <= INLINE_THRESHOLD and inline + size <= MOST_INLINE:
            inline += size
            continue
        if not packs or size > room:
            packs.append([])
            room = LARGEST_PACK
        packs[-1].append(path)
        room -= size
    return [sorted(pack) for pack in packs if len(pack) > 1]


def write_pack(store: FileStore, name: str, paths: Sequence[Path]) -> list[StateFile]:
    """Store the files as one object that belongs to this checkpoint alone; a handle for each."""
    pack = store.write(name, _chunks(paths))
    return _parts(pack, paths)


def write_shared_pack(store: FileStore, folder: Path, name: str, paths: Sequence[Path]) -> list[StateFile]:
    """Store the files as one object named by its content. It is put together in `folder` first."""
    whole = folder / f"{name}.pack"
    with whole.open("wb") as out:
        for chunk in _chunks(paths):
            out.write(chunk)
    return _parts(store.write_shared(whole), paths)


def worth_keeping(known: dict[str, StateFile], present: Iterable[str]) -> dict[str, StateFile]:
    """Of files stored earlier, by name, those among `present` that a new snapshot should refer to.

    Left out are parts of packs that are mostly dead: their place in a new pack lets the old one go.
    """
    found = {name: known[name] for name in present if name in known}
    alive: dict[str, int] = {}
    for file in found.values():
        if file.pack_size:
            alive[file.path] = alive.get(file.path, 0) + file.size
    return {
        name: file
        for name, file in found.items()
        if not file.pack_size or alive[file.path] >= LEAST_ALIVE * file.pack_size
    }


def _chunks(paths: Iterable[Path]) -> Iterator[bytes]:
    for path in paths:
        yield from blocks(path)


def _parts(pack: StateFile, paths: Sequence[Path]) -> list[StateFile]:
    parts: list[StateFile] = []
    offset = 0
    for path in paths:
        if pack.inline is not None:
            size = path.stat().st_size
            parts.append(inline_file(pack.inline[offset : offset + size]))
        else:
            with path.open("rb") as file:
                sha256 = hashlib.file_digest(file, "sha256").hexdigest()
                size = file.tell()
            parts.append(msgspec.structs.replace(pack, size=size, sha256=sha256, offset=offset, pack_size=pack.size))
        offset += size
    return parts
