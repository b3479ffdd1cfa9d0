"""Acknowledgements that are late, double or of nobody's checkpoint; publications whose answer was lost."""

from __future__ import annotations

from typing import Any

import pytest
from checkpoints import published, restored_by_attempt
from ledger import Bookkeeper, Ledger, LedgerSink, LedgerSource, ledger_stream
from meddlers import UNKNOWN, AcknowledgesTooMuch, DoubtfulStorage

from headrace import ExternalizedCheckpointRetention, FileSystemCheckpointStorage, WatermarkStrategy
from headrace.checkpoint.collection import audit
from headrace.checkpoint.places import JobPlace
from headrace.checkpoint.verification import verify

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]

KEEP = ExternalizedCheckpointRetention.RETAIN_ON_CANCELLATION


def damage(bench: Any) -> list[str]:
    """Damaged or missing files of complete checkpoints."""
    job = JobPlace(FileSystemCheckpointStorage(bench.storage), "ledger")
    return [f"{finding.path}: {finding.detail}" for finding in verify(job.checkpoints()).findings]


def garbage(bench: Any) -> list[str]:
    """Files that belong to no complete checkpoint."""
    job = JobPlace(FileSystemCheckpointStorage(bench.storage), "ledger")
    # Shared files are left to a collector that waits: a reader of the last moment may need them.
    return [item.path for item in audit(job).garbage if "/shared/" not in item.path]


@pytest.mark.parametrize("backend", ["heap", "rocksdb"])
def test_acknowledgements_that_nobody_waits_for_change_nothing_and_leave_nothing(
    bench: Any, faults: Any, start: Any, backend: str
) -> None:
    faults.planned = 4
    ledger = Ledger(length=400, rate=3_000).holding_for(faults)
    sink = LedgerSink(bench.directory / "out")
    env = bench.env(interval=50, backend=backend)
    config = env.get_checkpoint_config()
    config.set_checkpoint_timeout(2_000).set_tolerable_checkpoint_failure_number(1_000)
    config.set_externalized_checkpoint_retention(KEEP).set_num_retained_checkpoints(3)
    records = env.from_source(LedgerSource(ledger), WatermarkStrategy.for_monotonous_timestamps(), "ledger").uid("src")
    lines = records.key_by(lambda record: record[0]).process(Bookkeeper(ledger.window)).uid("books").name("books")
    lines.map(AcknowledgesTooMuch(str(faults.log))).uid("meddler").sink_to(sink).uid("sink")

    job = start(env)
    result = job.finish()

    assert faults.happened == ["complete since", "duplicate", "late", "unknown"]
    assert ledger.problems(sink.lines()) == []
    assert result.restarts == 0
    late = int((faults.log / "late").read_text())
    assert late in [failed["checkpoint_id"] for failed in job.kinds("checkpoint-failed")]
    completed = [checkpoint["checkpoint_id"] for checkpoint in job.kinds("checkpoint")]
    assert late not in completed
    assert max(completed) < UNKNOWN
    # On a busy machine there may be fewer than three: others take as long as the one that was held back.
    assert [int(checkpoint.name[4:]) for checkpoint in published(bench)] == completed[-3:]
    assert damage(bench) == []
    assert garbage(bench) == []


@pytest.mark.parametrize("written", [True, False], ids=["written", "not written"])
@pytest.mark.parametrize("readable", [True, False], ids=["seen", "not seen"])
def test_a_publication_whose_answer_was_lost_counts_if_it_happened_and_only_then(
    bench: Any, faults: Any, start: Any, written: bool, readable: bool
) -> None:
    """The third publication is in doubt, and the job fails before the fourth: what counts is what recovery finds."""
    faults.plan("before_publish=raise@4")
    mark = bench.directory / "in doubt"
    ledger = Ledger(length=400, rate=3_000).holding_for(faults)
    sink = LedgerSink(bench.directory / "out")
    env = bench.env(interval=50)
    config = env.get_checkpoint_config().set_externalized_checkpoint_retention(KEEP)
    config.set_checkpoint_storage(DoubtfulStorage(bench.storage, mark, nth=3, written=written, readable=readable))
    ledger_stream(env, ledger).sink_to(sink).uid("sink")

    job = start(env)
    result = job.finish()

    assert len(faults.happened) == 1
    assert result.restarts == 1
    assert ledger.problems(sink.lines()) == []
    doubtful = int(mark.read_text())
    completed = [checkpoint["checkpoint_id"] for checkpoint in job.kinds("checkpoint")]
    failed = [failed["checkpoint_id"] for failed in job.kinds("checkpoint-failed")]
    certain = written and readable
    assert (doubtful in completed, doubtful in failed) == (certain, not certain)
    before = max(checkpoint_id for checkpoint_id in completed if checkpoint_id < doubtful)
    assert restored_by_attempt(bench) == {1: None, 2: doubtful if written else before}
    assert completed == sorted(set(completed)), "no id is used twice"
    assert completed[-1] > doubtful
    # The attempt that failed may have left files of its last checkpoint; but none that counts is damaged.
    assert damage(bench) == []
