"""The RocksDB backend: state larger than memory, on the local disk, with a cache of objects above it."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any

from headrace.backends.elements import Elements, migration_of, refuse_other_shape, rules_of
from headrace.backends.expiring import Expiry, expiring, no_cleanup
from headrace.backends.rocksdb.cache import CachedState, CacheKeeper
from headrace.backends.rocksdb.database import Database, load_rocksdict
from headrace.backends.rocksdb.folding import make_state
from headrace.backends.rocksdb.frozen import KeptChanges
from headrace.backends.rocksdb.layout import group_bounds, split, timers_family
from headrace.backends.rocksdb.lists import RocksListState
from headrace.backends.rocksdb.options import RocksDBOptions
from headrace.backends.rocksdb.restore import DatabaseRestore, convert_family
from headrace.backends.rocksdb.snapshot import CanonicalSnapshot, DatabaseSnapshot, NativeSnapshot
from headrace.backends.rocksdb.sweep import RocksSweep
from headrace.backends.rocksdb.timers import RocksTimerQueue
from headrace.backends.snapshots import DOMAINS, SnapshotLabel, label_of
from headrace.checkpoint.handles import KeyedSnapshot, StateFile, StateShape
from headrace.errors import JobDefinitionError
from headrace.state.backend import BackendContext, FileStore, KeyContext, KeyedStateBackend
from headrace.state.descriptors import StateDescriptor
from headrace.state.timers import FrozenTimers

DATABASE = "db"


class RocksDBBackend(KeyedStateBackend):
    """Keeps the `KeyedStateBackend` contract with one database under `context.local_dir`.

    The database is opened at the first use and closed once. Timers are in memory, as long as they are few.
    """

    def __init__(self, context: BackendContext, options: RocksDBOptions | None = None) -> None:
        load_rocksdict()
        self.key_context = KeyContext()
        self._context = context
        self._options = options if options is not None else RocksDBOptions()
        self._path = context.local_dir / DATABASE
        self._keeper: CacheKeeper | None = None
        self._shapes: dict[str, StateShape] = {}
        """Of every state in the database, declared or restored and not declared."""
        self.declared = {}
        self._states: dict[str, CachedState] = {}
        """What lies in the cache and the database. With a time-to-live, a state given out is a wrapper of it."""
        self._expiries: dict[str, Expiry] = {}
        self._sweeps: list[RocksSweep] = []
        self._positions: dict[str, int] = {}
        self._headless: set[str] = set()
        """List states that came from a release whose lists have no head; see `lists`."""
        self._timers: dict[str, RocksTimerQueue] = {domain: self._timer_queue(domain) for domain in DOMAINS}
        self._writing: list[DatabaseSnapshot] = []
        self._folders = count()
        self._uploaded: dict[int, dict[str, StateFile]] = {}
        """Table files of checkpoints that are written and not known to be complete, by checkpoint."""
        self._complete: dict[str, StateFile] = {}
        """Table files of the last completed checkpoint, by their name in this open database."""

    def state(self, descriptor: StateDescriptor) -> Any:
        name, shape = descriptor.name, descriptor.shape
        known = self._shapes.get(name)
        state = self._states.get(name)
        if state is not None:
            assert known is not None
            refuse_other_shape(self._context.uid, known, shape, restored=False)
            return self.declared[name]
        convert = None if known is None else migration_of(self._context.uid, known, descriptor)
        rules = rules_of(descriptor, self._context.uid, self._context.object_reuse)
        keeper = self._opened()
        # A new column family must not appear in the middle of a checkpoint's files.
        keeper.linked.wait()
        if convert is not None:
            convert_family(keeper.database, keeper.database.family(name), convert, self._context.key_groups)
        state = make_state(descriptor, rules, keeper.database.family(name), keeper)
        if isinstance(state, RocksListState):
            state.position = max(state.position, self._positions.get(name, 0))
            state.headed = name not in self._headless
        self._shapes[name] = shape
        self._states[name] = state
        given = state if rules.unstamped is None else self._expiring(descriptor, rules.unstamped, state)
        self.declared[name] = given
        return given

    def _expiring(self, descriptor: StateDescriptor, elements: Elements, state: CachedState) -> Any:
        config = descriptor.active_ttl
        assert config is not None
        expiry = Expiry(config.ttl_ms, self._context.now_ms)
        if config.cleanup.filters_full_snapshots:
            self._expiries[descriptor.name] = expiry
        cleanup = config.cleanup.get_rocksdb_compact_filter_cleanup_strategy()
        if cleanup is None:
            return expiring(descriptor, state, elements, expiry, no_cleanup)
        sweep = RocksSweep(
            state, self._opened(), expiry, self._context.key_groups, cleanup.query_time_after_num_entries
        )
        self._sweeps.append(sweep)
        return expiring(descriptor, state, elements, expiry, sweep)

    def _opened(self) -> CacheKeeper:
        if self._keeper is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._keeper = self._keep(Database(self._path, self._options))
        return self._keeper

    def _keep(self, database: Database) -> CacheKeeper:
        options = self._options
        max_parallelism = self._context.max_parallelism
        return CacheKeeper(database, max_parallelism, self.key_context, options.cache_entries, options.dirty_limit)

    def _timer_queue(self, domain: str) -> RocksTimerQueue:
        context = self._context
        limit = self._options.timers_in_memory
        return RocksTimerQueue(domain, limit, context.key_groups, context.max_parallelism, self._opened)

    def timers(self, domain: str) -> RocksTimerQueue:
        queue = self._timers.get(domain)
        if queue is None:
            raise JobDefinitionError(f"There are no {domain!r} timers. Time domains are: {', '.join(DOMAINS)}.")
        return queue

    def keys(self, state_name: str, namespace: bytes = b"") -> Iterator[Any]:
        if state_name not in self._shapes:
            return
        keeper = self._opened()
        keeper.write_all()
        start, stop = group_bounds(self._context.key_groups)
        before: Any = None
        # The scan sees the database as of now, so the caller may clear what it visits.
        for raw, _ in keeper.database.family(state_name).scan(start, stop):
            key, space, _ = split(raw)
            if space == namespace and key != before:
                before = key
                yield key

    def snapshot(self, checkpoint_id: int, *, canonical: bool = False) -> DatabaseSnapshot:
        keeper = self._opened()
        # Step 1 of `snapshot`; waits for the links of the checkpoint before this one.
        kept = keeper.freeze(keep=not canonical)
        for queue in self._timers.values():
            queue.write()
        work = self._canonical(checkpoint_id) if canonical else self._native(checkpoint_id, kept)
        keeper.linked.clear()
        threading.Thread(target=work.take, args=(keeper,), name=f"link-{checkpoint_id}", daemon=True).start()
        self._writing = [other for other in self._writing if not other.finished]
        self._writing.append(work)
        return work

    def _canonical(self, checkpoint_id: int) -> DatabaseSnapshot:
        expiries = [self._expiries.get(name) for name in self._shapes]
        return CanonicalSnapshot(
            self._label(checkpoint_id),
            list(self._shapes),
            self._frozen_timers(),
            self._context.max_parallelism,
            [None if expiry is None else expiry.horizon() for expiry in expiries],
            [timers_family(domain) if self._timers[domain].spilled else None for domain in DOMAINS],
            compression=self._options.compression,
        )

    def _native(self, checkpoint_id: int, kept: list[KeptChanges]) -> DatabaseSnapshot:
        return NativeSnapshot(
            self._label(checkpoint_id),
            self._context.local_dir / f"links-{checkpoint_id}-{next(self._folders)}",
            kept,
            self._frozen_timers(),
            self._next_positions(),
            self._headed(),
            self._context.max_parallelism,
            self._complete if self._options.incremental else None,
            self._uploaded.__setitem__,
            merge=self._options.merge_small_files,
            with_timers=any(queue.spilled for queue in self._timers.values()),
        )

    def _label(self, checkpoint_id: int) -> SnapshotLabel:
        return label_of(self._context, checkpoint_id, list(self._shapes.values()))

    def _frozen_timers(self) -> list[FrozenTimers]:
        return [self._timers[domain].freeze() for domain in DOMAINS]

    def _next_positions(self) -> dict[str, int]:
        # States that were restored and never declared keep the positions they came with.
        declared = {name: state.position for name, state in self._states.items() if isinstance(state, RocksListState)}
        return {**self._positions, **declared}

    def _headed(self) -> tuple[str, ...]:
        lists = (name for name, shape in self._shapes.items() if shape.kind == "list")
        return tuple(name for name in lists if name not in self._headless)

    def restore(self, snapshots: Sequence[KeyedSnapshot], store: FileStore) -> None:
        if not snapshots:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        restore = DatabaseRestore(self._context, self._options, self._path, store)
        self._keeper = self._keep(restore.run(snapshots))
        self._shapes.update(restore.shapes)
        self._positions.update(restore.positions)
        self._headless.update(restore.headless)
        for name in restore.shapes:
            self._keeper.database.family(name)
        for domain, queue in self._timers.items():
            queue.restore(restore.timers(domain))

    def checkpoint_complete(self, checkpoint_id: int) -> None:
        files = self._uploaded.pop(checkpoint_id, None)
        if files is not None:
            self._complete = files
        for older in [known for known in self._uploaded if known < checkpoint_id]:
            del self._uploaded[older]

    def entry_count(self) -> int:
        if self._keeper is None:
            return 0
        return sum(family.estimated_count() for family in self._keeper.database.families.values())

    def close(self) -> None:
        for work in self._writing:
            work.cancel()
        self._writing.clear()
        for sweep in self._sweeps:
            sweep.close()
        self._sweeps.clear()
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            keeper.linked.wait()
            self._states.clear()
            self.declared.clear()
            keeper.states.clear()
            keeper.database.close()
        for path in self._context.local_dir.glob("*"):
            if path.name == DATABASE or path.name.startswith(("links-", "restore-")):
                shutil.rmtree(path, ignore_errors=True)
