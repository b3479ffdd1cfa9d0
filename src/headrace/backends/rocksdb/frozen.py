"""Changed entries as they were at a barrier, on their way into the database beside the stream.

They become one table file, which the database takes in as it is: that costs half of what writing them to its memory
and flushing that memory costs. A table file wants its entries in order of key; they are sorted one key group at a time,
since a sort holds the interpreter.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from headrace.backends.rocksdb.database import Database, Family
from headrace.backends.rocksdb.layout import prefixes_by_group

Spaces: TypeAlias = dict[bytes, dict[Any, Any]]
"""By namespace: stored key -> stored value, or None where there is none any more."""


def write_frozen(
    database: Database, family: Family, spaces: Spaces, to_bytes: Callable[[Any], bytes], max_parallelism: int
) -> int:
    """Bring the changes of one state into the database; how many bytes their values have. `StorageError` if it fails:
    then the database has none of them.
    """
    keys = [key for changes in spaces.values() for key in changes]
    if not keys:
        return 0
    values = [stored for changes in spaces.values() for stored in changes.values()]
    counts = {namespace: len(changes) for namespace, changes in spaces.items()}
    written = 0
    # Entries in the database's memory would be flushed by the import, which does not let other threads run.
    family.flush()
    with family.table() as table:
        for prefixes, places in prefixes_by_group(keys, counts, max_parallelism):
            entries = dict(zip(prefixes, [values[place] for place in places], strict=True))
            for prefix in sorted(entries):
                stored = entries[prefix]
                if stored is None:
                    del table[prefix]
                else:
                    data = to_bytes(stored)
                    written += len(data)
                    table[prefix] = data
    return written
