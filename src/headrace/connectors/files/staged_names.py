"""Names of staged files: each says which writer made it, and in which history.

    <job>/<uid>-<subtask>-h<history>-a<attempt>-<mark>-<counter>     a part, written or prepared
    <job>/<uid>-<subtask>-h<history>-a<attempt>-<mark>.committed     the ledger of one writer
    <job>/<uid>-h<history>.all.committed                             the ledger of a history's older writers
    <job>/<uid>.owner                                                the job directory that last started here

The history is the token of the job directory that numbers the attempts: two jobs of one name with two checkpoint
directories both have an attempt 1, and only the history tells their files apart. Names without `-h<history>` are of
versions that did not write it.
"""

from __future__ import annotations

import hashlib
import re
from typing import NamedTuple
from urllib.parse import quote

STAGING = ".staging"
LEDGER_SUFFIX = ".committed"
_LONGEST_NAME = 100
_STAGED = re.compile(
    r"(?P<uid>.+)-(?P<subtask>\d+)(?:-h(?P<history>[^-]+))?-a(?P<attempt>\d+)-(?P<mark>[0-9a-f]+)"
    r"(?:-(?P<counter>\d+)|\.committed)\Z"
)


class StagedName(NamedTuple):
    """What the name of a staged file or of a writer's ledger says."""

    uid: str
    """As in file names."""
    history: str
    """As in file names; empty if the name does not say."""
    attempt: int
    mark: str
    """Random for each writer."""
    counter: int | None
    """None for a ledger. Grows with every part of a writer."""

    @classmethod
    def of(cls, path: str) -> StagedName | None:
        """None for any other file."""
        match = _STAGED.match(path.rpartition("/")[2])
        if match is None:
            return None
        counter = None if match["counter"] is None else int(match["counter"])
        return cls(match["uid"], match["history"] or "", int(match["attempt"]), match["mark"], counter)


def safe_name(text: str) -> str:
    """A file name that stands for `text` alone: quoted, and by hash where it would be too long."""
    name = quote(text, safe=" ").replace(".", "%2E")
    return name if len(name) <= _LONGEST_NAME else hashlib.sha256(text.encode()).hexdigest()


def safe_history(history: str) -> str:
    """A history as it stands in names, in which `-` separates parts."""
    return safe_name(history).replace("-", "%2D")


def stem_of(job_id: str, uid: str, subtask: int, history: str, attempt: int, mark: str) -> str:
    """What the names of one writer's staged files begin with."""
    return f"{folder_of(job_id)}/{safe_name(uid)}-{subtask}{_marked(history)}-a{attempt}-{mark}"


def folder_of(job_id: str) -> str:
    """Where everything that a job has staged lies."""
    return f"{STAGING}/{safe_name(job_id)}"


def merged_ledger(folder: str, uid: str, history: str) -> str:
    """The ledger into which those of a history's older writers go. `uid` as in file names."""
    return f"{folder}/{uid}{_marked(history)}.all{LEDGER_SUFFIX}"


def owner_file(job_id: str, uid: str) -> str:
    return f"{folder_of(job_id)}/{safe_name(uid)}.owner"


def _marked(history: str) -> str:
    return f"-h{safe_history(history)}" if history else ""
