"""The heap backend: state as Python objects in the memory of the worker."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from headrace.backends.elements import Elements, migration_of, refuse_other_shape, rules_of
from headrace.backends.expiring import Expiry, expiring, no_cleanup
from headrace.backends.heap.folding import make_state
from headrace.backends.heap.layout import HeapTable
from headrace.backends.heap.options import HeapOptions
from headrace.backends.heap.restore import restore_heap
from headrace.backends.heap.snapshot import (
    CopiedSnapshot,
    HeapSnapshot,
    HeapView,
    SerialisedSnapshot,
    fork_snapshot,
)
from headrace.backends.heap.sweep import HeapSweep
from headrace.backends.snapshots import DOMAINS, label_of
from headrace.checkpoint.handles import KeyedSnapshot
from headrace.errors import JobDefinitionError
from headrace.state.backend import BackendContext, FileStore, KeyContext, KeyedStateBackend
from headrace.state.descriptors import StateDescriptor
from headrace.state.timers import HeapTimerQueue

COST_OF_ENCODING = 4
"""What encoding an entry at the barrier costs, in copies of one."""


class HeapBackend(KeyedStateBackend):
    """Keeps the `KeyedStateBackend` contract with a dict per state; nothing touches the disk before a snapshot."""

    def __init__(self, context: BackendContext, options: HeapOptions | None = None) -> None:
        self.key_context = KeyContext()
        self._context = context
        self._options = options if options is not None else HeapOptions()
        self._tables: dict[str, HeapTable] = {}
        self.declared = {}
        self._timers: dict[str, HeapTimerQueue] = {domain: HeapTimerQueue() for domain in DOMAINS}
        self._writing: list[HeapSnapshot] = []

    def state(self, descriptor: StateDescriptor) -> Any:
        name, shape = descriptor.name, descriptor.shape
        table = self._tables.get(name)
        if table is not None:
            if table.claimed:
                refuse_other_shape(self._context.uid, table.shape, shape, restored=False)
                return self.declared[name]
            convert = migration_of(self._context.uid, table.shape, descriptor)
            if convert is not None:
                table.convert(shape, convert)
        rules = rules_of(descriptor, self._context.uid, self._context.object_reuse)
        if table is None:
            table = self._tables[name] = HeapTable(shape)
        table.claim(rules)
        state = make_state(descriptor, rules, table, self.key_context)
        if rules.unstamped is not None:
            state = self._expiring(descriptor, rules.unstamped, state, table)
        self.declared[name] = state
        return state

    def _expiring(self, descriptor: StateDescriptor, elements: Elements, state: Any, table: HeapTable) -> Any:
        config = descriptor.active_ttl
        assert config is not None
        expiry = Expiry(config.ttl_ms, self._context.now_ms)
        if config.cleanup.filters_full_snapshots:
            table.expiry = expiry
        cleanup = config.cleanup.get_incremental_cleanup_strategy()
        if cleanup is None:
            return expiring(descriptor, state, elements, expiry, no_cleanup)
        sweep = HeapSweep(table, state, expiry, cleanup.cleanup_size)
        if cleanup.every_record:
            self.key_context.listen(sweep)
        return expiring(descriptor, state, elements, expiry, sweep)

    def timers(self, domain: str) -> HeapTimerQueue:
        queue = self._timers.get(domain)
        if queue is None:
            raise JobDefinitionError(f"There are no {domain!r} timers. Time domains are: {', '.join(DOMAINS)}.")
        return queue

    def keys(self, state_name: str, namespace: bytes = b"") -> Iterator[Any]:
        table = self._tables.get(state_name)
        if table is None:
            return iter(())
        # A list of them, so that the caller may clear what it visits.
        return iter(list(table.spaces.get(namespace, ())))

    def snapshot(self, checkpoint_id: int, *, canonical: bool = False) -> HeapSnapshot:
        # The table is the only format of this backend, so `canonical` changes nothing.
        context = self._context
        tables = list(self._tables.values())
        label = label_of(context, checkpoint_id, [table.shape for table in tables])
        view = HeapView(
            tables,
            [self._timers[domain] for domain in DOMAINS],
            context.key_groups,
            context.max_parallelism,
            self._options.compression,
        )
        lent = any(table.lends_objects for table in tables)
        work: HeapSnapshot | None = None
        if self._options.asynchronous_snapshots:
            threshold = self._options.fork_threshold
            if self._has_more_than(threshold // COST_OF_ENCODING if lent else threshold):
                work = fork_snapshot(label, view)
            elif not lent:
                work = CopiedSnapshot(label, view)
        if work is None:
            work = SerialisedSnapshot(label, view)
        self._writing = [other for other in self._writing if not other.finished]
        self._writing.append(work)
        return work

    def _has_more_than(self, threshold: int) -> bool:
        count = sum(len(queue) for queue in self._timers.values())
        for table in self._tables.values():
            count += table.entry_count(threshold)
            if count > threshold:
                return True
        return count > threshold

    def restore(self, snapshots: Sequence[KeyedSnapshot], store: FileStore) -> None:
        restore_heap(snapshots, store, self._context, self._tables, self._timers)

    def checkpoint_complete(self, checkpoint_id: int) -> None:
        """Nothing to release: a table shares no file with any other checkpoint."""

    def entry_count(self) -> int:
        return sum(table.entry_count() for table in self._tables.values())

    def close(self) -> None:
        for work in self._writing:
            work.cancel()
        self._writing.clear()
        self._tables.clear()
        self.declared.clear()
        self._timers.clear()
