"""What a ledger of the file sink says: this file was shown.

A ledger holds a JSON array a line, each after a line end of its own, so that one half-written line spoils no other:
history, attempt, checkpoint id, final name. It tells a file that a reader took away from one that was never shown, and
whether a checkpoint is older than output that was shown (see `Committer.committed_since`).

A writer numbers its parts and commits them in order, so its last note stands for all parts before it: of writers that
are gone the newest notes are kept, and of each other writer its last one.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from headrace.connectors.files.staged_names import StagedName

NOTES_KEPT = 1_000
"""Notes of older writers that are kept one by one, so that an error can list the files."""
WRITERS_KEPT = 20_000
"""Older writers of which at least the last note is kept."""
_PART = re.compile(r"-(?P<counter>\d+)-(?P<mark>[0-9a-f]{12})(?![0-9a-f])")


class Note(NamedTuple):
    """A line of a ledger."""

    history: str
    attempt: int
    checkpoint_id: int
    final: str

    def covers(self, staged: StagedName) -> bool:
        """Whether that part of a writer was shown before this one, or is this one."""
        part = _part(self.final)
        return part is not None and staged.counter is not None and part[0] == staged.mark and part[1] >= staged.counter


def encode_notes(notes: Iterable[Note]) -> bytes:
    return b"".join(b"\n" + msgspec.json.encode(note) for note in notes) + b"\n"


def decode_notes(data: bytes) -> list[Note]:
    found: list[Note] = []
    for line in data.split(b"\n"):
        # What a crash left of a line says nothing: its file is still staged.
        with contextlib.suppress(msgspec.MsgspecError):
            found.append(msgspec.json.decode(line, type=Note))
    return found


def compact(notes: Iterable[Note]) -> list[Note]:
    """The newest notes, which come last, and of each writer before them its last one."""
    all_notes = list(dict.fromkeys(notes))
    older, newest = all_notes[:-NOTES_KEPT], all_notes[-NOTES_KEPT:]
    last: dict[str, Note] = {}
    for note in older:
        part = _part(note.final)
        if part is not None:
            last[part[0]] = note
    return [*list(last.values())[-WRITERS_KEPT:], *newest]


def _part(final: str) -> tuple[str, int] | None:
    """Mark of the writer and number of the part, from the visible name."""
    found = list(_PART.finditer(final.rpartition("/")[2]))
    return (found[-1]["mark"], int(found[-1]["counter"])) if found else None
