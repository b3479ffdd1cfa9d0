"""Uids for operators that the program gave none: a hash of the operator's place in the graph and its name.

The place is what the operator does and which operators feed it, through which outputs. So the same program has the
same uids in every process, and an operator added elsewhere changes none of the others. Parallelism is not
part of the place: a job keeps its state when it is rescaled. Where an operator feeding it has a uid of
its own, that uid stands for everything before it.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Sequence

_HASH_LENGTH = 10


class UidGenerator:
    """Gives uids to the operators of one graph, asked in topological order."""

    def __init__(self) -> None:
        self._seen: Counter[str] = Counter()

    def generate(self, kind: str, name: str, inputs: Sequence[tuple[str, str | None, int, str]]) -> str:
        """A uid for an operator of that kind and name, fed by `(uid, side output, input, partitioning)`.

        Operators with one and the same place (two equal branches) are told apart by their order in the program.
        """
        place = repr((kind, name, sorted((uid, tag or "", number, how) for uid, tag, number, how in inputs)))
        self._seen[place] += 1
        digest = hashlib.sha256(f"{place}#{self._seen[place]}".encode()).hexdigest()[:_HASH_LENGTH]
        readable = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:40].rstrip("-")
        return f"{readable or 'operator'}-{digest}"
