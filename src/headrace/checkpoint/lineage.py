"""What the attempts of a run restored from, and which checkpoints count because of it.

Each attempt records what it starts from, together with what is still worth knowing of the attempts before it. So the
newest record is the only one that has to be read, and older ones can go:

    restored-000003     JSON: checkpoint_id or null, source, origin
                        of all attempts up to this one: history, bounds, chosen, origins, highest_id, accepted_before

A checkpoint of attempt *a* counts if its id is at most what every later attempt restored from. `bounds` holds these
later attempts, without those whose bound follows from another one: it stays short however often a job restarts.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

from headrace.checkpoint.handles import AttemptId, CheckpointId, HistoryPoint

OLD_FIELDS = ("checkpoint_id", "source", "origin")
MAX_BOUNDS = 16
"""More than these are trimmed, which needs to know the oldest attempt that has a checkpoint that counts."""

_IN_RUN = re.compile(r".*/(?P<job>[^/]+)/(?P<checkpoint>run-\d{1,18}/chk-\d{1,18})")


@dataclass(frozen=True, slots=True)
class Lineage:
    """The newest record of a run, or nothing."""

    attempt: AttemptId = 0
    checkpoint_id: CheckpointId | None = None
    """Of this run; None for the beginning, or if `source` names a checkpoint."""
    source: str = ""
    """A checkpoint or savepoint that somebody named; empty for one of this run, or none."""
    history: str = ""
    bounds: tuple[tuple[AttemptId, CheckpointId], ...] = ()
    """Attempts and what they restored from (0: nothing of this run), both ascending."""
    chosen: tuple[str, ...] = ()
    """Checkpoints of this job that were restored by name, as `run-000001/chk-000007`: they stay, with their files."""
    origins: tuple[tuple[HistoryPoint, AttemptId], ...] = ()
    """Moments of other histories, and the first attempt that began from there or from later."""
    highest_id: CheckpointId = 0
    """No checkpoint of this run up to now has a higher one."""
    accepted_before: AttemptId = 0
    """Output of attempts below this one may be written a second time: somebody said so."""
    cumulative: bool = False
    """False for a record of an older version, which says nothing of the attempts before it."""

    def counts(self, attempt: AttemptId, checkpoint_id: CheckpointId) -> bool:
        """Whether a restore may take a checkpoint of that attempt."""
        return all(checkpoint_id <= bound for later, bound in self.bounds if later > attempt)

    def first_attempt_from(self, point: HistoryPoint) -> AttemptId | None:
        """The first attempt that began from that moment of another history, or from a later one."""
        began = [a for origin, a in self.origins if origin.history == point.history and origin[1:] >= point[1:]]
        return min(began, default=None)

    def chosen_in(self, run: int) -> set[CheckpointId]:
        """Checkpoints of that run which were restored by name."""
        start = f"run-{run:06d}/chk-"
        return {int(name.removeprefix(start)) for name in self.chosen if name.startswith(start)}

    def after(
        self,
        attempt: AttemptId,
        checkpoint_id: CheckpointId | None,
        source: str = "",
        origin: HistoryPoint | None = None,
        *,
        job_id: str,
        accepted: bool = False,
    ) -> Lineage:
        """What is known once `attempt` has recorded what it starts from."""
        bound = checkpoint_id or 0
        # A bound that is not lower than a later one says nothing more than that one does.
        bounds = (*((a, b) for a, b in self.bounds if b < bound), (attempt, bound))
        chosen, origins = self.chosen, self.origins
        named = _IN_RUN.fullmatch(source.rstrip("/"))
        if named and named["job"] == job_id and named["checkpoint"] not in chosen:
            chosen = (*chosen, named["checkpoint"])
        if origin is not None and self.first_attempt_from(origin) is None:
            origins = (*origins, (origin, attempt))
        return replace(
            self,
            attempt=attempt,
            checkpoint_id=checkpoint_id,
            source=source,
            bounds=bounds,
            chosen=chosen,
            origins=origins,
            highest_id=max(self.highest_id, bound),
            accepted_before=attempt if accepted else self.accepted_before,
            cumulative=True,
        )

    def seen(self, history: str, highest_id: CheckpointId) -> Lineage:
        """With the name of the directory's history, and the highest id that the directory shows."""
        return replace(self, history=history, highest_id=max(self.highest_id, highest_id))

    def trimmed(self, oldest: AttemptId) -> Lineage:
        """Without bounds for attempts that have no checkpoint that counts: none of them will ever have one.

        `oldest`: the first attempt that has one. What an older one publishes, should it still be alive, never counts.
        """
        past = [attempt for attempt, _ in self.bounds if attempt <= oldest]
        later = tuple((attempt, bound) for attempt, bound in self.bounds if attempt > oldest)
        return replace(self, bounds=((past[-1], 0), *later) if past else later)

    def for_next_run(self) -> Lineage:
        """What the next run of the job still has to know."""
        return Lineage(
            history=self.history,
            chosen=self.chosen,
            origins=self.origins,
            accepted_before=self.accepted_before,
            cumulative=True,
        )

    def to_record(self, origin: HistoryPoint | None) -> dict[str, Any]:
        """The fields of its file. `origin`: of the attempt itself, for older versions."""
        record: dict[str, Any] = {
            "attempt": self.attempt,
            "checkpoint_id": self.checkpoint_id,
            "source": self.source,
            "history": self.history,
            "bounds": self.bounds,
            "chosen": self.chosen,
            "origins": [[*point, attempt] for point, attempt in self.origins],
            "highest_id": self.highest_id,
            "accepted_before": self.accepted_before,
        }
        if origin is not None:
            record["origin"] = list(origin)
        return record

    @classmethod
    def of_record(cls, attempt: AttemptId, record: dict[str, Any], *, job_id: str) -> Lineage:
        """The opposite; `ValueError` or `TypeError` for fields of a wrong kind."""
        if record.get("attempt", attempt) != attempt:
            raise ValueError(f"it belongs to attempt {record['attempt']}")
        checkpoint_id = record["checkpoint_id"]
        if not isinstance(checkpoint_id, int | None):
            raise TypeError(f"checkpoint_id is {checkpoint_id!r}")
        source = str(record.get("source", ""))
        if "bounds" not in record:
            origin = record.get("origin")
            point = None if origin is None else HistoryPoint(*origin)
            return replace(cls().after(attempt, checkpoint_id, source, point, job_id=job_id), cumulative=False)
        return cls(
            attempt=attempt,
            checkpoint_id=checkpoint_id,
            source=source,
            history=str(record["history"]),
            bounds=tuple((int(a), int(b)) for a, b in record["bounds"]),
            chosen=tuple(map(str, record["chosen"])),
            origins=tuple((HistoryPoint(*point), int(attempt)) for *point, attempt in record["origins"]),
            highest_id=int(record["highest_id"]),
            accepted_before=int(record["accepted_before"]),
            cumulative=True,
        )

    def folded(self, older: Lineage) -> Lineage:
        """This record of an older version, with what an earlier one of them says."""
        bounds = (*((a, b) for a, b in older.bounds if b < (self.checkpoint_id or 0)), *self.bounds)
        return replace(
            self,
            bounds=bounds,
            chosen=tuple(dict.fromkeys((*older.chosen, *self.chosen))),
            origins=tuple(dict.fromkeys((*older.origins, *self.origins))),
            highest_id=max(older.highest_id, self.highest_id),
        )
