"""Names of prepared transactions, which an operator can read in `pg_prepared_xacts`.

    headrace:<job>:<sink>:<subtask>:<checkpoint>:<attempt>:<history>.<random>-<count>

At most 199 bytes are allowed: long names of jobs and sinks are cut, with a hash at the end. `:` cannot occur in a part.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from urllib.parse import quote

from headrace.connectors.write_ahead import history_of

PREFIX = "headrace"
_LONGEST_PART = 44
_HASHED = 12


def part(text: str) -> str:
    """A job's or sink's name as it stands in a gid."""
    name = quote(text, safe="")
    if len(name) <= _LONGEST_PART:
        return name
    digest = hashlib.sha256(text.encode()).hexdigest()[:_HASHED]
    return f"{name[: _LONGEST_PART - _HASHED - 1]}~{digest}"


@dataclass(frozen=True, slots=True)
class Gid:
    """One prepared transaction of ours."""

    job: str
    sink: str
    shard: int
    checkpoint_id: int
    attempt: int
    token: str

    @classmethod
    def of(cls, job_id: str, uid: str, shard: int, checkpoint_id: int, attempt: int, token: str) -> Gid:
        return cls(part(job_id), part(uid), shard, checkpoint_id, attempt, token)

    @classmethod
    def parse(cls, text: str) -> Gid | None:
        """None for a name that is not ours."""
        parts = text.split(":")
        if len(parts) != 7 or parts[0] != PREFIX or not all(number.isdigit() for number in parts[3:6]):
            return None
        return cls(parts[1], parts[2], int(parts[3]), int(parts[4]), int(parts[5]), parts[6])

    @property
    def history(self) -> str:
        """The job directory whose attempt prepared it; empty if a version prepared it that did not say."""
        return history_of(self.token)

    def belongs_to(self, job_id: str, uid: str | None = None) -> bool:
        return self.job == part(job_id) and (uid is None or self.sink == part(uid))

    def __str__(self) -> str:
        return f"{PREFIX}:{self.job}:{self.sink}:{self.shard}:{self.checkpoint_id}:{self.attempt}:{self.token}"
