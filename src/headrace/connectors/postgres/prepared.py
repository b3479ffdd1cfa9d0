"""Prepared transactions on a server: listing them, and ending those that nobody will."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from headrace.connectors.postgres.client import postgres
from headrace.connectors.postgres.gids import Gid


@dataclass(frozen=True, slots=True)
class Orphan:
    """A prepared transaction of a job that no checkpoint names: it keeps its locks until somebody ends it."""

    gid: str
    sink: str
    subtask: int
    checkpoint_id: int
    attempt: int
    owner: str
    age_s: float
    history: str = ""
    """The job directory whose attempt prepared it; empty if a version prepared it that did not say."""


def prepared_transactions(connection: Any) -> list[str]:
    """Names of all prepared transactions of the database, whosever they are."""
    found = connection.execute(
        "SELECT gid FROM pg_prepared_xacts WHERE database = current_database() ORDER BY prepared"
    )
    return [gid for (gid,) in found.fetchall()]


def roll_back(connection: Any, gid: str) -> bool:
    """End a prepared transaction; False if it was gone already. For a connection with autocommit."""
    library = postgres()
    try:
        connection.execute(library.sql.SQL("ROLLBACK PREPARED {}").format(gid))
    except library.errors.UndefinedObject:
        return False
    return True


def orphans_of(connection: Any, job_id: str, named: Collection[str]) -> list[Orphan]:
    """Prepared transactions of the job that are not among `named`, the oldest first."""
    rows = connection.execute(
        "SELECT gid, owner, extract(epoch FROM now() - prepared)::float8 FROM pg_prepared_xacts "
        "WHERE database = current_database() ORDER BY prepared"
    ).fetchall()
    found = []
    for text, owner, age in rows:
        gid = Gid.parse(text)
        if gid is not None and gid.belongs_to(job_id) and text not in named:
            found.append(Orphan(text, gid.sink, gid.shard, gid.checkpoint_id, gid.attempt, owner, age, gid.history))
    return found
