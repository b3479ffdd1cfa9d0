"""The newest checkpoint is damaged: the start says which file, and goes back further only when somebody asks for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from checkpoints import published
from ledger import Ledger, LedgerSink, ledger_stream

from headrace import Configuration, ExternalizedCheckpointRetention, FileSystemCheckpointStorage
from headrace.checkpoint.location import open_checkpoint
from headrace.datastream.overrides import Overrides, overriding
from headrace.errors import RestoreError

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]


def newest_state_file(checkpoint: Path) -> Path:
    """A file of keyed state that this checkpoint alone has."""
    opened = open_checkpoint(f"file://{checkpoint}")
    assert isinstance(opened.storage, FileSystemCheckpointStorage)
    own = [
        file.path
        for record in opened.metadata.operators
        if record.uid == "books"
        for subtask in record.subtasks
        if subtask.keyed is not None
        for file in subtask.keyed.files
        if f"/{checkpoint.name}/" in file.path
    ]
    return opened.storage.root / own[0]


@pytest.mark.parametrize("backend", ["heap", "rocksdb"])
def test_a_damaged_state_file_stops_the_start_and_an_older_checkpoint_is_used_only_when_asked_for(
    bench: Any, start: Any, backend: str
) -> None:
    go = bench.directory / "go"
    ledger = Ledger(length=400, rate=3_000, faults=1, fault_log=str(go))

    def launch(**asked: Any) -> Any:
        env = bench.env(interval=50, backend=backend)
        # The host's own copy of the file is whole, and would be used.
        env.configure(Configuration({"state.backend.local-recovery": "false"}))
        config = env.get_checkpoint_config().set_num_retained_checkpoints(3)
        config.set_externalized_checkpoint_retention(ExternalizedCheckpointRetention.RETAIN_ON_CANCELLATION)
        config.set_checkpoint_storage(
            FileSystemCheckpointStorage(f"{bench.directory}/checkpoints", file_state_size_threshold=0)
        )
        ledger_stream(env, ledger).sink_to(LedgerSink(bench.directory / "out")).uid("sink")
        with overriding(Overrides(**asked)):
            return start(env)

    job = launch()
    job.wait_for("checkpoint", lambda checkpoint: checkpoint["checkpoint_id"] >= 3)
    job.suspend()
    kept = published(bench)
    assert len(kept) == 3
    damaged = newest_state_file(kept[-1])
    data = bytearray(damaged.read_bytes())
    data[len(data) // 2] ^= 0xFF
    damaged.write_bytes(data)

    for _ in (1, 2):  # a second try finds it as the first did
        with pytest.raises(RestoreError, match=damaged.name):
            launch().finish()
        assert published(bench) == kept, "nothing is removed that an older checkpoint may need"

    job = launch(restore_from=str(kept[-2]))
    assert job.wait_for("running")["restored"] == int(kept[-2].name[4:])
    job.wait_for("checkpoint")
    job.client.cancel().result(180)
