"""The Spark queries that feed a job: each writes a DataFrame into the spool of one source, while an attempt runs.

A query begins when all tasks of the attempt run, and is stopped with the attempt: it would take the slots that the next
one waits for. What it has published by then counts; what it was writing is written again, as another try.

The order in which a batch becomes visible:

    1  its tasks store files, under the name of batch and try
    2  the manifest that names them is created, unless there is one
    3  the enumerator is told
    4  Spark notes that the batch is done (streaming only)

A driver that dies before 2 leaves files that nobody names; one that dies between 2 and 4 has Spark ask for the batch
again, which is answered by the manifest.
"""

from __future__ import annotations

import hashlib
import re
import secrets
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec

from headrace import failpoints
from headrace.checkpoint.metadata.model import CheckpointMetadata
from headrace.checkpoint.storage.base import CheckpointStorage, storage_for
from headrace.connectors.dataframe.enumerator import decode_state
from headrace.connectors.dataframe.parts import PartWriter
from headrace.connectors.dataframe.source import DataFrameSource
from headrace.connectors.dataframe.split import SpoolSplit
from headrace.connectors.dataframe.spool import Manifest, Spool, SpoolFile
from headrace.errors import ConfigurationError
from headrace.operators.factories import SourceFactory
from headrace.plan.graph import JobPlan, Node
from headrace.plan.settings import JobSettings
from headrace.runtime.coordinator.events import FeedAdvanced, FeedFailed
from headrace.runtime.job.restoration import Restoration
from headrace.runtime.spark.dataframes import (
    PartsQuery,
    SparkQueryError,
    StreamQuery,
    spark_uri,
    why_spark_cannot_open,
)
from headrace.runtime.spark.session import SparkHandle

STOPPED_WITHIN_S = 60.0
_IN_MEMORY = "memory:"


class Feeds:
    """All feeding queries of one job, over its attempts. The queries run on threads of their own.

    `pin` and `collect` come from two I/O threads of an attempt. They do not get in each other's way: a savepoint that
    is being published needs nothing older than what the newest checkpoint needs, which a collection leaves alone.
    """

    def __init__(self, plan: JobPlan, settings: JobSettings) -> None:
        self._settings = settings
        self._sources = {
            node.uid: (node, node.factory.source)
            for node in plan.graph.nodes
            if isinstance(node.factory, SourceFactory) and isinstance(node.factory.source, DataFrameSource)
        }
        self._running: list[Feed] = []
        self._temporary: Path | None = None
        self._own: dict[str, Spool] = {}
        self._home = ""

    def __bool__(self) -> bool:
        return bool(self._sources)

    def preflight(self, handle: SparkHandle) -> None:
        """Refuse a temporary spool that executors elsewhere could not see, and what Spark itself cannot write."""
        storage = self._settings.checkpointing.storage.location
        if self._sources and not handle.is_local and storage.startswith(_IN_MEMORY):
            raise ConfigurationError(
                "from_dataframe() writes a spool that the tasks of the job read, but the job has no checkpoint storage,"
                " and Spark's executors are other processes. Set one that all of them reach, with "
                "env.get_checkpoint_config().set_checkpoint_storage(uri)."
            )
        for node, source in self._sources.values():
            if source.streaming and (source.spark_checkpoint or not storage.startswith(_IN_MEMORY)):
                place = source.spark_checkpoint or spark_uri(storage)
                trouble = why_spark_cannot_open(handle.user_session, place)
                if trouble is not None:
                    raise _refusal(node, source, place, trouble)

    def bind(self, run: int, restoration: Restoration, *, outside: bool) -> None:
        """Tell each source which spool it reads in the attempt that begins.

        The run's own; or, where the attempt is restored from outside the run, the one that the checkpoint refers to,
        and then for the rest of the run.
        """
        self._home = f"{self._settings.job_id}/run-{run:06d}/spool"
        for uid, (_, source) in self._sources.items():
            place = self._parent().below(_directory_name(uid))
            own = self._own[uid] = Spool(place.location, place)
            state = None if restoration.restore is None else restoration.restore.enumerator(uid)
            if outside and state is not None:
                location = decode_state(state).spool
                if location != own.location:
                    own.point_to(location)
            else:
                location = own.elsewhere() or own.location
            source.bind(own if location == own.location else self._spool_at(location))

    def start(self, attempt: int, tell: Callable[[FeedAdvanced | FeedFailed], None]) -> None:
        """Begin the queries whose input is not in the spool yet."""
        for node, source in self._sources.values():
            assert source.spool is not None
            feed = Feed(node, source, attempt, place_of_spark_checkpoint(source.spool, source.spark_checkpoint), tell)
            self._running.append(feed)
            feed.start()

    def stop(self, limit_s: float) -> None:
        """End all queries; returns when they are over, or after `limit_s` seconds."""
        running, self._running = self._running, []
        # Spark answers a request to stop when the query has stopped, so each is asked on a thread of its own.
        stopping = [threading.Thread(target=feed.stop, name="feed-stop", daemon=True) for feed in running]
        for thread in stopping:
            thread.start()
        deadline = time.monotonic() + limit_s
        for thread in stopping:
            thread.join(max(0.0, deadline - time.monotonic()))

    def collect(self, retained: Iterable[CheckpointMetadata]) -> None:
        """Remove what no retained checkpoint and no savepoint needs any more."""
        kept = list(retained)
        if not kept:
            return
        for uid, (_, source) in self._sources.items():
            assert source.spool is not None
            source.spool.collect(min(first_needed(metadata, uid) for metadata in kept))

    def pin(self, savepoint: CheckpointMetadata) -> None:
        """Keep what this savepoint needs, for as long as the spool is there."""
        for uid, (_, source) in self._sources.items():
            assert source.spool is not None
            source.spool.pin(_pin_of(savepoint), first_needed(savepoint, uid))

    def unpin(self, savepoint: CheckpointMetadata) -> None:
        """That savepoint never came to be."""
        for _, source in self._sources.values():
            assert source.spool is not None
            source.spool.unpin(_pin_of(savepoint))

    def remove(self) -> None:
        """The run is over and its checkpoints are removed: so are its spools, except what savepoints need."""
        for uid, spool in self._own.items():
            pinned = spool.pinned()
            if pinned is not None:
                spool.collect(pinned)
            else:
                self._parent().delete_tree(_directory_name(uid))
            self._sources[uid][1].spool = None

    def close(self) -> None:
        """The job is over in this process: a temporary spool goes with it."""
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)
            self._temporary = None

    def _parent(self) -> CheckpointStorage:
        """Where the spools of this run lie, each by the name of its source."""
        storage = self._settings.checkpointing.storage
        if not storage.location.startswith(_IN_MEMORY):
            return storage.below(self._home)
        if self._temporary is None:
            self._temporary = Path(tempfile.mkdtemp(prefix="headrace-spool-"))
        return storage_for(self._temporary.as_uri())

    def _spool_at(self, location: str) -> Spool:
        """A spool of another run or job, with the settings of our own storage if it lies there."""
        storage = self._settings.checkpointing.storage
        root = f"{storage.location.rstrip('/')}/"
        return Spool(location, storage.below(location[len(root) :]) if location.startswith(root) else None)


class Feed:
    """One query, for one attempt, on a thread of its own."""

    def __init__(
        self,
        node: Node,
        source: DataFrameSource,
        attempt: int,
        spark_checkpoint: str,
        tell: Callable[[FeedAdvanced | FeedFailed], None],
    ) -> None:
        assert source.spool is not None
        self._node = node
        self._source = source
        self._spool = source.spool
        self._attempt = attempt
        self._spark_checkpoint = spark_checkpoint
        self._tell = tell
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._known = threading.Event()
        """It was found out whether the streaming query is the one that this spool belongs to."""
        self._foreign = False
        self._query: PartsQuery | StreamQuery | None = None
        self._thread = threading.Thread(target=self._run, name=f"feed-{node.uid}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def ask_to_stop(self) -> None:
        with self._lock:
            self._stopping.set()
            query = self._query
        self._source.backlog.close()
        self._known.set()
        if isinstance(query, StreamQuery):
            query.stop()
        elif query is not None:
            query.cancel()

    def stop(self) -> None:
        """Ask it to stop, and wait for it."""
        self.ask_to_stop()
        self._thread.join(STOPPED_WITHIN_S)

    def _run(self) -> None:
        try:
            if self._spool.ended() is None:
                self._stream() if self._source.streaming else self._once()
        except Exception as error:
            if not self._stopping.is_set():
                name = f'"{self._node.name}" (uid {self._node.uid})'
                failure = SparkQueryError(f"The Spark query that feeds {name} failed: {error}")
                self._tell(FeedFailed(self._attempt, failure))

    def _once(self) -> None:
        self._write(self._source.frame, 0, within_a_stream=False)
        if not self._stopping.is_set():
            self._spool.end(1)
            self._tell(FeedAdvanced(self._attempt, self._node.uid))

    def _stream(self) -> None:
        name = f"{self._node.name} (attempt {self._attempt})"
        query = StreamQuery(self._source.frame, self._each, self._spark_checkpoint, self._source.trigger, name)
        if not self._running(query):
            query.stop()
            return
        wanted = self._spool.query(query.id)
        if wanted != query.id:
            # Or the query would wait for its first batch for ever, and stopping for the query.
            self._foreign = True
            self._known.set()
            query.stop()
            raise SparkQueryError(
                f"the spool {self._spool.location} was written by query {wanted}, but Spark now has query {query.id}: "
                f"its checkpoint {self._spark_checkpoint} was removed or replaced, and with it the numbers of its "
                "batches. Put it back, or begin anew under another job name."
            )
        self._known.set()
        query.wait()
        if not self._stopping.is_set():
            self._spool.end(max(self._spool.batches(), default=-1) + 1)
            self._tell(FeedAdvanced(self._attempt, self._node.uid))

    def _each(self, frame: Any, batch: int) -> None:
        """Called by Spark for each micro-batch, one at a time."""
        self._known.wait()
        if self._foreign or not self._source.backlog.wait_for_room() or self._stopping.is_set():
            raise SparkQueryError("the attempt is over")
        self._write(frame, batch, within_a_stream=True)

    def _write(self, frame: Any, batch: int, *, within_a_stream: bool) -> None:
        if self._spool.has(batch):
            return
        source = self._source
        # Step 1
        this_try = f"{self._attempt:06d}-{secrets.token_hex(4)}"
        query = PartsQuery(frame, PartWriter(self._spool, batch, this_try, source.row_type), f"feeds {self._node.name}")
        if not within_a_stream and not self._running(query):
            return
        told = query.run(own_group=not within_a_stream)
        files = [msgspec.msgpack.decode(file, type=SpoolFile) for file in told]
        files.sort(key=lambda found: (found.partition, found.file.path))
        failpoints.hit("spool_stored")
        # Step 2
        if self._stopping.is_set():
            return
        self._spool.publish(Manifest(batch, str(source.row_type), tuple(files)))
        failpoints.hit("spool_published")
        # Step 3
        self._tell(FeedAdvanced(self._attempt, self._node.uid))

    def _running(self, query: PartsQuery | StreamQuery) -> bool:
        """Let `ask_to_stop` know the query; False if it has been asked already."""
        with self._lock:
            self._query = query
            return not self._stopping.is_set()


def place_of_spark_checkpoint(spool: Spool, chosen: str | None) -> str:
    """Where Spark keeps the checkpoint of the query that writes this spool: in it, or below the place that was chosen.

    One for each spool, because the numbers of batches begin anew with it; and for the spool that is read, which after a
    restore from a savepoint is that of an earlier run.
    """
    if chosen is None:
        return spark_uri(f"{spool.location}/spark")
    # <job>/run-000001/spool/<source>; of a temporary spool its own path.
    named = [part for part in spool.location.split("/")[-4:] if part]
    return "/".join([chosen.rstrip("/"), *named])


def first_needed(metadata: CheckpointMetadata, uid: str) -> int:
    """The oldest batch that this checkpoint needs of the source with that uid; 0 if it does not know the source."""
    state = metadata.enumerators.get(uid)
    if state is None:
        return 0
    needed = decode_state(state).first_needed
    for operator in metadata.operators:
        if operator.uid == uid:
            for subtask in operator.subtasks:
                for split in subtask.splits:
                    needed = min(needed, msgspec.msgpack.decode(split, type=SpoolSplit).batch)
    return needed


def _refusal(node: Node, source: DataFrameSource, place: str, trouble: str) -> ConfigurationError:
    chosen = "" if source.spark_checkpoint else "in the spool beside the checkpoints, "
    return ConfigurationError(
        f'Source "{node.name}" (uid {node.uid}) is a streaming DataFrame. Spark keeps the checkpoint of its query '
        f"{chosen}at {place}, and writes it by Hadoop, which cannot open that place: {trouble}. Put it elsewhere with "
        "from_dataframe(df, spark_checkpoint=uri), where every later start finds it again, and the rest of the spool "
        "stays beside the checkpoints; or put the store's Hadoop connector on Spark's class path "
        "(spark.jars.packages; org.apache.hadoop:hadoop-aws for s3a:)."
    )


def _pin_of(savepoint: CheckpointMetadata) -> str:
    return f"{savepoint.job_id}-{savepoint.run:06d}-{savepoint.checkpoint_id:06d}"


def _directory_name(uid: str) -> str:
    """A uid may have any printable character, and be longer than a file's name."""
    plain = re.sub(r"[^A-Za-z0-9_.-]+", "-", uid).strip(".-")[:60]
    return f"{plain}-{hashlib.sha256(uid.encode()).hexdigest()[:8]}"
